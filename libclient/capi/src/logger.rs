//! The log of a C program: lines on stderr, by the level in FDBROKER_LOG. The logger of a Rust program stays in place.
//! Must never raise SIGPIPE, take a lock, or mix with the program's own output.

use crate::limits::LOG_LINE_BYTES;
use log::{LevelFilter, Log, Metadata, Record};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::fmt::{self, Write};
use std::sync::Once;

struct Stderr;

static STDERR: Stderr = Stderr;

/// Installs the logger, once per process.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let asked = std::env::var("FDBROKER_LOG").unwrap_or_default();
        let level = level_of(&asked);
        if log::set_logger(&STDERR).is_err() {
            // The Rust program around this library has a logger.
            return;
        }
        log::set_max_level(level.unwrap_or(LevelFilter::Warn));
        if level.is_none() {
            log::warn!(
                "FDBROKER_LOG={asked}: write error, warn, info, debug or off; it is warn now"
            );
        }
    });
}

/// The level of this name; `None`: there is no such level.
fn level_of(text: &str) -> Option<LevelFilter> {
    match text {
        "" | "warn" => Some(LevelFilter::Warn),
        "off" => Some(LevelFilter::Off),
        "error" => Some(LevelFilter::Error),
        "info" => Some(LevelFilter::Info),
        "debug" => Some(LevelFilter::Debug),
        _ => None,
    }
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = match record.level() {
                log::Level::Error => "error",
                log::Level::Warn => "warn",
                log::Level::Info => "info",
                log::Level::Debug | log::Level::Trace => "debug",
            };
            say(format_args!("{level}: {}", record.args()));
        }
    }

    fn flush(&self) {}
}

/// Prints the line `fdbroker[PID]: TEXT` to stderr in one write(2).
pub(crate) fn say(text: impl fmt::Display) {
    let mut line = Line { bytes: [0; LOG_LINE_BYTES], len: 0 };
    // An error means that the text was cut; the first part is printed.
    let _ = write!(line, "fdbroker[{}]: {text}", std::process::id());
    line.bytes[line.len] = b'\n';
    without_sigpipe(|| {
        // SAFETY: `len + 1` bytes are initialised. What stderr cannot take is lost: a log has nobody to tell.
        unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len + 1) };
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

struct Line {
    bytes: [u8; LOG_LINE_BYTES],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LOG_LINE_BYTES - 1 - self.len;
        let cut = text.floor_char_boundary(room);
        self.bytes[self.len..self.len + cut].copy_from_slice(&text.as_bytes()[..cut]);
        self.len += cut;
        if cut == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_when_unset_or_unknown_then_warn() {
        assert_eq!(level_of(""), Some(LevelFilter::Warn));
        assert_eq!(level_of("debug"), Some(LevelFilter::Debug));
        assert_eq!(level_of("loud"), None);
    }
}
