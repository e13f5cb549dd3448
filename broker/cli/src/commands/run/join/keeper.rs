//! The keeper of a job's broker: a process of its own that starts the broker, and ends it when the last process of
//! the job has gone. Must never hold anything of the process that started it: no pipe, no socket, no terminal.
//!
//! What can meet here, and why nothing hangs or is lost:
//! - It waits for `members`, then for `gate`. A joiner has `gate` and only tries `members`: it gives `gate` back and
//!   comes again. So the broker ends before that joiner is in, or after it has gone.
//! - A joiner that is in has `members`, so the keeper does not get it: the broker that was found alive stays.
//! - Keeper killed: its broker's lifeline ends, `keeper` is free, the next joiner starts another one.
//! - Broker killed: `keeper` is given back at once, so that the next joiner starts another one in the same place; this
//!   process stays, to remove the room if there is no next one.
//! - Members that closed every fd are known by their connection alone: while one is connected the broker stays.

use super::room::{GATE, KEEPER, MEMBERS, Room, try_lock};
use crate::admin::Admin;
use crate::error::{Context, Error, Result, exit};
use crate::output::say;
use crate::private_broker::PrivateBroker;
use fdbrokerd::listeners::{DirectoryLock, ListenError};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{SigHandler, Signal};
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, daemon, dup2_stdin, dup2_stdout};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest time for the broker of a killed keeper to end: it has lost its lifeline, and takes milliseconds.
const PREDECESSOR_LIMIT: Duration = Duration::from_secs(5);

/// Between two looks at whether it has.
const PREDECESSOR_LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Between two looks at whether the last connection of a process that is no member any more has gone: rare, and nobody
/// waits for it.
const CLIENT_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Signals that a launcher sends to all processes of a job. They are for the ranks: the keeper ends with these.
const SIGNALS_OF_THE_JOB: [Signal; 7] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
];

/// The broker, and the lock that says that somebody answers for it.
#[derive(Debug)]
struct Tenure {
    broker: PrivateBroker,
    lock: File,
}

type SharedTenure = Arc<Mutex<Option<Tenure>>>;

/// Starts the broker of `run --join` and ends it
#[derive(Debug, clap::Args)]
pub struct KeeperArgs {
    /// The job's directory
    pub dir: PathBuf,
    /// As of `run`
    #[arg(long)]
    pub max_fds: Option<u64>,
}

/// The keeper's whole life. On stdin it gets the locked `keeper` file, on stdout the pipe that tells the joiner that
/// the broker serves, on stderr the log.
pub fn main(KeeperArgs { dir, max_fds }: KeeperArgs) -> Result<u8> {
    let (lock, mut ready) = detach()?;
    match Keeper::start(&dir, max_fds, lock) {
        Ok(keeper) => {
            // The joiner may have been killed by now: then the first look at the members finds nobody.
            let _ = ready.write_all(b"READY\n");
            drop(ready);
            keeper.serve()?;
            Ok(exit::OK)
        }
        Err(error) => {
            // Before the pipe ends: the joiner then shows the log.
            say!("fdbroker: {error}");
            Ok(exit::ERROR)
        }
    }
}

/// A keeper whose broker serves.
#[derive(Debug)]
struct Keeper {
    room: Room,
    gate: File,
    members: File,
    /// `None` once the broker has ended by itself.
    tenure: SharedTenure,
    /// What clears old files passes by a directory that is locked (tmpfiles.d(5)).
    _directory: File,
}

impl Keeper {
    fn start(dir: &Path, max_fds: Option<u64>, lock: File) -> Result<Self> {
        let room = Room::at(dir);
        let (gate, members) = (open(&room, GATE)?, open(&room, MEMBERS)?);
        let directory = File::open(dir).context(|| format!("open {}", dir.display()))?;
        // Nothing else depends on it.
        let _ = directory.try_lock_shared();
        wait_for_predecessor(&room)?;
        let broker = PrivateBroker::start_in(dir, max_fds)?;
        let pid = broker.pid();
        let tenure = Arc::new(Mutex::new(Some(Tenure { broker, lock })));
        let watched = Arc::clone(&tenure);
        std::thread::Builder::new()
            .name("watch-broker".into())
            .spawn(move || watch(pid, &watched))
            .context(|| "start a thread")?;
        Ok(Keeper { room, gate, members, tenure, _directory: directory })
    }

    /// Until there is nothing to keep any more.
    fn serve(&self) -> Result<()> {
        loop {
            wait_for(&self.members)?;
            wait_for(&self.gate)?;
            if self.end()? {
                return Ok(());
            }
            self.gate.unlock().context(|| "unlock the gate")?;
            self.members.unlock().context(|| "unlock the members")?;
            std::thread::sleep(CLIENT_LOOK_INTERVAL);
        }
    }

    /// Ends the broker and removes the room, unless somebody is connected; returns whether. The caller has the
    /// members and the gate.
    fn end(&self) -> Result<bool> {
        let mut tenure = locked(&self.tenure);
        if tenure.as_ref().is_some_and(|own| clients(&own.broker) > 0) {
            return Ok(false);
        }
        let lock = match tenure.take() {
            Some(Tenure { broker, lock }) => {
                drop(broker);
                Some(lock)
            }
            // Another keeper may have removed the room since: the one in its place is not ours.
            None if !self.room.is_current(&self.gate, GATE) => None,
            // Or may answer for it now.
            None => self.room.open(KEEPER)?,
        };
        // What this open file has locked already is locked again without harm (flock(2)).
        if let Some(lock) = lock
            && try_lock(&lock)?
        {
            self.room.remove();
        }
        Ok(true)
    }
}

fn open(room: &Room, name: &str) -> Result<File> {
    let gone = || Error::Other(format!("{} has been removed", room.path().display()));
    room.open(name)?.ok_or_else(gone)
}

/// Cuts every tie to the joiner; returns what it passed on: the lock and the readiness pipe.
fn detach() -> Result<(File, File)> {
    // Whatever the launcher gave to the rank (PMI's sockets, its pipes) would be open as long as we live.
    // SAFETY: main() has opened nothing yet, so no owner of an fd from 3 on exists in this process.
    let closed = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    Errno::result(closed).context(|| "close inherited fds (close_range)")?;
    // Another parent and session: the rank must find no child that it did not start.
    daemon(false, true).context(|| "become a process of its own")?;
    let _ = nix::sys::prctl::set_name(c"fdbroker-keeper");
    umask(Mode::from_bits_truncate(0o077));
    for signal in SIGNALS_OF_THE_JOB {
        // SAFETY: no handler is installed, so none can run.
        let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigIgn) };
    }
    unbind_from_cores();
    let stdio = |fd: std::os::fd::BorrowedFd<'_>| -> Result<File> {
        let number = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(3)).context(|| "duplicate an fd")?;
        // SAFETY: the kernel has just made it for us.
        Ok(File::from(unsafe { OwnedFd::from_raw_fd(number) }))
    };
    let (lock, ready) = (stdio(std::io::stdin().as_fd())?, stdio(std::io::stdout().as_fd())?);
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.context(|| "open /dev/null")?;
    dup2_stdin(&null).context(|| "replace stdin")?;
    dup2_stdout(&null).context(|| "replace stdout")?;
    Ok((lock, ready))
}

/// Launchers bind each rank to its cores. The broker is for all of them: it must not take the first one's.
fn unbind_from_cores() {
    let mut all = CpuSet::new();
    for cpu in 0..CpuSet::count() {
        let _ = all.set(cpu);
    }
    // The kernel keeps to the cores that the job has. Without them all it is slower, not wrong.
    let _ = sched_setaffinity(Pid::from_raw(0), &all);
}

/// Waits until the broker of a killed keeper has ended: one place, one broker.
fn wait_for_predecessor(room: &Room) -> Result<()> {
    let admin_socket = room.admin_socket();
    let Some(directory) = admin_socket.parent().filter(|directory| directory.exists()) else {
        return Ok(());
    };
    let until = Instant::now() + PREDECESSOR_LIMIT;
    loop {
        match DirectoryLock::take(directory) {
            Ok(_) => return Ok(()),
            Err(ListenError::InUse { .. }) if Instant::now() < until => {
                std::thread::sleep(PREDECESSOR_LOOK_INTERVAL);
            }
            Err(cause) => return Err(Error::Other(cause.to_string())),
        }
    }
}

/// Gives the lock back when the broker ends by itself.
fn watch(pid: Pid, tenure: &SharedTenure) {
    // Its status stays to be taken, so that the pid stays its own.
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    while waitid(Id::Pid(pid), flags) == Err(Errno::EINTR) {}
    if let Some(mut lost) = locked(tenure).take() {
        let end = lost.broker.ended().map_or("unknown".into(), |end: ExitStatus| end.to_string());
        say!("fdbroker: the broker has ended ({end}); the next process that joins starts another");
    }
}

/// Clients connected; none if the broker does not answer.
fn clients(broker: &PrivateBroker) -> u32 {
    let asked = Admin::connect(&broker.admin_socket()).and_then(|mut admin| admin.status());
    asked.map_or(0, |status| status.clients.get())
}

fn wait_for(file: &File) -> Result<()> {
    loop {
        match file.lock() {
            Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome.context(|| "wait for a lock of the job's directory"),
        }
    }
}

fn locked(tenure: &SharedTenure) -> std::sync::MutexGuard<'_, Option<Tenure>> {
    tenure.lock().unwrap_or_else(PoisonError::into_inner)
}
