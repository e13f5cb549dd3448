//! Finds the broker's socket, connects and says hello. Must never wait longer than CONNECT_TIMEOUT.

use crate::error::Error;
use crate::limits::{BACKLOG_PAUSE, CONNECT_TIMEOUT, HELLO_SLICE};
use fdbroker_protocol::limits::{MAX_MESSAGE_BYTES, NAME_BYTES};
use fdbroker_protocol::message::{HELLO_MAGIC, Hello, HelloReply};
use fdbroker_protocol::{ErrorCode, Kind, Message, PROTOCOL_VERSION, Status, Writer};
use fdbroker_scm::{ReceivedFds, RecvError};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A connection's two sockets, its page, and what the broker said.
#[derive(Debug)]
pub(crate) struct Greeted {
    pub socket: OwnedFd,
    pub events: OwnedFd,
    pub page: OwnedFd,
    pub reply: HelloReply,
}

/// The socket to use when the caller names none: `FDBROKER_SOCKET`, else the user's own if it exists,
/// else the node's.
pub fn default_socket_path() -> PathBuf {
    if let Some(path) = std::env::var_os("FDBROKER_SOCKET").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
    let own = runtime.map(|runtime| Path::new(&runtime).join("fdbroker/broker.sock"));
    own.filter(|path| path.exists()).unwrap_or_else(|| "/run/fdbroker/broker.sock".into())
}

/// Connects to `path` and exchanges hello, unless `is_stopping` meanwhile.
pub(crate) fn greet(
    path: &Path,
    name: &str,
    own_fds: u32,
    is_stopping: impl Fn() -> bool,
) -> Result<Greeted, Error> {
    let until = Instant::now() + CONNECT_TIMEOUT;
    let context = |what: &str| format!("connect to {}: {what}", path.display());
    let socket = open(path, until, &is_stopping)?;

    let mut writer = Writer::new();
    let hello = Hello {
        magic: HELLO_MAGIC,
        version_min: u16::from(PROTOCOL_VERSION).into(),
        version_max: u16::from(PROTOCOL_VERSION).into(),
        flags: 0.into(),
        own_fds: own_fds.into(),
        pid: std::process::id().into(),
        name: padded(name),
        reserved: 0.into(),
    };
    writer.start(Kind::Hello, 1).push(&hello);
    fdbroker_scm::send(socket.as_fd(), writer.finish(0, 0), &[])
        .map_err(|error| Error::not_connected(context(&error.to_string())))?;

    let mut buf = vec![0; MAX_MESSAGE_BYTES];
    let mut fds = ReceivedFds::with_capacity(2);
    let received = loop {
        let slice = Some(HELLO_SLICE);
        match fdbroker_scm::recv_timeout(socket.as_fd(), &mut buf, &mut fds, slice) {
            Err(RecvError::TimedOut) if Instant::now() < until && !is_stopping() => {}
            received => break received,
        }
    };
    let received = received.map_err(|error| {
        let what = match error {
            RecvError::TimedOut => "it does not answer hello".to_owned(),
            error => error.to_string(),
        };
        Error::not_connected(context(&what))
    })?;
    let message = Message::parse(&buf[..received.len])
        .map_err(|error| Error::new(ErrorCode::Protocol, context(&error.to_string())))?;
    let reply = match message.kind {
        Kind::HelloReply => *message
            .body_as::<HelloReply>()
            .map_err(|error| Error::new(ErrorCode::Protocol, context(&error.to_string())))?,
        Kind::Failed => return Err(refused(&message, &context)),
        kind => {
            let what = format!("it answers hello with {kind}");
            return Err(Error::new(ErrorCode::Protocol, context(&what)));
        }
    };
    if received.fds_truncated && fds.len() < 2 {
        return Err(Error::new(ErrorCode::LocalFdLimit, context("no fd left for the connection")));
    }
    let version = reply.version.get();
    if version != u16::from(PROTOCOL_VERSION) {
        let what = format!("it chose protocol version {version}, which this library lacks");
        return Err(Error::new(ErrorCode::Protocol, context(&what)));
    }
    let wrong_fds = || Error::new(ErrorCode::Protocol, context("hello's reply lacks its 2 fds"));
    let events = fds.pop_front().ok_or_else(wrong_fds)?;
    let page = fds.pop_front().ok_or_else(wrong_fds)?;
    Ok(Greeted { socket, events, page, reply })
}

fn refused(message: &Message<'_>, context: &dyn Fn(&str) -> String) -> Error {
    let Ok(status) = message.body_as::<Status>() else {
        return Error::new(ErrorCode::Protocol, context("it refuses hello in a way unknown here"));
    };
    let what = match status.result() {
        Err(ErrorCode::Protocol) => format!(
            "the broker speaks protocol version {}, this library {PROTOCOL_VERSION}",
            status.value.get()
        ),
        _ => "the broker refuses this client".to_owned(),
    };
    Error::from_status(*status, context(&what))
}

fn open(path: &Path, until: Instant, is_stopping: &dyn Fn() -> bool) -> Result<OwnedFd, Error> {
    let what = || format!("connect to {}", path.display());
    let address = UnixAddr::new(path).map_err(|_| {
        let context = format!("{}: longer than the 107 bytes a socket path may have", what());
        Error::not_connected(context)
    })?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket =
        socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map_err(|errno| {
            let code = match errno {
                nix::Error::EMFILE | nix::Error::ENFILE => ErrorCode::LocalFdLimit,
                _ => ErrorCode::NotConnected,
            };
            Error::os(code, &what(), errno)
        })?;
    loop {
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) => return Ok(socket),
            Err(nix::Error::EINTR) => {}
            Err(nix::Error::EAGAIN) if Instant::now() < until && !is_stopping() => {
                std::thread::sleep(BACKLOG_PAUSE);
            }
            Err(nix::Error::EACCES) => {
                return Err(Error::os(ErrorCode::NotPermitted, &what(), nix::Error::EACCES));
            }
            Err(errno) => return Err(Error::os(ErrorCode::NotConnected, &what(), errno)),
        }
    }
}

fn padded(name: &str) -> [u8; NAME_BYTES] {
    let mut padded = [0; NAME_BYTES];
    let mut end = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    padded[..end].copy_from_slice(&name.as_bytes()[..end]);
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padded_when_name_too_long_then_cut_at_a_character() {
        assert_eq!(&padded("rank")[..5], b"rank\0");
        assert_eq!(padded("0123456789abcdef9"), *b"0123456789abcdef");
        assert_eq!(&padded("0123456789abcdeé")[..], b"0123456789abcde\0");
    }

    #[test]
    fn greet_when_nothing_listens_then_not_connected() {
        let error = greet(Path::new("/nonexistent/broker.sock"), "t", 1, || false).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotConnected);
    }

    #[test]
    fn greet_when_path_too_long_then_says_so() {
        let path = format!("/{}", "x".repeat(200));
        let error = greet(Path::new(&path), "t", 1, || false).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotConnected);
        assert!(error.to_string().contains("107"));
    }
}
