//! The demo's rank processes as their parent sees them: started, told what to do, heard, ended. Must never
//! wait without a bound or overlook a death, and touches its own children only.

use super::control::{Command, Report};
use super::plan::{Plan, Way};
use crate::error::{Context, Error, Result};
use crate::private_broker::{SELF, end_now, pid_of, wait_bounded};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

/// Longest time a rank may take to end once it has nothing more to do or is being asked to end.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Most bytes of a report's line: the longest is an error message.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Bytes read from a rank at a time.
const READ_BYTES: usize = 4096;

/// All ranks of one way. Those that still run when this is dropped are killed.
#[derive(Debug)]
pub struct Ranks {
    ranks: Vec<Rank>,
}

#[derive(Debug)]
struct Rank {
    number: u32,
    child: Child,
    /// Closed: the rank is to end.
    commands: Option<ChildStdin>,
    /// `None` once it has ended.
    reports: Option<ChildStdout>,
    line: Vec<u8>,
    released: bool,
}

impl Ranks {
    /// Starts all of them. `socket` is the broker's, for the way through it.
    pub fn start(plan: &Plan, way: Way, socket: Option<&Path>) -> Result<Self> {
        let text = serde_json::to_string(plan)
            .map_err(|cause| Error::Other(format!("cannot write the plan: {cause}")))?;
        let mut all = Ranks { ranks: Vec::new() };
        for number in 0..plan.ranks {
            all.ranks.push(Rank::start(number, way, &text, socket)?);
        }
        Ok(all)
    }

    /// Their processes, by rank.
    pub fn pids(&self) -> Vec<Pid> {
        self.ranks.iter().map(|rank| pid_of(&rank.child)).collect()
    }

    /// Tells every rank to go on.
    pub fn tell(&mut self, command: Command) -> Result<()> {
        let line = serde_json::to_string(&command)
            .map_err(|cause| Error::Other(format!("cannot write a command: {cause}")))?;
        for rank in &mut self.ranks {
            rank.tell(&line)?;
        }
        Ok(())
    }

    /// What the ranks have reported, after waiting for something at most until `until`; empty when
    /// nothing came, or when `also` became readable.
    pub fn reports(&mut self, also: BorrowedFd<'_>, until: Instant) -> Result<Vec<(u32, Report)>> {
        self.wait(also, until)?;
        let mut reports = Vec::new();
        for rank in &mut self.ranks {
            rank.read(&mut reports)?;
        }
        Ok(reports)
    }

    fn wait(&self, also: BorrowedFd<'_>, until: Instant) -> Result<()> {
        let mut entries = vec![PollFd::new(also, PollFlags::POLLIN)];
        let pipes = self.ranks.iter().filter_map(|rank| rank.reports.as_ref());
        entries.extend(pipes.map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
        let left = until.saturating_duration_since(Instant::now());
        // Rounded up, so that what is due at `until` is due when this returns.
        let left = PollTimeout::try_from(left + Duration::from_millis(1));
        match poll(&mut entries, left.unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(cause) => Err(cause).context(|| "wait for the ranks"),
        }
    }

    /// Waits until all have ended by themselves, with success.
    pub fn finish(mut self) -> Result<()> {
        for rank in &mut self.ranks {
            rank.commands = None;
        }
        for rank in &mut self.ranks {
            match wait_bounded(&mut rank.child, END_LIMIT) {
                Some(status) if status.success() => {}
                Some(status) => return Err(rank.error(format!("ended: {status}"))),
                None => return Err(rank.error("does not end".into())),
            }
        }
        Ok(())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            end_now(&mut rank.child);
        }
    }
}

impl Rank {
    fn start(number: u32, way: Way, plan: &str, socket: Option<&Path>) -> Result<Self> {
        let mut command = std::process::Command::new(SELF);
        let way = match way {
            Way::Broker => "broker",
            Way::Direct => "direct",
        };
        command.arg0("fdbroker").args(["demo-rank", &number.to_string(), way, plan]);
        if let Some(socket) = socket {
            command.env("FDBROKER_SOCKET", socket);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Out of the terminal's foreground group: on Ctrl-C the parent ends them in order.
        command.process_group(0);
        crate::signals::wake_when_orphaned(&mut command);
        let mut child = command.spawn().context(|| format!("start rank {number}"))?;
        let commands = child.stdin.take();
        let reports = child.stdout.take();
        let rank = Rank { number, child, commands, reports, line: Vec::new(), released: false };
        if let Some(pipe) = &rank.reports {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
                .context(|| "make a pipe non-blocking")?;
        }
        Ok(rank)
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let Some(pipe) = &mut self.commands else { return Ok(()) };
        match pipe.write_all(format!("{line}\n").as_bytes()) {
            // It has ended: its own end of the reports says more.
            Err(cause) if cause.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => other.context(|| format!("tell rank {} to go on", self.number)),
        }
    }

    fn read(&mut self, reports: &mut Vec<(u32, Report)>) -> Result<()> {
        let mut bytes = [0; READ_BYTES];
        while let Some(pipe) = &mut self.reports {
            match pipe.read(&mut bytes) {
                Ok(0) => {
                    self.reports = None;
                    return self.ended();
                }
                Ok(count) => self.take_lines(&bytes[..count], reports)?,
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => {
                    return Err(cause).context(|| format!("hear from rank {}", self.number));
                }
            }
        }
        Ok(())
    }

    fn take_lines(&mut self, bytes: &[u8], reports: &mut Vec<(u32, Report)>) -> Result<()> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() > MAX_LINE_BYTES {
                return Err(self.error("reports a line without end".into()));
            }
            if self.line.ends_with(b"\n") {
                let report = serde_json::from_slice(&self.line)
                    .map_err(|cause| self.error(format!("makes no sense: {cause}")))?;
                self.line.clear();
                match report {
                    Report::Failed { message } => return Err(self.error(message)),
                    report => {
                        self.released |= report == Report::Released;
                        reports.push((self.number, report));
                    }
                }
            }
        }
        Ok(())
    }

    /// Its reports have ended: in order after it released everything, else by its death.
    fn ended(&mut self) -> Result<()> {
        if self.released {
            return Ok(());
        }
        let status = wait_bounded(&mut self.child, END_LIMIT);
        let how = status.map_or("closed its output".into(), |status| format!("ended: {status}"));
        Err(self.error(how))
    }

    fn error(&self, message: String) -> Error {
        Error::Other(format!("rank {} (pid {}): {message}", self.number, self.child.id()))
    }
}
