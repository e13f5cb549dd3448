//! A rank's end of its two pipes to the parent. Must never print anything else on stdout, nor outlive the
//! parent: a closed stdin ends the rank.

use super::control::{Command, Report};
use crate::error::{Context, Error, Result};
use std::io::{BufRead, StdinLock, Write};
use std::time::{Duration, Instant};

/// At most so many reports of progress: enough for a bar, too few to cost anything.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Commands in, reports out.
#[derive(Debug)]
pub struct Link {
    commands: StdinLock<'static>,
    next_progress: Instant,
}

impl Link {
    /// On stdin and stdout.
    pub fn new() -> Self {
        Link { commands: std::io::stdin().lock(), next_progress: Instant::now() }
    }

    /// Reports, and waits for the next command.
    pub fn report_and_wait(&mut self, report: &Report) -> Result<Command> {
        self.report(report)?;
        let mut line = String::new();
        let read = self.commands.read_line(&mut line).context(|| "hear the parent")?;
        match read {
            0 => Err(Error::Other("the demo was ended".into())),
            _ => serde_json::from_str(&line)
                .map_err(|cause| Error::Other(format!("`{}` is no command: {cause}", line.trim()))),
        }
    }

    /// The same, where only one command makes sense.
    pub fn report_and_expect(&mut self, report: &Report, expected: Command) -> Result<()> {
        match self.report_and_wait(report)? {
            command if command == expected => Ok(()),
            other => Err(Error::Other(format!("{other:?} came where {expected:?} was due"))),
        }
    }

    /// Reports. The pipe is read all the time, so this does not wait.
    pub fn report(&mut self, report: &Report) -> Result<()> {
        let mut line = serde_json::to_string(report)
            .map_err(|cause| Error::Other(format!("cannot write a report: {cause}")))?;
        line.push('\n');
        let mut stdout = std::io::stdout().lock();
        stdout
            .write_all(line.as_bytes())
            .and_then(|()| stdout.flush())
            .context(|| "report to the parent")
    }

    /// Reports progress, now and then.
    pub fn progress(&mut self, opened: u64) -> Result<()> {
        let now = Instant::now();
        if now < self.next_progress {
            return Ok(());
        }
        self.next_progress = now + PROGRESS_INTERVAL;
        self.report(&Report::Progress { opened })
    }
}
