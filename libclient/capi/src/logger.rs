//! The log of a C program: lines on stderr, by the level in FDBROKER_LOG. The logger of a Rust
//! program stays in place. Must never raise SIGPIPE, take a lock, or mix with the program's own
//! output.

use crate::limits::LOG_LINE_BYTES;
use fdbroker_scm::{know_stderr, write_stderr};
use log::{LevelFilter, Log, Metadata, Record};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

struct Stderr;

static STDERR: Stderr = Stderr;

/// Installs the logger, once per process; stderr is what it is now. The first caller does it, and
/// nobody waits for it: a child of fork(2) would for ever, for a thread that it does not have.
pub(crate) fn install() {
    static IS_BEGUN: AtomicBool = AtomicBool::new(false);
    // Each time: a child may have another one, and open a context of its own.
    know_stderr();
    if IS_BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    let asked = std::env::var("FDBROKER_LOG").unwrap_or_default();
    let level = level_of(&asked);
    if log::set_logger(&STDERR).is_err() {
        // The Rust program around this library has a logger.
        return;
    }
    log::set_max_level(level.unwrap_or(LevelFilter::Warn));
    if level.is_none() {
        log::warn!("FDBROKER_LOG={asked}: write error, warn, info, debug or off; it is warn now");
    }
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
    write_stderr(&line.bytes[..=line.len]);
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
