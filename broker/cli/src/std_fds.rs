//! Which of stdin and stdout were closed when the process began. Rust's runtime opens /dev/null in
//! their place before `main`: what is read there is empty, what is written there is lost. Must
//! never do more than look: it runs before all else.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};

static ARE_CLOSED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

// SAFETY: the C library calls what stands there before the runtime, and it takes no arguments.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look;

extern "C" fn look() {
    for (fd, is_closed) in (0..).zip(&ARE_CLOSED) {
        // SAFETY: it changes nothing, whatever the number is.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        is_closed.store(flags < 0, Ordering::Relaxed);
    }
}

/// Refuses to read from a closed stdin.
pub fn check_stdin() -> Result<()> {
    check(0, "standard input is closed; for nothing to read write: < /dev/null")
}

/// Refuses to write to a closed stdout.
pub fn check_stdout() -> Result<()> {
    check(1, "standard output is closed; for nobody to read it write: > /dev/null")
}

fn check(fd: usize, what: &str) -> Result<()> {
    let is_closed = ARE_CLOSED[fd].load(Ordering::Relaxed);
    if is_closed { Err(Error::Other(what.into())) } else { Ok(()) }
}
