//! Connects to the broker's socket, and says why that is not possible. Must never wait.

use crate::error::Error;
use fdbroker_protocol::ErrorCode;
use fdbroker_scm::{Stranger, check_server};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(super) fn what(path: &Path) -> String {
    format!("connect to {}", path.display())
}

/// A socket connected to `path`. `None`: the listener's backlog is full.
pub(super) fn open(path: &Path) -> Result<Option<OwnedFd>, Error> {
    let address = UnixAddr::new(path).map_err(|_| {
        let context = format!("{}: longer than the 107 bytes a socket path may have", what(path));
        Error::not_connected(context)
    })?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
        .map_err(|errno| Error::no_fd(ErrorCode::NotConnected, &what(path), errno))?;
    loop {
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) => {
                check_server(socket.as_fd(), path).map_err(|it| stranger(path, &it))?;
                return Ok(Some(socket));
            }
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Ok(None),
            Err(Errno::EACCES) => {
                let error = Error::os(ErrorCode::NotPermitted, &what(path), Errno::EACCES);
                return Err(error.because(no_access(path)));
            }
            Err(errno) => return Err(Error::os(ErrorCode::NotConnected, &what(path), errno)),
        }
    }
}

/// NOT_PERMITTED for a server that may be anybody. Nothing was sent to it.
fn stranger(path: &Path, who: &Stranger) -> Error {
    let context = format!("{}: served by uid {}", what(path), who.uid);
    Error::new(ErrorCode::NotPermitted, context).because(who.to_string())
}

/// Why this process may not connect to `path`, and what to do: the folder that it may not enter,
/// else the socket.
fn no_access(path: &Path) -> String {
    let refusing = |part: &&Path| {
        std::fs::metadata(part)
            .is_err_and(|cause| cause.kind() == std::io::ErrorKind::PermissionDenied)
    };
    // The outermost that cannot be looked at is in the folder at fault. A socket's path has 107
    // bytes at most.
    let hidden = path.ancestors().filter(refusing).last();
    let at_fault = hidden.and_then(Path::parent).unwrap_or(path);
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    let is_whose = std::fs::metadata(at_fault).map_or_else(
        |cause| format!("cannot be looked at ({cause})"),
        |it| {
            let mode = it.mode() & 0o7777;
            format!("belongs to uid {} and gid {} with mode {mode:o}", it.uid(), it.gid())
        },
    );
    let (what, act) = if hidden.is_some() { ("folder", "enter") } else { ("socket", "write to") };
    let place = at_fault.display();
    format!(
        "the {what} {place} {is_whose}, and this process, of uid {uid} and gid {gid}, may not {act} it; run it as a user that may, have \
         the {what}'s mode widened (of a socket: `mode` of its listener in the broker's configuration), or name another broker's \
         socket in FDBROKER_SOCKET"
    )
}
