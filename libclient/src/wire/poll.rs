//! Waiting for sockets: poll(2) and shutdown(2). Must never wait without a bound of the caller's.

use crate::interrupt::{note_signal, slice};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{Shutdown, setsockopt, shutdown};
use nix::sys::time::{TimeVal, TimeValLike};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Waits for `wanted` (hang-up and errors always count) up to `timeout`, rounded up to ms. Empty
/// when nothing came or a signal did.
pub(crate) fn poll_one(fd: BorrowedFd<'_>, wanted: PollFlags, timeout: Duration) -> PollFlags {
    let mut fds = [PollFd::new(fd, wanted)];
    poll_many(&mut fds, timeout);
    came(&fds[0])
}

/// The same for several; see [`came`] for what came.
pub(crate) fn poll_many(fds: &mut [PollFd<'_>], timeout: Duration) {
    let slice = slice(timeout);
    let is_cut = slice < timeout;
    let ms = slice.as_nanos().div_ceil(1_000_000);
    let timeout = PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX);
    // An error (EINTR, ENOMEM) leaves nothing in `revents`: the caller asks the program, looks at
    // the clock and goes on.
    let polled = poll(fds, timeout);
    if polled == Err(Errno::EINTR) || is_cut && polled == Ok(0) {
        note_signal();
    }
}

/// What came for one fd, unknown bits included.
pub(crate) fn came(fd: &PollFd<'_>) -> PollFlags {
    fd.revents().unwrap_or(PollFlags::POLLERR)
}

/// Makes reads that are to wait do so for `slice`. Where the system refuses that, they do not wait.
pub(crate) fn let_reads_wait(socket: BorrowedFd<'_>, slice: Duration) {
    let slice = TimeVal::microseconds(slice.as_micros().try_into().unwrap_or(i64::MAX));
    let _ = setsockopt(&socket, ReceiveTimeout, &slice)
        .and_then(|()| fcntl(socket, FcntlArg::F_GETFL))
        .map(|flags| OFlag::from_bits_retain(flags) - OFlag::O_NONBLOCK)
        .and_then(|flags| fcntl(socket, FcntlArg::F_SETFL(flags)));
}

/// Ends both directions, for every holder of the socket. That it is over already is no error.
pub(crate) fn shut_down(socket: BorrowedFd<'_>) {
    let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
}
