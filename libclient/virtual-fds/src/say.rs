//! Lines on stderr: one for each call that cannot be made on a virtual fd, once per process.
//! Must never allocate, take a lock or raise SIGPIPE.

use crate::limits::LINE_BYTES;
use crate::raw;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::io::{Cursor, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Says nothing from now on.
pub fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// Says that the call is not made on virtual fds, unless that was said of it before. Calls are told apart by `index`, below 64.
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
    without_sigpipe(|| raw::write(libc::STDERR_FILENO, &line[..length]));
}

/// Runs `body` with SIGPIPE blocked on this thread, and takes the one that it caused: pthread_sigmask(3), sigtimedwait(2).
fn without_sigpipe(body: impl FnOnce()) {
    let pipe = SigSet::from(Signal::SIGPIPE);
    let was_pending = is_pending();
    let Ok(before) = pipe.thread_swap_mask(SigmaskHow::SIG_BLOCK) else { return };
    body();
    if !was_pending && is_pending() {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both live over the call; it takes a signal that is pending for this thread.
        unsafe { libc::sigtimedwait(pipe.as_ref(), std::ptr::null_mut(), &raw const now) };
    }
    // The mask came from the kernel a moment ago: setting it again cannot fail.
    let _ = before.thread_set_mask();
}

fn is_pending() -> bool {
    let mut pending = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigpending(2) fills the set when it answers 0, and sigismember(3) reads it then.
    unsafe {
        libc::sigpending(pending.as_mut_ptr()) == 0
            && libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1
    }
}
