//! What the demo's parent and its ranks tell each other: one JSON object per line, commands on a
//! rank's stdin, reports on its stdout. Must never carry memory or fds: they take the way that is
//! being shown.

use crate::error::{Error, Result, os, other};
use crate::plan::{Plan, Way};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, StdinLock, Write};
use std::time::{Duration, Instant};

/// Shortest time between two reports of progress: often enough for a bar, too seldom to cost
/// anything.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// What a rank process is started for: its only argument, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct Assignment {
    /// The rank's number, from 0.
    pub number: u32,
    /// How the ranks share memory.
    pub way: Way,
    /// The same for all ranks.
    pub plan: Plan,
}

/// From the parent: do the next part. A closed stdin means: end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Make the buffers and share them.
    Register,
    /// Open and check every buffer of every other rank, and leave the marks.
    Open,
    /// Check the marks in the rank's own buffers.
    Check,
    /// Let go of everything and end.
    Release,
}

/// What a rank tells its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// Ends the first part: the rank is connected.
    Connected,
    /// Ends [`Command::Register`]: the others can open the buffers.
    Registered,
    /// So many buffers are open by now.
    Progress(u64),
    /// Ends [`Command::Open`]: every buffer was opened, or counted as a failure.
    Opened(Opened),
    /// Ends [`Command::Check`]: so many words were wrong.
    Checked(u64),
    /// Ends [`Command::Release`].
    Released,
    /// The direct way: this process has no free fd.
    OutOfFds,
    /// The rank cannot go on, for this reason.
    Failed(String),
}

/// What a rank has seen while it opened the other ranks' buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Number of buffers that it opened.
    pub buffers: u64,
    /// Bytes read and compared.
    pub verified_bytes: u64,
    /// Number of 8-byte words that were wrong.
    pub mismatches: u64,
    /// Buffers that could not be opened.
    pub failures: u64,
    /// Why the first of them could not.
    pub first_failure: Option<String>,
    /// Most fds of shared memory that the rank had at a time, by its own count.
    pub fds_peak: u64,
}

impl Report {
    /// Number of wrong words; 0 for a report that counts none.
    pub fn mismatches(&self) -> u64 {
        match self {
            Report::Opened(opened) => opened.mismatches,
            Report::Checked(mismatches) => *mismatches,
            _ => 0,
        }
    }
}

/// A rank's end of its two pipes to the parent. Nothing else may be printed on stdout.
#[derive(Debug)]
pub struct Link {
    commands: StdinLock<'static>,
    next_progress: Instant,
}

impl Link {
    /// Takes over stdin and stdout.
    pub fn new() -> Self {
        Link { commands: std::io::stdin().lock(), next_progress: Instant::now() }
    }

    /// Reports the end of a part, and waits for the command to begin the next one.
    pub fn report_and_expect(&mut self, report: &Report, expected: Command) -> Result<()> {
        self.report(report)?;
        let mut line = String::new();
        if self.commands.read_line(&mut line).map_err(os("hear the parent"))? == 0 {
            return other("the demo was ended");
        }
        match serde_json::from_str::<Command>(&line) {
            Ok(command) if command == expected => Ok(()),
            _ => other(format!("{:?} came where {expected:?} was due", line.trim())),
        }
    }

    /// Reports. The parent reads all the time, so this does not wait.
    pub fn report(&self, report: &Report) -> Result<()> {
        let mut line = to_json(report)?;
        line.push('\n');
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
        written.map_err(os("report to the parent"))
    }

    /// Reports progress, now and then.
    pub fn progress(&mut self, opened: u64) -> Result<()> {
        let now = Instant::now();
        if now < self.next_progress {
            return Ok(());
        }
        self.next_progress = now + PROGRESS_INTERVAL;
        self.report(&Report::Progress(opened))
    }
}

/// One line of JSON, without the line's end.
pub fn to_json(message: &impl Serialize) -> Result<String> {
    serde_json::to_string(message).map_err(|cause| Error::Other(format!("no JSON: {cause}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_when_written_and_read_then_the_same_and_on_one_line() {
        let opened = Opened { buffers: 1, verified_bytes: u64::MAX, ..Opened::default() };
        for report in
            [Report::Opened(opened), Report::Released, Report::Failed("two\nlines".into())]
        {
            let line = to_json(&report).expect("plain data");
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Report>(&line).expect("own format"), report);
        }
    }
}
