//! The layers' lines on stderr: one for each kind of news, once per process.
//! Must never raise SIGPIPE, fail, or print a line for each handle.

use crate::limits::LINE_BYTES;
use fdbroker_scm::write_stderr;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU32, Ordering};

/// One layer's lines, which begin with its name.
#[derive(Debug)]
pub struct Voice {
    name: &'static str,
    said: AtomicU32,
}

impl Voice {
    /// `name` is what stands before the process's number.
    pub const fn new(name: &'static str) -> Self {
        Voice { name, said: AtomicU32::new(0) }
    }

    /// Prints the line, unless one of this kind was printed before or FDBROKER_LOG is `off`.
    /// `news`: the kind, one bit.
    pub fn once(&self, news: u32, text: impl Display) {
        let is_said = self.said.fetch_or(news, Ordering::Relaxed) & news != 0;
        if !is_said && std::env::var_os("FDBROKER_LOG").is_none_or(|level| level != "off") {
            self.line(text);
        }
    }

    fn line(&self, text: impl Display) {
        let mut line = String::new();
        // A write to a string cannot fail.
        let _ = write!(line, "{}[{}]: {text}", self.name, std::process::id());
        line.truncate(line.floor_char_boundary(LINE_BYTES - 1));
        line.push('\n');
        write_stderr(line.as_bytes());
    }
}
