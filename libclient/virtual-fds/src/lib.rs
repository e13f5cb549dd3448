//! Virtual fds: fd numbers that are good in any process of the node, for programs that pass fds by
//! number. Must never make a call slower or fail that has to do with none of them.
//!
//! A virtual fd is a number from 2^30 to 2^31-1 that no process has open. The broker mints it and
//! resolves it; a preloaded library installs a [`Source`] that asks the broker, and this crate
//! exports the C library's functions in whose place it stands. What they do with a virtual fd:
//!
//! | call | what happens |
//! |---|---|
//! | pidfd_getfd | a real fd, whatever the pidfd, with a lease |
//! | pidfd_open that answers ESRCH, in a program that uses the driver | a placeholder: readable, ESRCH to all but virtual fds |
//! | close, close_range | registrations of this process end; in a child of the owner nothing does |
//! | dup, dup2, dup3, fcntl F_DUPFD, F_DUPFD_CLOEXEC | a real fd, with a lease |
//! | sendmsg, sendmmsg with SCM_RIGHTS | a real fd for the time of the call |
//! | fstat, lseek, mmap, ioctl, poll, ppoll, fcntl F_GETFD, F_SETFD, F_GETFL | the same |
//! | others | EBADF, and one line on stderr for each call |
//!
//! _Fork, clone, and syscall(2) of fork, clone and clone3 run no handler of fork(3): the source is
//! told of the child.
//!
//! Duplicates of a granted fd share its lease, which ends with the last of them. An fd that is the
//! layer's own cannot be closed by mistake: `close` and `dup2` onto it answer EBADF, `close_range`
//! and `closefrom` leave it out. All of this holds for syscall(2), too. A child of vfork(2) has its
//! parent's memory but fds of its own: it gets nothing for a virtual fd, but the number goes on
//! over exec, and F_GETFD, F_SETFD, F_GETFL, FIOCLEX and FIONCLEX are answered.
//!
//! **For other numbers** a call does one compare and one look at a table without a lock, then the
//! system call. So it can be made before the library's constructor, in a signal handler and under a
//! driver's lock. The answers and errno are the C library's. Calls that wait can be cancelled
//! (pthread_cancel(3)) if they are poll, fcntl, read or write; close, sendmsg, sendmmsg, ppoll and
//! waitid are no cancellation points.
//!
//! **Layers** (tests/layers checks them): `limits <- raw <- inside, process, say <- held <- table
//! <- source <- calls <- syscall <- exports`.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "system calls take and give words, in which numbers of C's types stand as they are"
)]

mod calls;
mod exports;
mod held;
mod inside;
mod limits;
mod process;
mod raw;
mod say;
mod source;
mod syscall;
mod table;

pub use fdbroker_protocol::VirtualFd;
pub use held::Lease;
pub use limits::OWN_FDS_MOST;
pub use source::{Granted, Source, end_kept_leases, end_leases, inside, lease_of, let_go};

/// Tells the crate where fds come from. Until then a virtual fd is a number like any other, which
/// nobody has open. Returns `false` when there is a source already, which stays.
pub fn install(source: &'static dyn Source) -> bool {
    calls::child::look();
    source::install(source)
}
