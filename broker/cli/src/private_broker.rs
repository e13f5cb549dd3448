//! A private broker: one for one job, started from this very executable, in a runtime directory of its
//! own. Must never outlive its owner, nor leave the directory behind.

use crate::error::{Context, Error, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, mkdtemp};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// This program, also when its file has been replaced or is out of sight (containers).
pub const SELF: &str = "/proc/self/exe";

/// Longest time until a new broker serves: it takes milliseconds, so this is one that hangs.
pub const START_LIMIT: Duration = Duration::from_secs(20);

/// Longest time a broker may take to end by itself before it is killed.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How much later than its sockets a dying process closes itself, at most: time to free its memory.
const NOTICE_LIMIT: Duration = Duration::from_millis(200);

/// Between two looks at whether a process has ended.
const END_LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Longest path of a Unix socket (`sun_path`, unix(7)), its closing zero included.
const SOCKET_PATH_MAX: usize = 108;

/// What is appended to the runtime directory at most: the longest socket name below it.
const SOCKET_PATH_ROOM: usize = 40;

/// A directory, 0700, that goes away with this value.
#[derive(Debug)]
pub struct RuntimeDir(PathBuf);

impl RuntimeDir {
    /// Makes one under `$XDG_RUNTIME_DIR`, else `$TMPDIR`, else /tmp: the first that serves.
    pub fn create() -> Result<Self> {
        let variables = ["XDG_RUNTIME_DIR", "TMPDIR"];
        let mut candidates: Vec<PathBuf> =
            variables.iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
        candidates.retain(|dir| dir.is_absolute());
        candidates.push("/tmp".into());
        let mut refused = Vec::new();
        for parent in candidates {
            if parent.as_os_str().len() + SOCKET_PATH_ROOM >= SOCKET_PATH_MAX {
                refused.push(format!("{}: too long for a socket's path", parent.display()));
                continue;
            }
            match mkdtemp(&parent.join("fdbroker-XXXXXX")) {
                Ok(path) => return Ok(RuntimeDir(path)),
                Err(cause) => refused.push(format!("{}: {cause}", parent.display())),
            }
        }
        Err(Error::Other(format!(
            "no place for a runtime directory ({}); set TMPDIR to a short path that you may write to",
            refused.join(", ")
        )))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        // Nothing to be done when it fails: the folder is then left to the next boot.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running private broker. Ends when this value does; then its directory goes too, if it is its own.
#[derive(Debug)]
pub struct PrivateBroker {
    child: Child,
    /// The broker ends when this pipe does: also when this process is killed.
    lifeline: Option<ChildStdin>,
    dir: PathBuf,
    /// Dropped after the broker has ended.
    own_dir: Option<RuntimeDir>,
}

impl PrivateBroker {
    /// Starts one whose node cap is `max_fds` (`None`: the daemon's own choice) and waits until it serves, in a
    /// directory of its own.
    pub fn start(max_fds: Option<u64>) -> Result<Self> {
        let dir = RuntimeDir::create()?;
        let mut broker = Self::start_with(dir.path(), max_fds, true)?;
        broker.own_dir = Some(dir);
        Ok(broker)
    }

    /// The same in `dir`, which is the caller's.
    pub fn start_in(dir: &Path, max_fds: Option<u64>) -> Result<Self> {
        Self::start_with(dir, max_fds, false)
    }

    fn start_with(dir: &Path, max_fds: Option<u64>, is_own: bool) -> Result<Self> {
        let mut command = Command::new(SELF);
        command.arg0("fdbroker").arg("broker").arg("--private").arg(dir);
        if is_own {
            // Who is killed cannot remove it: the broker sees that, and does.
            command.arg("--remove").arg(dir);
        }
        // Its stdin is the lifeline, its stdout the readiness pipe: both are inherited anyway.
        command.args(["--until-eof", "0", "--ready-fd", "1"]);
        if std::env::var_os("FDBROKER_LOG").is_none() {
            // What a service would note is no news to the user of one job.
            command.args(["--log", "warn"]);
        }
        for name in ["FDBROKER_SOCKET", "FDBROKER_ADMIN_SOCKET", "FDBROKER_CONFIG"] {
            command.env_remove(name);
        }
        if let Some(cap) = max_fds {
            command.args(["--max-fds", &cap.to_string()]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Out of the terminal's foreground group: Ctrl-C must not end it before its clients.
        command.process_group(0);
        crate::signals::wake_when_orphaned(&mut command);
        let mut child = command.spawn().context(|| "start the broker")?;
        let lifeline = child.stdin.take();
        let ready = child.stdout.take();
        let mut broker = PrivateBroker { child, lifeline, dir: dir.to_owned(), own_dir: None };
        match ready {
            Some(pipe) => broker.wait_until_ready(pipe.as_fd())?,
            None => return Err(Error::Other("the broker has no readiness pipe".into())),
        }
        Ok(broker)
    }

    fn wait_until_ready(&mut self, pipe: std::os::fd::BorrowedFd<'_>) -> Result<()> {
        let limit = PollTimeout::try_from(START_LIMIT).unwrap_or(PollTimeout::MAX);
        let mut entries = [PollFd::new(pipe, PollFlags::POLLIN)];
        let came = poll(&mut entries, limit).context(|| "wait for the broker")?;
        if came == 0 {
            let seconds = START_LIMIT.as_secs();
            return Err(Error::Other(format!("the broker was not ready after {seconds} s")));
        }
        let mut byte = [0; 1];
        match nix::unistd::read(pipe, &mut byte).context(|| "read the readiness pipe")? {
            0 => {
                let end = self.wait_for_end(END_LIMIT);
                Err(Error::Other(format!(
                    "the broker ended before it was ready ({}); its own message is above",
                    end.map_or("still closing".into(), |status| status.to_string()),
                )))
            }
            _ => Ok(()),
        }
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        pid_of(&self.child)
    }

    /// Where its clients connect.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("fdbroker/broker.sock")
    }

    /// Where its administrator connects.
    pub fn admin_socket(&self) -> PathBuf {
        crate::admin::beside(&self.socket())
    }

    /// A directory for the job's own files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether it has ended although nobody asked it to.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The same after a sign of it: its clients see their sockets close a moment earlier.
    pub fn ended_by_now(&mut self) -> Option<ExitStatus> {
        self.wait_for_end(NOTICE_LIMIT)
    }

    fn wait_for_end(&mut self, limit: Duration) -> Option<ExitStatus> {
        wait_bounded(&mut self.child, limit)
    }
}

impl Drop for PrivateBroker {
    fn drop(&mut self) {
        self.lifeline = None;
        if self.wait_for_end(END_LIMIT).is_none() {
            end_now(&mut self.child);
        }
    }
}

/// The broker's side of the pipe that ends with its owner.
#[derive(Debug)]
pub struct Lifeline(OwnedFd);

impl Lifeline {
    /// That of a broker that [`PrivateBroker`] has started.
    pub fn of_stdin() -> Result<Self> {
        let pipe = std::io::stdin().as_fd().try_clone_to_owned();
        pipe.map(Lifeline).context(|| "keep the lifeline")
    }

    /// Removes the broker's directory when the owner has let go of it: one that was killed cannot. As long as there is
    /// an owner it is the owner's, and a broker that has taken over may serve from it.
    pub fn remove_if_ended(self, dir: &Path) {
        let mut entries = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let is_polled = poll(&mut entries, PollTimeout::ZERO).is_ok();
        if is_polled && entries[0].revents().is_some_and(|it| it.contains(PollFlags::POLLHUP)) {
            // Nothing to be done when it fails: the folder is then left to the next boot.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// Waits for a child's end, at most `limit`.
pub fn wait_bounded(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => std::thread::sleep(END_LOOK_INTERVAL),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Kills a child and takes its exit status, so that no zombie stays.
pub fn end_now(child: &mut Child) {
    if let Ok(None) = child.try_wait() {
        let _ = kill(pid_of(child), Signal::SIGKILL);
        let _ = child.wait();
    }
}

/// A child's pid. It cannot be another process's as long as the child has not been waited for.
pub fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}
