//! Lines on stderr from libraries that live in other people's programs. Must never raise SIGPIPE,
//! allocate, take a lock or fail: what stderr cannot take is lost.

use crate::identity::File;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// What stderr was when somebody last said so; 0: nobody has. `u64::MAX`: it was closed.
static KNOWN: AtomicU64 = AtomicU64::new(0);

/// Stderr is what it is now: a program may close it later, and open a file of its own there.
pub fn know_stderr() {
    KNOWN.store(stderr_now(), Ordering::Relaxed);
}

fn stderr_now() -> u64 {
    // SAFETY: a number to be looked at, open or not.
    let file = File::of(unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) });
    file.map_or(u64::MAX, File::mark)
}

fn is_known() -> bool {
    let now = stderr_now();
    now != u64::MAX && [0, now].contains(&KNOWN.load(Ordering::Relaxed))
}

/// Writes the bytes to stderr by one write(2), unless something else has its number by now.
pub fn write_stderr(bytes: &[u8]) {
    if !is_known() {
        return;
    }
    without_sigpipe(|| {
        // SAFETY: live bytes and their count.
        unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
    });
}

/// Runs `body` with SIGPIPE blocked on this thread, and takes the one that it caused:
/// pthread_sigmask(3), sigtimedwait(2).
fn without_sigpipe(body: impl FnOnce()) {
    let pipe = SigSet::from(Signal::SIGPIPE);
    let was_pending = is_pending();
    let Ok(before) = pipe.thread_swap_mask(SigmaskHow::SIG_BLOCK) else { return };
    body();
    if !was_pending && is_pending() {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both structs live over the call; it takes a signal that is pending for this
        // thread.
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
