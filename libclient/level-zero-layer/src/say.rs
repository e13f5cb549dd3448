//! The layer's lines on stderr: one for each kind of news, once per process.
//! Must never raise SIGPIPE, fail, or print a line for each handle.

use crate::limits::LINE_BYTES;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU32, Ordering};

/// The kinds of news, one bit each.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum News {
    NoBroker = 1,
    BrokerLost = 2,
    NotRegistered = 4,
    NotOpened = 8,
    OtherNode = 16,
}

/// Prints the line, unless one of this kind was printed before or FDBROKER_LOG is `off`.
pub fn once(news: News, text: impl Display) {
    static SAID: AtomicU32 = AtomicU32::new(0);
    let bit = news as u32;
    let is_said = SAID.fetch_or(bit, Ordering::Relaxed) & bit != 0;
    if !is_said && std::env::var_os("FDBROKER_LOG").is_none_or(|level| level != "off") {
        line(text);
    }
}

fn line(text: impl Display) {
    let mut line = String::new();
    // A write to a string cannot fail.
    let _ = write!(line, "fdbroker-level-zero[{}]: {text}", std::process::id());
    line.truncate(line.floor_char_boundary(LINE_BYTES - 1));
    line.push('\n');
    without_sigpipe(|| {
        // SAFETY: a live string and its length. What stderr cannot take is lost: a log has nobody to tell.
        unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
    });
}

/// Runs `body` with SIGPIPE blocked on this thread, and removes the one that it caused: pthread_sigmask(3),
/// sigtimedwait(2).
fn without_sigpipe(body: impl FnOnce()) {
    let pipe = SigSet::from(Signal::SIGPIPE);
    let was_pending = is_pending();
    let Ok(before) = pipe.thread_swap_mask(SigmaskHow::SIG_BLOCK) else { return };
    body();
    if !was_pending && is_pending() {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both structs live over the call; it takes a signal that is pending for this thread.
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
