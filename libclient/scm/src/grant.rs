//! Sending the daemon's grants through the `sendfd` crate.
//! It must never be enabled in a process that does not ignore SIGPIPE, nor be used to receive:
//! `sendfd` hides truncation and sets no close-on-exec.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::os::unix::net::UnixDatagram;

use sendfd::SendWithFd;

use crate::error::SendError;
use crate::send::{check, send};

/// Sends one message of `bytes` (at least 1) and `fds` (0 to [`MAX_FDS`](crate::MAX_FDS)), all or
/// nothing, like [`send`], but through `sendfd`, which passes no flags. So the caller's duties are:
///
/// - the process **ignores SIGPIPE** (Rust programs do from the start; libraries cannot know).
///   Kernel 6.18 raises it for streams only, but send(2) promises it for SEQPACKET too;
/// - `sock` is **non-blocking**, else this blocks while its buffer is full.
///
/// `sendfd` makes one short-lived allocation; nothing is allocated for a message without fds.
///
/// # Errors
/// See [`SendError`]; in every case nothing was sent.
pub fn send_grant(
    sock: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), SendError> {
    check(bytes, fds)?;
    if fds.is_empty() {
        return send(sock, bytes, fds);
    }
    debug_assert!(is_non_blocking(sock), "send_grant needs a non-blocking socket");
    // SAFETY: `sock` is open for the whole call, and `ManuallyDrop` keeps it from being closed.
    // It is no datagram socket, but only `sendmsg` is called on it.
    let socket = ManuallyDrop::new(unsafe { UnixDatagram::from_raw_fd(sock.as_raw_fd()) });
    loop {
        match socket.send_with_fd(bytes, raw(fds)) {
            Ok(sent) => {
                debug_assert_eq!(sent, bytes.len(), "SEQPACKET sends all or nothing");
                return Ok(());
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(errno) => return Err(SendError::from_errno(errno)),
                None => return Err(SendError::Os(libc::EIO)),
            },
        }
    }
}

fn raw<'a>(fds: &'a [BorrowedFd<'_>]) -> &'a [RawFd] {
    // SAFETY: `BorrowedFd` is documented as `repr(transparent)` over a host file descriptor.
    unsafe { std::slice::from_raw_parts(fds.as_ptr().cast(), fds.len()) }
}

fn is_non_blocking(sock: BorrowedFd<'_>) -> bool {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(sock, FcntlArg::F_GETFL)
        .is_ok_and(|flags| OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK))
}
