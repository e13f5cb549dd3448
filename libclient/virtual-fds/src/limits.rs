//! The bounds of virtual fds. Must never hold a bound without its reason.

use std::time::Duration;

/// Marks per segment of the table, as a power of two: a process with a thousand fds touches two
/// pages of one segment of 256 KiB, and all numbers below 2^30 fit into as many segments.
pub const SEGMENT_SHIFT: u32 = 15;

/// The most fds that a layer keeps for itself: a connection has two, its client an eventfd, and a
/// few clients at once (children of fork(2) make their own) are left room for; and 16 that the
/// program has closed.
pub const OWN_FDS_MOST: usize = 80;

/// Closes by signal handlers that are kept while the thread that they interrupt is inside a layer:
/// a call lasts microseconds, and its thread goes on only after the handlers.
pub const DEFERRED_CLOSES: usize = 64;

/// How long the thread of leases looks away after it has ended some: the fds of a tensor are closed
/// one after the other, some 50 to 100 us apart, and each wake-up costs its closer 2 to 5 us. A
/// lease that ends meanwhile ends so much later, or when the broker is short of it.
pub const ROW_PAUSE: Duration = Duration::from_millis(1);

/// The most fds in one message: SCM_MAX_FD of the kernel (include/net/scm.h).
pub const FDS_PER_MESSAGE: usize = 253;

/// The most bytes of control data that are looked at and copied: half a megabyte is far above any
/// net.core.optmem_max, with which the kernel refuses longer ones.
pub const CONTROL_BYTES: usize = 512 << 10;

/// The most messages of one sendmmsg(2): the kernel's UIO_MAXIOV.
pub const MESSAGES_PER_CALL: usize = 1024;

/// The most entries of one poll(2) that are copied. A process can name an fd twice, but a poll of
/// more entries than fds can be open at once (fs.nr_open, 1,048,576 by default) is refused by the
/// kernel.
pub const POLL_ENTRIES: usize = 1 << 20;

/// The most bytes of one line on stderr: below PIPE_BUF (pipe(7)), so that lines of several
/// processes do not mix.
pub const LINE_BYTES: usize = 256;

/// The fewest bytes that can show in which page size the memory comes: a whole number of pages of
/// 4, 16 and 64 KiB.
pub const PAGES_BYTES: usize = 64 << 10;

/// Arguments of a system call, syscall(2).
pub const ARGUMENTS: usize = 6;

const _: () = assert!(LINE_BYTES <= libc::PIPE_BUF && PAGES_BYTES.is_multiple_of(64 << 10));
