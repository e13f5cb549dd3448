//! Lines on stderr: one for each call that cannot be made on a virtual fd, once per process.
//! Must never allocate, take a lock or raise SIGPIPE.

use crate::limits::LINE_BYTES;
use crate::raw;
use fdbroker_scm::write_stderr;
use std::io::{Cursor, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Says nothing from now on.
pub fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// Says that the call is not made on virtual fds, unless that was said of it before. Calls are told
/// apart by `index`, below 64.
pub fn refused(index: usize, name: &str) {
    static SAID: AtomicU64 = AtomicU64::new(0);
    let bit = 1 << index;
    if SAID.fetch_or(bit, Ordering::Relaxed) & bit != 0 || IS_QUIET.load(Ordering::Relaxed) {
        return;
    }
    let mut line = [0; LINE_BYTES];
    let mut cursor = Cursor::new(&mut line[..]);
    // What does not fit is cut off.
    let _ = writeln!(
        cursor,
        "fdbroker[{}]: {name} of a virtual fd answers EBADF: such a number can be closed, duplicated, sent or imported",
        raw::getpid()
    );
    let length = cursor.position() as usize;
    write_stderr(&line[..length]);
}
