//! Questions to a socket that move no message: make a pair, wait, how much is unread.
//! It must never change a socket's state or options.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use std::{io, ptr};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::error::last_errno;

/// Two connected `SOCK_SEQPACKET` sockets, close-on-exec and non-blocking.
///
/// # Errors
/// Those of socketpair(2): `EMFILE`, `ENFILE`.
pub fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?)
}

/// How much of what was sent on `sock` the peer has not read yet, in bytes of kernel memory
/// (message headers included, so never compare it with payload sizes). 0: all has been read.
/// Source: `SIOCOUTQ`, tcp(7) and the kernel's `unix_ioctl`.
///
/// # Errors
/// Those of ioctl(2): `ENOTTY` when `sock` is no socket.
pub fn unread_bytes(sock: BorrowedFd<'_>) -> io::Result<usize> {
    int_ioctl(sock, libc::TIOCOUTQ)
}

/// Payload bytes queued for reading on `sock`, all messages summed (`SIOCINQ`). A message without
/// bytes does not count, nor does the end of the connection.
///
/// # Errors
/// Those of ioctl(2): `ENOTTY` when `sock` is no socket.
pub fn queued_bytes(sock: BorrowedFd<'_>) -> io::Result<usize> {
    int_ioctl(sock, libc::FIONREAD)
}

fn int_ioctl(sock: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<usize> {
    let mut answer: libc::c_int = 0;
    // SAFETY: both requests used here write one int through the pointer, which is valid.
    if unsafe { libc::ioctl(sock.as_raw_fd(), request, &raw mut answer) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(answer).unwrap_or(0))
}

/// When a wait ends; `None` inside is never.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// A `timeout` too long for the clock is for ever.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// Time left; zero when it is over, `None` when there is no end.
    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn is_over(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}

/// Waits for `events` (or hang-up or error, which always count) until `timeout`; `None` = for ever.
/// Returns the events that came; 0 when time was over or a signal came. poll(2).
pub(crate) fn wait(
    sock: BorrowedFd<'_>,
    events: i16,
    timeout: Option<Duration>,
) -> Result<i16, i32> {
    let mut entry = libc::pollfd { fd: sock.as_raw_fd(), events, revents: 0 };
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: one valid entry; `timeout` is null or points to a local that outlives the call.
    let answer = unsafe { libc::ppoll(&raw mut entry, 1, timeout, ptr::null()) };
    if answer >= 0 {
        return Ok(entry.revents);
    }
    match last_errno() {
        libc::EINTR => Ok(0),
        errno => Err(errno),
    }
}
