//! Receiving one message, with all its fds, and with word of what is missing.
//! It must never leave a received fd without an owner, never hide a truncation, and never take a
//! reset or a message without bytes for the end while something is still queued.

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::error::{RecvError, last_errno};
use crate::fds::ReceivedFds;
use crate::socket::{Deadline, queued_bytes, wait};

/// How often a reset is read past. The kernel reports the peer's death once per socket, so once is
/// enough. A few more are for a kernel that behaves differently, which must not keep us in a loop.
const RESET_RETRIES: usize = 4;

/// One received message; its fds are in the caller's [`ReceivedFds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a truncated message is reported here only"]
pub struct Message {
    /// Bytes written to the buffer. More than 0 unless the buffer itself has none.
    pub len: usize,
    /// `MSG_TRUNC`: the message was longer than the buffer and the rest is gone.
    pub payload_truncated: bool,
    /// `MSG_CTRUNC`: some fds are gone, because the table of this process is full
    /// (`RLIMIT_NOFILE`) or the [`ReceivedFds`] has less room. Those that came are the first ones.
    /// How many are missing only the payload can say. (With `SO_PASSCRED` and its kin it may also
    /// be that another control message was cut.)
    pub fds_truncated: bool,
}

/// Receives one message without blocking, whatever the socket's mode. One syscall, no allocation.
///
/// The bytes go to `buf`, at least 1 byte long, at best the longest message of the protocol. The
/// fds go to `fds`, close-on-exec, in the sender's order. `fds` must be empty: fds left in it
/// are the caller's mistake, because they are closed here first, which may block for ever (see
/// [`ReceivedFds`]).
///
/// # Errors
/// See [`RecvError`]. Only with `EmptyMessage` can there be fds in `fds`.
pub fn recv(
    sock: BorrowedFd<'_>,
    buf: &mut [u8],
    fds: &mut ReceivedFds,
) -> Result<Message, RecvError> {
    recv_with(sock, buf, fds, libc::MSG_DONTWAIT)
}

/// The same as [`recv`], but on a blocking socket it waits for a message in that one syscall, as
/// long as the socket's `SO_RCVTIMEO` says, or until a signal comes.
///
/// # Errors
/// See [`RecvError`]; `WouldBlock` when none came.
pub fn recv_waiting(
    sock: BorrowedFd<'_>,
    buf: &mut [u8],
    fds: &mut ReceivedFds,
) -> Result<Message, RecvError> {
    recv_with(sock, buf, fds, 0)
}

pub(crate) fn recv_with(
    sock: BorrowedFd<'_>,
    buf: &mut [u8],
    fds: &mut ReceivedFds,
    flags: i32,
) -> Result<Message, RecvError> {
    debug_assert!(!buf.is_empty(), "a buffer without room looks like the end");
    debug_assert!(fds.is_empty(), "take the fds of the last message out before the next one");
    fds.clear();

    let mut resets = 0;
    let received = loop {
        match recv_once(sock, buf, fds, flags) {
            Ok(received) => break received,
            Err(libc::EINTR) if flags & libc::MSG_DONTWAIT == 0 => {
                return Err(RecvError::WouldBlock);
            }
            Err(libc::EINTR) => {}
            // The kernel reports it once, ahead of the messages that the peer sent before it died.
            Err(libc::ECONNRESET) if resets < RESET_RETRIES => resets += 1,
            Err(errno) => return Err(RecvError::from_errno(errno)),
        }
    };
    if received.message.len == 0 && !received.message.payload_truncated {
        return Err(empty_or_end(sock, received));
    }
    Ok(received.message)
}

/// The same as [`recv`], waiting for a message until `timeout` (`None` = for ever) has passed. A
/// timeout of zero tries once.
///
/// # Errors
/// See [`RecvError`]; never `WouldBlock`, which becomes `TimedOut`.
pub fn recv_timeout(
    sock: BorrowedFd<'_>,
    buf: &mut [u8],
    fds: &mut ReceivedFds,
    timeout: Option<Duration>,
) -> Result<Message, RecvError> {
    let deadline = Deadline::after(timeout);
    loop {
        match recv(sock, buf, fds) {
            Err(RecvError::WouldBlock) => {}
            done => return done,
        }
        if deadline.is_over() {
            return Err(RecvError::TimedOut);
        }
        wait(sock, libc::POLLIN, deadline.left()).map_err(RecvError::Os)?;
    }
}

struct Received {
    message: Message,
    any_control: bool,
}

fn recv_once(
    sock: BorrowedFd<'_>,
    buf: &mut [u8],
    fds: &mut ReceivedFds,
    flags: i32,
) -> Result<Received, i32> {
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: `msghdr` is plain data for which all zeroes is the empty value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    let (control, room) = fds.control_mut();
    message.msg_control = control;
    message.msg_controllen = room as _;

    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` points to `buf` and to the control buffer of `fds`, both exclusively
    // borrowed for the call and as long as stated.
    let len = unsafe { libc::recvmsg(sock.as_raw_fd(), &raw mut message, flags) };
    if len < 0 {
        return Err(last_errno());
    }
    #[allow(clippy::unnecessary_cast)] // u32 on musl
    let control_len = message.msg_controllen as usize;
    // SAFETY: `recvmsg` has just filled the control buffer, and this is its only reading.
    let any_control = unsafe { fds.adopt(control_len) };
    Ok(Received {
        message: Message {
            len: len.unsigned_abs(),
            payload_truncated: message.msg_flags & libc::MSG_TRUNC != 0,
            fds_truncated: message.msg_flags & libc::MSG_CTRUNC != 0,
        },
        any_control,
    })
}

/// After a read of no bytes: tells a message without bytes from the end.
#[cold]
fn empty_or_end(sock: BorrowedFd<'_>, received: Received) -> RecvError {
    if received.any_control || received.message.fds_truncated {
        return RecvError::EmptyMessage;
    }
    match is_hung_up(sock) {
        Err(errno) => RecvError::Os(errno),
        Ok(false) => RecvError::EmptyMessage,
        // The end comes after all that is queued, so with something queued it was not the end.
        Ok(true) if is_something_queued(sock) => RecvError::EmptyMessage,
        Ok(true) => RecvError::Eof,
    }
}

fn is_hung_up(sock: BorrowedFd<'_>) -> Result<bool, i32> {
    let events = wait(sock, libc::POLLRDHUP, Some(Duration::ZERO))?;
    Ok(events & (libc::POLLRDHUP | libc::POLLHUP) != 0)
}

/// Whether bytes are queued anywhere, or fds in the next message, which may itself have no bytes.
fn is_something_queued(sock: BorrowedFd<'_>) -> bool {
    queued_bytes(sock).is_ok_and(|bytes| bytes > 0) || is_control_next(sock)
}

/// Whether the next message has fds. Looks at it without room for them: none is installed, and the
/// kernel says with `MSG_CTRUNC` that it had some.
#[must_use]
pub fn is_control_next(sock: BorrowedFd<'_>) -> bool {
    peek_once(sock, &mut []).is_ok_and(|(_, flags)| flags & libc::MSG_CTRUNC != 0)
}

/// Copies the bytes of the next message and leaves it where it is; how many there are, 0 too for
/// one without bytes. No fd of it is installed.
///
/// # Errors
/// `WouldBlock`, and the errors of recvmsg(2).
pub fn peek(sock: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize, RecvError> {
    peek_once(sock, buf).map(|(len, _)| len).map_err(RecvError::from_errno)
}

/// Bytes of the next message, and flags.
fn peek_once(sock: BorrowedFd<'_>, buf: &mut [u8]) -> Result<(usize, i32), i32> {
    let mut resets = 0;
    loop {
        let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        // SAFETY: `msghdr` is plain data for which all zeroes is the empty value.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        // SAFETY: `message` points to `buf`, exclusively borrowed for the call, and has no buffer
        // for control messages.
        let len = unsafe { libc::recvmsg(sock.as_raw_fd(), &raw mut message, flags) };
        match usize::try_from(len) {
            Ok(len) => return Ok((len, message.msg_flags)),
            Err(_) => match last_errno() {
                libc::EINTR => {}
                // Reported once, ahead of the messages that the peer sent before it died.
                libc::ECONNRESET if resets < RESET_RETRIES => resets += 1,
                errno => return Err(errno),
            },
        }
    }
}
