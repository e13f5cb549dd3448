//! The layer's lines on stderr: one for each kind of news, once per process.
//! Must never raise SIGPIPE, fail, or print a line for each handle.

use crate::limits::LINE_BYTES;
use fdbroker_scm::write_stderr;
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
    write_stderr(line.as_bytes());
}
