//! The bounds of the C ABI; library and wire have their own.
//! Must never hold a bound without its reason.

use std::time::Duration;

/// The most items in one call: a rank's working set is a million buffers; far more is a garbage
/// number.
pub const MAX_COUNT: usize = 1 << 24;

/// The largest struct that a caller may have. Structs here have 32 to 128 bytes and grow by a field
/// a year; far more is an uninitialised `struct_size`.
pub const MAX_STRUCT_BYTES: u64 = 4096;

/// Bytes of the last error's text, its NUL included: what was tried with a socket path (108), a cap
/// and its holder, and the remedy (at most 200). A longer text is cut.
pub const LAST_ERROR_BYTES: usize = 1024;

/// How long a change of a callback waits for the one that runs. Callbacks take microseconds to
/// milliseconds; one that hangs must not hang another thread for ever.
pub const CALLBACK_TIMEOUT: Duration = Duration::from_secs(10);

/// Notices that wait for fdbroker_dispatch() while more FDBROKER_NOTICE_RECLAIM are kept. All
/// others are bounded by what the client has, and by how often its broker dies; these the broker
/// repeats.
pub const RECLAIMS_KEPT: usize = 4096;

/// Notices that wait for fdbroker_notice_next(): 256 KiB, and more than a program that reads them
/// lets gather. Beyond it the oldest are lost, and counted.
pub const NOTICES_KEPT: usize = 4096;

/// Bytes of one line of the log; a longer line is cut. Below PIPE_BUF (4096), so that lines of
/// ranks that share a pipe do not mix (pipe(7)).
pub const LOG_LINE_BYTES: usize = 2048;

/// Address space of an arena of host memory: a rank's share of a large node (64 ranks, 4 TiB). It
/// costs nothing until it is written to.
pub const ARENA_BYTES: u64 = 64 << 30;

/// The smallest arena, where halving it for lack of address space (RLIMIT_AS) ends: a smaller one
/// is of no use.
pub const ARENA_LEAST_BYTES: usize = 64 << 20;

const _: () = assert!(LAST_ERROR_BYTES < LOG_LINE_BYTES && LOG_LINE_BYTES <= libc::PIPE_BUF);
const _: () = assert!((ARENA_LEAST_BYTES as u64) < ARENA_BYTES);
