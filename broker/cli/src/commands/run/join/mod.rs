//! `fdbroker run --join -- CMD`: one broker for the processes of a job on a node, without anybody who starts it: the
//! first one does, the last one's end ends it. Must never leave CMD with a broker that is not this job's on this node.
//!
//! The joiner becomes CMD by exec(2): pid, signals, exit status, stdio and inherited fds are CMD's own. What stays of
//! it is one inherited fd, a shared lock on `members`, which the kernel gives back however CMD ends. See [`room`] for
//! the locks and [`keeper`] for what can meet.

mod job;
pub mod keeper;
mod room;

use super::exec::Variable;
use crate::admin::Admin;
use crate::error::{Context, Error, Result};
use crate::private_broker::{SELF, START_LIMIT};
use job::Job;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use room::{GATE, Home, KEEPER, MEMBERS, Room, try_lock, try_lock_shared};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time until this process has joined. Others before it may start a broker (20 s at most), or be ending one
/// (10 s for its answer, 5 s for its end); hundreds of ranks pass one after the other, each in a millisecond.
const JOIN_LIMIT: Duration = Duration::from_secs(60);

/// Between two tries to get in: a broker starts in some ten milliseconds, and hundreds of ranks may be trying.
const TRY_INTERVAL: Duration = Duration::from_millis(2);

/// The membership's fd in CMD, or half of what the limit allows: out of the way of numbers that programs and shells
/// choose themselves (up to 255), and below FD_SETSIZE.
const MEMBER_FD_FROM: u64 = 500;

/// How much of the log is shown when the broker does not start: its last words.
const LOG_TAIL_BYTES: usize = 2000;

/// Joins the job's broker, starting it if need be, and becomes `command`, with `more` in its environment. Returns only if that fails.
pub fn run(
    command: &[OsString],
    max_fds: Option<u64>,
    job: Option<&str>,
    more: Vec<Variable>,
) -> Result<u8> {
    let job = Job::find(job)?;
    let (room, members) = Joiner { job: &job, max_fds }.join()?;
    keep_across_exec(members)?;
    // Always both, whatever was inherited: a path of another node, or of a broker long dead, must not get through.
    let mut environment = vec![
        ("FDBROKER_SOCKET", room.socket().into_os_string()),
        ("FDBROKER_ADMIN_SOCKET", room.admin_socket().into_os_string()),
    ];
    environment.extend(more);
    super::exec::become_command(command, environment)
}

struct Joiner<'a> {
    job: &'a Job,
    max_fds: Option<u64>,
}

impl Joiner<'_> {
    /// The room, with a broker in it, and the membership.
    fn join(&self) -> Result<(Room, File)> {
        let name = self.job.directory_name()?;
        let home = Home::open(&name)?;
        let until = Instant::now() + JOIN_LIMIT;
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
            "the job's broker could not be joined within {seconds} s: {} or {MEMBERS} beside it stays locked; see who has it with `lslocks`, and end it",
            home.room(&name)?.map_or(name, |room| room.path().join(GATE).display().to_string()),
        )))
    }

    /// `None`: somebody else is at it, or the room is being removed.
    fn try_join(&self, home: &Home, room: &Room, until: Instant) -> Result<Option<File>> {
        let Some(gate) = room.open(GATE)? else { return Ok(None) };
        if !try_lock(&gate)? || !room.is_current(&gate, GATE) {
            return Ok(None);
        }
        let Some(members) = room.open(MEMBERS)? else { return Ok(None) };
        // The keeper has it and is ending the broker: it needs the gate now.
        if !try_lock_shared(&members)? {
            return Ok(None);
        }
        match self.ensure_broker(home, room, until) {
            Ok(is_there) => Ok(is_there.then_some(members)),
            Err(error) => {
                // Without us the room may be nobody's.
                drop((gate, members));
                home.sweep(&job::directory_prefix()?);
                Err(error)
            }
        }
    }

    /// With the gate and a membership in hand nobody else starts or ends a broker here.
    fn ensure_broker(&self, home: &Home, room: &Room, until: Instant) -> Result<bool> {
        loop {
            let Some(keeper) = room.open(KEEPER)? else { return Ok(false) };
            if try_lock(&keeper)? {
                home.sweep(&job::directory_prefix()?);
                self.start_keeper(room, keeper)?;
                return Ok(true);
            }
            // A keeper whose joiner was killed is still starting it; one whose broker was killed has not seen it yet.
            let asked = Admin::connect(&room.admin_socket()).and_then(|mut admin| admin.status());
            match asked {
                Ok(_) => return Ok(true),
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => std::thread::sleep(TRY_INTERVAL),
            }
        }
    }

    /// Starts the keeper and waits until its broker serves. It inherits `lock`, so there is no moment without.
    fn start_keeper(&self, room: &Room, lock: File) -> Result<()> {
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut log = options.open(room.log()).context(|| "open the broker's log")?;
        // For who wonders why two ranks do not meet. Nothing depends on it.
        let _ = writeln!(log, "fdbroker: the job is: {}", self.job);
        let mut command = Command::new(SELF);
        command.arg0("fdbroker").arg("keeper").arg(room.path());
        if let Some(cap) = self.max_fds {
            command.args(["--max-fds", &cap.to_string()]);
        }
        command.stdin(lock).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().context(|| "start the broker's keeper")?;
        // Our own copy of the lock.
        drop(command);
        let pipe = child.stdout.take();
        let _ = child.wait();
        match pipe.map(OwnedFd::from).map(wait_until_ready).transpose()? {
            Some(true) => Ok(()),
            _ => Err(Error::Other(format!(
                "the job's broker did not start; {}",
                last_words(room).unwrap_or_else(|| format!("see {}", room.log().display()))
            ))),
        }
    }
}

fn wait_until_ready(pipe: OwnedFd) -> Result<bool> {
    // Twice: the keeper itself waits so long for the broker, and then has something to say.
    let limit = PollTimeout::try_from(2 * START_LIMIT).unwrap_or(PollTimeout::MAX);
    let mut entries = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    if poll(&mut entries, limit).context(|| "wait for the broker's keeper")? == 0 {
        return Ok(false);
    }
    let mut byte = [0];
    let count = File::from(pipe).read(&mut byte).context(|| "read the readiness pipe")?;
    Ok(count > 0)
}

fn last_words(room: &Room) -> Option<String> {
    let log = std::fs::read(room.log()).ok()?;
    let tail = &log[log.len().saturating_sub(LOG_TAIL_BYTES)..];
    let text = String::from_utf8_lossy(tail).trim().to_owned();
    (!text.is_empty()).then(|| format!("its log ends with: {text}"))
}

/// The membership goes on in the program that this process becomes, and in its children.
fn keep_across_exec(members: File) -> Result<()> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).context(|| "read RLIMIT_NOFILE")?;
    let from = i32::try_from(MEMBER_FD_FROM.min(soft / 2)).unwrap_or(0);
    // Without close-on-exec, and never closed by us.
    fcntl(&members, FcntlArg::F_DUPFD(from)).context(|| "keep the membership open")?;
    Ok(())
}
