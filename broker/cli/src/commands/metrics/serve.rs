//! A small HTTP server for one page: it answers GET / and GET /metrics, and closes the connection.
//! Must never let a slow or broken client delay another, nor serve more than a bounded number of
//! clients.

use super::listen::Listen;
use super::{gather, render};
use crate::admin::viewing;
use crate::error::{Context, Error, Result};
use crate::output::say;
use crate::signals::Signals;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{SockFlag, accept4};
use nix::sys::stat::{Mode, umask};
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most connections at a time; more are closed. There are few scrapers, and each takes
/// milliseconds.
const MOST_CONNECTIONS: usize = 8;

/// Time for the request, and again for sending the answer: a scraper's own limit is 10 s by
/// default.
const CONNECTION_LIMIT: Duration = Duration::from_secs(5);

/// Longest wait for an answer of the broker, which needs milliseconds. If it hangs, the page with
/// fdbroker_up 0 must still be ready within the scraper's limit.
const BROKER_PATIENCE: Duration = Duration::from_secs(3);

/// Longest request: a scraper's headers are some hundred bytes.
const MOST_REQUEST_BYTES: usize = 8 * 1024;

/// Pause after a connection could not be accepted, such as for lack of fds or threads.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A connection, also one of TCP: what is asked of it is the same for every stream socket.
type Stream = UnixStream;

/// The path of a Unix socket; removed when this is dropped.
struct Place<'a>(&'a Path);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

/// Serves until a signal ends it.
pub fn run(listen: &Listen, with_jobs: bool) -> Result<()> {
    let signals = Signals::take_over()?;
    let (listener, place, at) = match listen {
        Listen::Unix(path) => {
            let listener = bind_unix(path)?;
            (OwnedFd::from(listener), Some(Place(path)), format!("unix:{}", path.display()))
        }
        Listen::Loopback(address) => {
            let what = || format!("listen on {address}");
            let listener = TcpListener::bind(address).context(what)?;
            let address = listener.local_addr().context(what)?;
            (OwnedFd::from(listener), None, format!("http://{address}/metrics"))
        }
    };
    fcntl(&listener, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).context(|| "set up the socket")?;
    say!("fdbroker: metrics at {at}");
    let outcome = accept_until_signal(&listener, &signals, with_jobs);
    drop(place);
    outcome
}

fn accept_until_signal(listener: &OwnedFd, signals: &Signals, with_jobs: bool) -> Result<()> {
    // Each connection has a clone: the number of clones is the number of connections.
    let served = Arc::new(());
    loop {
        let mut fds = [
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            result => drop(result.context(|| "wait for connections")?),
        }
        if signals.next_end().is_some() {
            return Ok(());
        }
        match accept4(listener, SockFlag::SOCK_CLOEXEC).map(Stream::from) {
            // Too many: closed at once.
            Ok(_) if Arc::strong_count(&served) > MOST_CONNECTIONS => {}
            Ok(stream) => {
                let mine = Arc::clone(&served);
                let started = std::thread::Builder::new().name("metrics".into()).spawn(move || {
                    // Errors concern only this client.
                    let _ = answer(stream, with_jobs);
                    drop(mine);
                });
                // No thread can be started now: the connection is closed, and the server goes on.
                if started.is_err() {
                    std::thread::sleep(ACCEPT_RETRY);
                }
            }
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(_) => std::thread::sleep(ACCEPT_RETRY),
        }
    }
}

/// Binds a socket that only this user may open. Replaces a socket that nothing listens on.
fn bind_unix(path: &Path) -> Result<UnixListener> {
    let what = || format!("listen on {}", path.display());
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    if is_socket {
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).context(what)?;
            }
            _ => {
                return Err(Error::Other(format!(
                    "another program listens on {}; end it, or name another path",
                    path.display()
                )));
            }
        }
    }
    let former = umask(Mode::from_bits_truncate(0o177));
    let bound = UnixListener::bind(path);
    umask(former);
    bound.context(what)
}

/// Reads one request and answers it.
fn answer(mut stream: Stream, with_jobs: bool) -> io::Result<()> {
    let until = Instant::now() + CONNECTION_LIMIT;
    let (status, body) = match read_request(&mut stream, until)? {
        Request::Get => ("200 OK", page(with_jobs)),
        Request::OtherPath => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
        Request::OtherMethod => ("405 Method Not Allowed", "use GET\n".to_owned()),
        Request::Broken => ("400 Bad Request", "this is no HTTP request\n".to_owned()),
    };
    let kind = if status.starts_with("200") { CONTENT_TYPE } else { "text/plain" };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nAllow: GET\r\nConnection: close\r\n\r\n"
    );
    let bytes = [head.as_bytes(), body.as_bytes()].concat();
    let mut left = &bytes[..];
    // A new limit: the broker may have used up the time.
    let until = Instant::now() + CONNECTION_LIMIT;
    while !left.is_empty() {
        set_timeouts(&stream, until)?;
        let written = stream.write(left)?;
        left = &left[written..];
    }
    stream.flush()
}

fn page(with_jobs: bool) -> String {
    // The server runs for days: it must not start a service that was stopped meanwhile.
    let admin = viewing::connect_again_within(BROKER_PATIENCE);
    match admin.and_then(|admin| gather::gather(admin, with_jobs)) {
        Ok(gathered) => render::page(Some(gathered)),
        Err(error) => {
            say!("fdbroker: {error}");
            render::page(None)
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Request {
    Get,
    OtherPath,
    OtherMethod,
    Broken,
}

/// Reads to the end of the headers: requests with a body are not answered.
fn read_request(stream: &mut Stream, until: Instant) -> io::Result<Request> {
    let mut bytes = Vec::with_capacity(1024);
    let mut part = [0; 1024];
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        if bytes.len() > MOST_REQUEST_BYTES {
            return Ok(Request::Broken);
        }
        set_timeouts(stream, until)?;
        match stream.read(&mut part)? {
            0 => return Ok(Request::Broken),
            read => bytes.extend_from_slice(&part[..read]),
        }
    }
    Ok(request(&bytes))
}

fn request(bytes: &[u8]) -> Request {
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let Ok(line) = std::str::from_utf8(line) else { return Request::Broken };
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else { return Request::Broken };
    let path = target.split('?').next().unwrap_or_default();
    match (version.starts_with("HTTP/1."), method, path) {
        (false, ..) => Request::Broken,
        (true, "GET", "/" | "/metrics") => Request::Get,
        (true, "GET", _) => Request::OtherPath,
        (true, ..) => Request::OtherMethod,
    }
}

/// The rest of the time, for the next read or write.
fn set_timeouts(stream: &Stream, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_when_read_then_only_get_of_the_page_is_answered() {
        let table = [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Request::Get),
            ("GET / HTTP/1.0\r\n\r\n", Request::Get),
            ("GET /metrics?x=1 HTTP/1.1\r\n\r\n", Request::Get),
            ("GET /other HTTP/1.1\r\n\r\n", Request::OtherPath),
            ("POST /metrics HTTP/1.1\r\n\r\n", Request::OtherMethod),
            ("GET /metrics\r\n\r\n", Request::Broken),
            ("GET /metrics SPDY/3\r\n\r\n", Request::Broken),
            ("\r\n\r\n", Request::Broken),
        ];
        for (text, expected) in table {
            assert_eq!(request(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(request(b"\xff\xfe x HTTP/1.1\r\n\r\n"), Request::Broken);
    }
}
