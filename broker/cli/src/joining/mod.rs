//! Joining the broker of a job: the first process starts it, the others find it. Must never leave a
//! process with the broker of another job or node.
//!
//! [`crate::rooms::room`] describes the locks, and [`keeper`] the races between joiners and the end
//! of the broker.

pub mod keeper;

use crate::admin::Admin;
use crate::error::{Context, Error, Result};
use crate::private_broker::{SELF, START_LIMIT, end_now, is_ready, wait_bounded};
use crate::rooms::home::Home;
use crate::rooms::job::{Job, directory_prefixes};
use crate::rooms::room::{GATE, KEEPER, MEMBERS, Room, try_lock, try_lock_shared};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time until this process has joined. A process before it may start a broker (20 s at
/// most) or end one (10 s for its answer, 5 s for its end). Hundreds of ranks join one after the
/// other, in a millisecond each.
const JOIN_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait for one answer of a broker that is there. It is asked again.
const SILENCE: Duration = Duration::from_secs(1);

/// Pause between two tries to join. A broker starts in some ten milliseconds, and hundreds of ranks
/// may try at once.
const TRY_INTERVAL: Duration = Duration::from_millis(2);

/// What makes units.
const RUN: &str = "systemd-run";

/// Longest time until the manager has made one. It needs milliseconds, or does not answer.
const MANAGER_LIMIT: Duration = Duration::from_secs(3);

/// How much of the log's end is shown when the broker does not start.
const LOG_TAIL_BYTES: usize = 2000;

/// A process that joins.
#[derive(Debug)]
pub struct Joiner<'a> {
    pub job: &'a Job,
    /// Of the broker, should this process start it.
    pub max_fds: Option<u64>,
    /// Told once, of a broker that is there and does not answer for a while.
    pub on_silent: fn(&Room),
}

impl Joiner<'_> {
    /// The room, with a broker in it, and the shared lock that keeps the broker alive.
    pub fn join(&self) -> Result<(Room, File)> {
        let name = self.job.directory_name()?;
        let until = Instant::now() + JOIN_LIMIT;
        let home = Home::open(&name, until)?;
        while Instant::now() < until {
            if let Some(room) = home.room(&name)?
                && let Some(members) = self.try_join(&home, &room, until)?
            {
                return Ok((room, members));
            }
            std::thread::sleep(TRY_INTERVAL);
        }
        let seconds = JOIN_LIMIT.as_secs();
        Err(Error::Other(format!(
            "the job's broker could not be joined within {seconds} s: {} or {MEMBERS} beside it stays locked; find the process with `lslocks`, and end it",
            home.room(&name)?.map_or(name, |room| room.path().join(GATE).display().to_string()),
        )))
    }

    /// `None`: another process starts or ends the broker, or removes the room. Try again.
    fn try_join(&self, home: &Home, room: &Room, until: Instant) -> Result<Option<File>> {
        let Some(gate) = room.open(GATE)? else { return Ok(None) };
        if !try_lock(&gate)? || !room.is_current(&gate, GATE) {
            return Ok(None);
        }
        let Some(members) = room.open(MEMBERS)? else { return Ok(None) };
        // The keeper has locked the members to end the broker. It needs the gate now.
        if !try_lock_shared(&members)? {
            return Ok(None);
        }
        match self.ensure_broker(home, room, until) {
            Ok(is_there) => Ok(is_there.then_some(members)),
            Err(error) => {
                // This process may have been the only one in the room.
                drop((gate, members));
                home.sweep(&directory_prefixes()?);
                Err(error)
            }
        }
    }

    /// Makes sure that a broker serves. The caller holds the gate and a lock on `members`, so that
    /// no other process starts or ends a broker here.
    fn ensure_broker(&self, home: &Home, room: &Room, until: Instant) -> Result<bool> {
        let mut is_told = false;
        loop {
            let Some(keeper) = room.open(KEEPER)? else { return Ok(false) };
            if try_lock(&keeper)? {
                room.go_on();
                home.sweep(&directory_prefixes()?);
                self.start_keeper(room, keeper)?;
                return Ok(true);
            }
            if room.is_to_stop() {
                return Ok(false);
            }
            // No answer: the keeper is still starting its broker, or has not yet seen that its
            // broker was killed.
            let admin = Admin::connect_within(&room.admin_socket(), SILENCE);
            match admin.and_then(|mut admin| admin.status()) {
                Ok(_) => return Ok(true),
                Err(Error::NoAnswer { .. }) if !is_told => {
                    (self.on_silent)(room);
                    is_told = true;
                }
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => std::thread::sleep(TRY_INTERVAL),
            }
        }
    }

    /// Starts the keeper and waits until its broker serves. The keeper inherits `lock`, so that it
    /// is never free.
    fn start_keeper(&self, room: &Room, lock: File) -> Result<()> {
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut log = options.open(room.log()).context(|| "open the broker's log")?;
        // Tells users why two ranks did not meet. Nothing depends on this line.
        let _ = writeln!(log, "fdbroker: the job is: {}", self.job);
        let in_unit = if self.job.is_started() && !self.job.is_scheduled() { unit() } else { None };
        let mut direct = Command::new(SELF);
        direct.arg0("fdbroker");
        let in_unit = in_unit.map(|command| (command, MANAGER_LIMIT));
        for (mut command, limit) in in_unit.into_iter().chain([(direct, START_LIMIT)]) {
            self.add_arguments(&mut command, room);
            command.stdin(lock.try_clone().context(|| "pass the lock on")?);
            command.stderr(log.try_clone().context(|| "pass the log on")?);
            if serves(command, limit)? {
                return Ok(());
            }
        }
        Err(Error::Other(format!(
            "the job's broker did not start; {}",
            last_words(room).unwrap_or_else(|| format!("see {}", room.log().display()))
        )))
    }

    fn add_arguments(&self, command: &mut Command, room: &Room) {
        command.arg("keeper").arg(room.path());
        if let Some(cap) = self.max_fds {
            command.args(["--max-fds", &cap.to_string()]);
        }
        if self.job.is_started() {
            command.arg("--until-unused");
        }
    }
}

/// Runs the keeper, which is to become a process of its own within `limit`; whether its broker
/// serves.
fn serves(mut command: Command, limit: Duration) -> Result<bool> {
    let mut child =
        command.stdout(Stdio::piped()).spawn().context(|| "start the broker's keeper")?;
    // The command holds a copy of the lock.
    drop(command);
    let pipe = child.stdout.take();
    if wait_bounded(&mut child, limit).is_none() {
        end_now(&mut child);
    }
    // Twice the broker's own limit: the keeper must have time to say why its broker did not start.
    // Without one nobody has the pipe.
    let wait = |pipe| is_ready(pipe, 2 * START_LIMIT, "the broker's keeper");
    match pipe.as_ref().map(AsFd::as_fd).map(wait).transpose()?.flatten() {
        Some(serves) => Ok(serves),
        None => Err(Error::Other("the broker's keeper hangs; end it (`fdbroker keeper`)".into())),
    }
}

/// Where the user's manager runs: the command that makes a unit of the command after it, so that
/// the broker does not end with the cgroup of the program that happens to start it. It fails where
/// the manager does not answer.
fn unit() -> Option<Command> {
    let manager = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?).join("systemd/private");
    let program = std::env::current_exe().ok().filter(|_| manager.exists())?;
    let is_on_path = |path: OsString| std::env::split_paths(&path).any(|it| it.join(RUN).exists());
    std::env::var_os("PATH").is_some_and(is_on_path).then(|| {
        let mut command = Command::new(RUN);
        command.args(["--user", "--scope", "--quiet", "--collect", "--"]).arg(program);
        command
    })
}

fn last_words(room: &Room) -> Option<String> {
    let log = std::fs::read(room.log()).ok()?;
    let tail = &log[log.len().saturating_sub(LOG_TAIL_BYTES)..];
    let text = String::from_utf8_lossy(tail).trim().to_owned();
    (!text.is_empty()).then(|| format!("its log ends with: {text}"))
}
