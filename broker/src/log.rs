//! The log: env_logger on stderr, with the journal's `<N>` priorities when nobody looks on from a
//! terminal. Must never grow with what a client sends: lines about bad input are bounded per
//! client, per uid and minute.

use crate::limits::{BAD_INPUT_LINES_PER_UID, BAD_INPUT_UIDS};
use log::{Level, LevelFilter};
use std::collections::HashMap;
use std::io::{IsTerminal, Write};

/// Starts the log, once per process; a second call changes nothing.
pub fn start(level: LevelFilter) {
    let mut builder = env_logger::Builder::new();
    // What is shown is decided below, so that it can be changed at run time.
    builder.filter_level(LevelFilter::Trace);
    if !std::io::stderr().is_terminal() {
        builder
            .format(|out, record| writeln!(out, "<{}>{}", priority(record.level()), record.args()));
    }
    if builder.try_init().is_ok() {
        log::set_max_level(level);
    }
}

/// The journal's priority (sd-daemon(3)).
fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

/// Counts lines about bad input. One period is a minute.
#[derive(Debug, Default)]
pub struct BadInput {
    period: u64,
    lines: HashMap<u32, u32>,
    dropped: u64,
}

impl BadInput {
    /// Whether a line about `uid` may be written at `now_us`; if not, it is counted, and the count
    /// is named when the minute is over.
    pub fn allows(&mut self, now_us: u64, uid: u32) -> bool {
        const PERIOD_US: u64 = 60_000_000;
        let period = now_us / PERIOD_US;
        if period != self.period {
            if self.dropped > 0 {
                log::warn!("{} further lines about bad input were left out", self.dropped);
            }
            *self = BadInput { period, ..Self::default() };
        }
        let is_known = self.lines.contains_key(&uid);
        if is_known || self.lines.len() < BAD_INPUT_UIDS {
            let lines = self.lines.entry(uid).or_default();
            *lines += 1;
            if *lines <= BAD_INPUT_LINES_PER_UID {
                return true;
            }
        }
        self.dropped += 1;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_input_when_one_uid_floods_then_others_still_have_lines() {
        let mut log = BadInput::default();
        let allowed = (0..1000).filter(|_| log.allows(5, 1000)).count();
        assert_eq!(allowed, BAD_INPUT_LINES_PER_UID as usize);
        assert!(log.allows(5, 1001));
        assert!(log.allows(60_000_000, 1000), "a new minute");
    }

    #[test]
    fn bad_input_when_many_uids_then_memory_is_bounded() {
        let mut log = BadInput::default();
        let allowed = (0..10_000).filter(|uid| log.allows(5, *uid)).count();
        assert_eq!(allowed, BAD_INPUT_UIDS);
        assert_eq!(log.lines.len(), BAD_INPUT_UIDS);
    }
}
