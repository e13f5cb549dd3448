//! A rank as the program sees it: a child process that gets commands and answers them. Must never
//! outlive the program, nor be waited for without a bound.

use crate::wire::{Answer, Command};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

/// Longest time that a rank may take for one command.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Debug)]
pub struct Peer {
    child: Child,
    commands: ChildStdin,
    answers: ChildStdout,
    line: Vec<u8>,
}

impl Peer {
    /// Starts a rank, which does nothing yet.
    pub fn start() -> Result<Self, String> {
        Peer::spawn(std::process::Command::new("/proc/self/exe"))
    }

    /// The same in a PID namespace of its own, which ends with `unshare`.
    pub fn start_apart() -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
        let mut command = std::process::Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(own);
        Peer::spawn(command)
    }

    fn spawn(mut command: std::process::Command) -> Result<Self, String> {
        command.arg("rank").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("start a rank: {error}"))?;
        let (commands, answers) = (child.stdin.take(), child.stdout.take());
        let (commands, answers) = commands.zip(answers).expect("both are piped");
        Ok(Peer { child, commands, answers, line: Vec::new() })
    }

    /// Starts `count` ranks that have the device open and are connected to `socket`. All at once: a
    /// context takes a while.
    pub fn ready(
        count: usize,
        socket: &std::path::Path,
        own_fds: u32,
    ) -> Result<Vec<Self>, String> {
        let mut peers = (0..count).map(|_| Peer::start()).collect::<Result<Vec<_>, _>>()?;
        ask_all(&mut peers, |_| Command::Open { device: 0 })?;
        ask_all(&mut peers, |_| Command::Connect { socket: socket.into(), own_fds })?;
        Ok(peers)
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    pub fn tell(&mut self, command: &Command) -> Result<(), String> {
        let text = serde_json::to_string(command).expect("plain data");
        writeln!(self.commands, "{text}")
            .map_err(|error| format!("rank {} does not listen: {error}", self.child.id()))
    }

    /// The next answer. If the rank has failed, its message is the error.
    pub fn hear(&mut self) -> Result<Answer, String> {
        let until = Instant::now() + PATIENCE;
        let rank = format!("rank {}", self.child.id());
        loop {
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                let answer = serde_json::from_slice(&line);
                return match answer.map_err(|error| format!("{rank} makes no sense: {error}"))? {
                    Answer::Failed { why } => Err(format!("{rank}: {why}")),
                    answer => Ok(answer),
                };
            }
            let left = until.saturating_duration_since(Instant::now());
            let mut entries = [PollFd::new(self.answers.as_fd(), PollFlags::POLLIN)];
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            if poll(&mut entries, left) == Ok(0) {
                return Err(format!("{rank} has not answered for {} s", PATIENCE.as_secs()));
            }
            let mut piece = [0; 1 << 16];
            match self.answers.read(&mut piece).map_err(|error| format!("{rank}: {error}"))? {
                0 => return Err(format!("{rank} has ended")),
                count => self.line.extend_from_slice(&piece[..count]),
            }
        }
    }

    pub fn ask(&mut self, command: &Command) -> Result<Answer, String> {
        self.tell(command)?;
        self.hear()
    }

    /// Sends a command that has no answer of its own.
    pub fn order(&mut self, command: &Command) -> Result<(), String> {
        match self.ask(command)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Kills the rank, as `kill -9` does.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = kill(Pid::from_raw(self.pid()), Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sends the command to all ranks at once. Returns the answers in the order of the ranks.
pub fn ask_all(
    peers: &mut [Peer],
    command: impl Fn(usize) -> Command,
) -> Result<Vec<Answer>, String> {
    for (index, peer) in peers.iter_mut().enumerate() {
        peer.tell(&command(index))?;
    }
    peers.iter_mut().map(Peer::hear).collect()
}

pub fn unexpected(answer: &Answer) -> String {
    format!("an answer that was not asked for: {answer:?}")
}
