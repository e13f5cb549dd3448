//! A private broker for one job: this executable, started as a daemon, with a runtime directory of
//! its own. Must never outlive its owner, nor leave the directory behind.

use crate::error::{Context, Error, Result};
use crate::output::say;
use fdbrokerd::lock::DirectoryLock;
use fdbrokerd::{ListenError, leftovers};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, mkdtemp};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// This program, even if its file has been replaced or cannot be seen from a container.
pub const SELF: &str = "/proc/self/exe";

/// Longest time until a new broker serves. A broker needs milliseconds; after this time it hangs.
pub const START_LIMIT: Duration = Duration::from_secs(20);

/// How often a broker that has died is started again. What kills it once may never come back; what
/// kills it each time must not go on for ever.
const RESTARTS: u32 = 5;

/// Longest time that a broker may take to end before it is killed.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Longest time between the close of a dying process's sockets and its end: the kernel frees its
/// memory meanwhile.
const NOTICE_LIMIT: Duration = Duration::from_millis(200);

/// Time between two checks whether a process has ended.
const END_LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Longest path of a Unix socket (`sun_path`, unix(7)), its closing zero included.
const SOCKET_PATH_MAX: usize = 108;

/// The longest name of a socket below the runtime directory.
const SOCKET_PATH_ROOM: usize = 40;

/// A directory with mode 0700 that is removed when this value is dropped; where its owner and the
/// owner's broker are killed, by the next private broker.
#[derive(Debug)]
pub struct RuntimeDir {
    path: PathBuf,
    mark: File,
}

impl RuntimeDir {
    /// Makes a directory in `$XDG_RUNTIME_DIR`, else in `$TMPDIR`, else in /tmp: in the first one
    /// that works.
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
            match mkdtemp(&parent.join(format!("{}XXXXXX", leftovers::PREFIX))) {
                Ok(path) => return Self::marked(path),
                Err(cause) => refused.push(format!("{}: {cause}", parent.display())),
            }
        }
        Err(Error::Other(format!(
            "no place for a runtime directory ({}); set TMPDIR to a short path that you may write to",
            refused.join(", ")
        )))
    }

    fn marked(path: PathBuf) -> Result<Self> {
        match leftovers::mark(&path) {
            Ok(mark) => Ok(RuntimeDir { path, mark }),
            Err(cause) => {
                let _ = std::fs::remove_dir_all(&path);
                Err(cause).context(|| format!("mark {}", path.display()))
            }
        }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What says that the directory is in use, for another process of its.
    fn in_use(&self) -> Result<File> {
        self.mark.try_clone().context(|| "keep the directory")
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        // If this fails, the directory stays until the next boot.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A running private broker. It ends when this value is dropped, and so does its directory, unless
/// it is the caller's.
#[derive(Debug)]
pub struct PrivateBroker {
    child: Child,
    /// The broker ends when this pipe is closed, and so also when this process is killed.
    lifeline: Option<ChildStdin>,
    /// Of one that was started again, whose readiness nobody awaits.
    _ready: Option<ChildStdout>,
    settings: Settings,
    restarts_left: u32,
    /// Dropped after the broker has ended.
    own_dir: Option<RuntimeDir>,
}

/// How a private broker is started, the first time and again.
#[derive(Debug)]
struct Settings {
    dir: PathBuf,
    max_fds: Option<u64>,
    is_quiet: bool,
    /// The directory goes with the broker.
    is_own: bool,
    /// What says that the directory is in use. Each broker has it, too, from its first moment to
    /// its last: one whose owner was killed before it had begun to serve may still come to that.
    lock: File,
}

impl Settings {
    fn spawn(&self) -> Result<Child> {
        let mut command = Command::new(SELF);
        command.arg0("fdbroker").arg("broker").arg("--private").arg(&self.dir);
        if self.is_own {
            // If this process is killed, the broker removes the directory.
            command.arg("--remove").arg(&self.dir);
        }
        // stdin is the lifeline and stdout the readiness pipe: both are inherited anyway.
        command.args(["--until-eof", "0", "--ready-fd", "1"]);
        if self.is_quiet {
            command.args(["--log", "error"]);
        } else if std::env::var_os("FDBROKER_LOG").is_none() {
            // Notes for the administrator of a service do not concern the user of one job.
            command.args(["--log", "warn"]);
        }
        for name in ["FDBROKER_SOCKET", "FDBROKER_ADMIN_SOCKET", "FDBROKER_CONFIG"] {
            command.env_remove(name);
        }
        if let Some(cap) = self.max_fds {
            command.args(["--max-fds", &cap.to_string()]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Not in the terminal's foreground group: Ctrl-C must not end the broker before its
        // clients.
        command.process_group(0);
        crate::signals::wake_when_orphaned(&mut command);
        pass_on(self.lock.as_raw_fd(), &mut command);
        command.spawn().context(|| "start the broker")
    }
}

impl PrivateBroker {
    /// Starts a broker in a directory of its own and waits until it serves. `max_fds` is the node
    /// cap; `None`: the daemon's default. `is_quiet`: its log has errors alone.
    pub fn start(max_fds: Option<u64>, is_quiet: bool) -> Result<Self> {
        let dir = RuntimeDir::create()?;
        let lock = dir.in_use()?;
        let path = dir.path().to_owned();
        let settings = Settings { dir: path, max_fds, is_quiet, is_own: true, lock };
        let mut broker = Self::start_with(settings)?;
        broker.own_dir = Some(dir);
        Ok(broker)
    }

    /// Starts a broker in `dir`, which belongs to the caller, and waits until it serves. `lock` is
    /// locked as long as this value or its broker is there.
    pub fn start_in(dir: &Path, max_fds: Option<u64>, lock: File) -> Result<Self> {
        let dir = dir.to_owned();
        Self::start_with(Settings { dir, max_fds, is_quiet: false, is_own: false, lock })
    }

    fn start_with(settings: Settings) -> Result<Self> {
        let mut child = settings.spawn()?;
        let lifeline = child.stdin.take();
        let ready = child.stdout.take();
        let mut broker = PrivateBroker {
            child,
            lifeline,
            _ready: None,
            settings,
            restarts_left: RESTARTS,
            own_dir: None,
        };
        match ready {
            Some(pipe) => broker.wait_until_ready(pipe.as_fd())?,
            None => return Err(Error::Other("the broker has no readiness pipe".into())),
        }
        Ok(broker)
    }

    /// Starts a broker that has ended unasked again, in its directory; `without`: what is said when
    /// it is given up for good. Whether it was started. Waits for nothing: its clients do.
    pub fn start_again(&mut self, end: ExitStatus, without: &str) -> bool {
        let next = self.next(end);
        let what = match &next {
            Ok(Some(_)) => "it is started again".into(),
            Ok(None) => without.to_owned(),
            Err(error) => format!("{without}: {error}"),
        };
        say!("fdbroker: the broker has ended ({end}); {what}");
        let Ok(Some(mut child)) = next else { return false };
        (self.lifeline, self._ready) = (child.stdin.take(), child.stdout.take());
        self.child = child;
        true
    }

    /// The broker after one that has ended; `None`: another one has taken over from it, or it has
    /// died too often.
    fn next(&mut self, end: ExitStatus) -> Result<Option<Child>> {
        let directory = || self.admin_socket().parent().map(DirectoryLock::take);
        if end.success() && matches!(directory(), Some(Err(ListenError::InUse { .. }))) {
            return Ok(None);
        }
        let Some(left) = self.restarts_left.checked_sub(1) else {
            // Processes that start from now on see that there is no broker, and do not wait for it.
            let _ = std::fs::remove_file(self.socket());
            return Ok(None);
        };
        self.restarts_left = left;
        self.settings.spawn().map(Some)
    }

    fn wait_until_ready(&mut self, pipe: BorrowedFd<'_>) -> Result<()> {
        match is_ready(pipe, START_LIMIT, "the broker")? {
            Some(true) => Ok(()),
            Some(false) => {
                let end = self.wait_for_end(END_LIMIT);
                Err(Error::Other(format!(
                    "the broker ended before it was ready ({}); its own message is above",
                    end.map_or("still closing".into(), |status| status.to_string()),
                )))
            }
            None => {
                let seconds = START_LIMIT.as_secs();
                Err(Error::Other(format!("the broker was not ready after {seconds} s")))
            }
        }
    }

    pub fn pid(&self) -> Pid {
        pid_of(&self.child)
    }

    pub fn socket(&self) -> PathBuf {
        self.settings.dir.join("fdbroker/broker.sock")
    }

    pub fn admin_socket(&self) -> PathBuf {
        fdbrokerd::settings::sockets::admin_socket_of(&self.socket())
    }

    /// A directory for files of the job.
    pub fn dir(&self) -> &Path {
        &self.settings.dir
    }

    /// The broker's exit status, if it has ended unasked.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The broker's exit status, if it ends within [`NOTICE_LIMIT`]. For use when a client's socket
    /// has closed, which happens a moment before the broker's end.
    pub fn ended_by_now(&mut self) -> Option<ExitStatus> {
        self.wait_for_end(NOTICE_LIMIT)
    }

    fn wait_for_end(&mut self, limit: Duration) -> Option<ExitStatus> {
        wait_bounded(&mut self.child, limit)
    }
}

/// Lets the process of `command` have this fd, too, under its number.
fn pass_on(fd: RawFd, command: &mut Command) {
    // SAFETY: between fork and exec, it makes one system call with a number that is open there.
    let keep_open = move || match unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: as above; it touches no memory of the parent.
    unsafe { command.pre_exec(keep_open) };
}

/// Waits for the byte that `who` writes to a pipe when it is ready. `Some(false)`: it has ended
/// instead; `None`: neither, within the limit.
pub fn is_ready(pipe: BorrowedFd<'_>, limit: Duration, who: &str) -> Result<Option<bool>> {
    let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    let mut entries = [PollFd::new(pipe, PollFlags::POLLIN)];
    if poll(&mut entries, limit).context(|| format!("wait for {who}"))? == 0 {
        return Ok(None);
    }
    let count = nix::unistd::read(pipe, &mut [0]).context(|| "read the readiness pipe")?;
    Ok(Some(count > 0))
}

impl Drop for PrivateBroker {
    fn drop(&mut self) {
        self.lifeline = None;
        if self.wait_for_end(END_LIMIT).is_none() {
            end_now(&mut self.child);
        }
    }
}

/// The broker's end of the pipe that closes when its owner ends.
#[derive(Debug)]
pub struct Lifeline(OwnedFd);

impl Lifeline {
    /// The lifeline of a broker that [`PrivateBroker`] has started: its stdin.
    pub fn of_stdin() -> Result<Self> {
        let pipe = std::io::stdin().as_fd().try_clone_to_owned();
        pipe.map(Lifeline).context(|| "keep the lifeline")
    }

    /// Removes the broker's directory if the owner has ended: an owner that was killed cannot do
    /// it. While the owner lives, the directory is the owner's, and another broker may have taken
    /// over and serve from it.
    pub fn remove_if_ended(self, dir: &Path) {
        let mut entries = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let is_polled = poll(&mut entries, PollTimeout::ZERO).is_ok();
        if is_polled && entries[0].revents().is_some_and(|it| it.contains(PollFlags::POLLHUP)) {
            // If this fails, the directory stays until the next boot.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// Waits at most `limit` for the end of a child.
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

/// Kills a child and reaps it, so that no zombie stays.
pub fn end_now(child: &mut Child) {
    if let Ok(None) = child.try_wait() {
        let _ = kill(pid_of(child), Signal::SIGKILL);
        let _ = child.wait();
    }
}

/// A child's pid. It stays the child's until the child has been reaped.
pub fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}
