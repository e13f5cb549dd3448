//! The demo's rank processes as their parent sees them: started, told what to do, heard, ended.
//! Must never wait without a bound or overlook a death, and touches its own children only.

use crate::control::{Assignment, Command, Report, to_json};
use crate::error::{Error, Result, os, other};
use crate::host::Host;
use crate::plan::{Plan, Way};
use crate::sampler::{has_ended, pid_of};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Longest time a rank may take to end once it has nothing more to do or is being asked to end.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Between two looks at whether a rank has ended.
const END_LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// All ranks of one way. Those that still run when this is dropped are killed.
#[derive(Debug)]
pub struct Ranks {
    ranks: Vec<Rank>,
    heard: Receiver<(u32, Heard)>,
}

#[derive(Debug)]
struct Rank {
    number: u32,
    child: Child,
    /// `None`: closed, so that the rank ends.
    commands: Option<ChildStdin>,
    released: bool,
}

/// What a rank's stdout brings.
#[derive(Debug)]
enum Heard {
    Report(Report),
    /// A line that is no report.
    Nonsense(String),
    /// The end: the rank has closed it, or has died.
    End,
}

impl Ranks {
    /// Starts all of them. `socket` is the broker's, for the way through it.
    pub fn start(plan: &Plan, way: Way, socket: Option<&Path>, host: &dyn Host) -> Result<Self> {
        let (tell, heard) = channel();
        let mut all = Ranks { ranks: Vec::new(), heard };
        for number in 0..plan.ranks {
            let assignment = to_json(&Assignment { number, way, plan: plan.clone() })?;
            let mut command = host.rank(&assignment);
            if let Some(socket) = socket {
                command.env("FDBROKER_SOCKET", socket);
            }
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().map_err(os(format!("start rank {number}")))?;
            let (commands, reports) = (child.stdin.take(), child.stdout.take());
            all.ranks.push(Rank { number, child, commands, released: false });
            if let Some(reports) = reports {
                let tell = tell.clone();
                let listen = move || listen(number, reports, &tell);
                let thread = std::thread::Builder::new().name(format!("rank-{number}"));
                thread.spawn(listen).map_err(os("start a thread for a rank"))?;
            }
        }
        Ok(all)
    }

    /// Their processes, by rank.
    pub fn pids(&self) -> Vec<Pid> {
        self.ranks.iter().map(|rank| pid_of(&rank.child)).collect()
    }

    /// Tells every rank to go on.
    pub fn tell(&mut self, command: Command) -> Result<()> {
        let line = to_json(&command)? + "\n";
        for rank in &mut self.ranks {
            let Some(pipe) = &mut rank.commands else { continue };
            match pipe.write_all(line.as_bytes()) {
                // The rank has ended: the end of its reports tells more.
                Err(cause) if cause.kind() == ErrorKind::BrokenPipe => {}
                told => told.map_err(os(format!("tell rank {} to go on", rank.number)))?,
            }
        }
        Ok(())
    }

    /// The next report, with the rank's number. Waits for one at most until `until`.
    pub fn next_report(&mut self, until: Instant) -> Result<Option<(u32, Report)>> {
        let left = until.saturating_duration_since(Instant::now());
        let (number, heard) = match self.heard.recv_timeout(left) {
            Ok(heard) => heard,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => return other("all ranks have ended"),
        };
        let rank = &mut self.ranks[number as usize];
        match heard {
            Heard::Report(Report::Failed(message)) => Err(rank.error(&message)),
            Heard::Report(report) => {
                rank.released |= report == Report::Released;
                Ok(Some((number, report)))
            }
            Heard::Nonsense(line) => Err(rank.error(&format!("{line:?} is no report"))),
            // In order, after it has released everything.
            Heard::End if rank.released => Ok(None),
            Heard::End => {
                let status = rank.wait().map(|status| format!("ended: {status}"));
                Err(rank.error(&status.unwrap_or("closed its output".into())))
            }
        }
    }

    /// Waits until all have ended by themselves, with success.
    pub fn finish(&mut self) -> Result<()> {
        for rank in &mut self.ranks {
            rank.commands = None;
        }
        for rank in &mut self.ranks {
            match rank.wait() {
                Some(status) if status.success() => {}
                Some(status) => return Err(rank.error(&format!("ended: {status}"))),
                None => return Err(rank.error("does not end")),
            }
        }
        Ok(())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            // Neither kills nor waits for a process that was waited for before.
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}

impl Rank {
    /// Waits for the end, for a bounded time.
    fn wait(&mut self) -> Option<ExitStatus> {
        let until = Instant::now() + END_LIMIT;
        while !has_ended(pid_of(&self.child)) {
            if Instant::now() > until {
                return None;
            }
            std::thread::sleep(END_LOOK_INTERVAL);
        }
        self.child.wait().ok()
    }

    fn error(&self, message: &str) -> Error {
        Error::Other(format!("rank {} (pid {}): {message}", self.number, self.child.id()))
    }
}

/// Hands on a rank's reports until its stdout ends.
fn listen(number: u32, reports: ChildStdout, tell: &Sender<(u32, Heard)>) {
    for line in BufReader::new(reports).lines().map_while(std::result::Result::ok) {
        let heard = serde_json::from_str(&line).map_or(Heard::Nonsense(line), Heard::Report);
        if tell.send((number, heard)).is_err() {
            // Nobody wants to know any more.
            return;
        }
    }
    let _ = tell.send((number, Heard::End));
}
