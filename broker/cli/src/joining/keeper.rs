//! The keeper of a job's broker: a process that starts the broker, and ends it after the last
//! process of the job. Must never keep anything open that its joiner had open: no pipe, no socket,
//! no terminal.
//!
//! Why no race here hangs or loses a process:
//! - The keeper waits for `members`, then for `gate`. A joiner that has `gate` only tries
//!   `members`; if that fails it releases `gate` and tries again later. So the broker ends before
//!   the joiner has joined, or after it has ended.
//! - A joiner that has joined holds `members`, so the keeper cannot lock it: the broker that the
//!   joiner found stays.
//! - If the keeper is killed, its broker ends too and `keeper` is free: the next joiner starts
//!   another keeper.
//! - If the broker is killed, its keeper starts another in the same room at once. One that is
//!   killed again and again is given up, and the keeper releases `keeper`: the next joiner starts
//!   another keeper in the same room. The old keeper stays, to remove the room if no process joins.
//! - A member may close all its fds, and its lock with them. Its connection still counts: the
//!   broker stays while a client is connected.

use crate::admin::Admin;
use crate::error::{Context, Error, Result, exit};
use crate::output::say;
use crate::private_broker::PrivateBroker;
use crate::rooms::room::{GATE, KEEPER, MEMBERS, Room, try_lock};
use fdbrokerd::ListenError;
use fdbrokerd::lock::DirectoryLock;
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
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for the end of a killed keeper's broker, which takes milliseconds: the broker's
/// lifeline is cut.
const PREDECESSOR_LIMIT: Duration = Duration::from_secs(5);

/// Pause between two looks at whether that broker has ended.
const PREDECESSOR_LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Pause between two looks at whether the last client without a lock has gone. That is rare, and no
/// process waits for it.
const CLIENT_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Signals that a launcher sends to all processes of a job. They are for the ranks: the keeper ends
/// after the ranks.
const SIGNALS_OF_THE_JOB: [Signal; 7] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
];

/// The broker, and the lock on `keeper` that says that this process looks after it.
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

/// Runs the keeper until its end. Its stdin is the locked file `keeper`, its stdout the pipe that
/// tells the joiner that the broker serves, its stderr the log.
pub fn main(KeeperArgs { dir, max_fds }: KeeperArgs) -> Result<u8> {
    let (lock, mut ready) = detach()?;
    match Keeper::start(&dir, max_fds, lock) {
        Ok(keeper) => {
            // This fails if the joiner has been killed. Then the keeper finds no members, and ends.
            let _ = ready.write_all(b"READY\n");
            drop(ready);
            keeper.serve()?;
            Ok(exit::OK)
        }
        Err(error) => {
            // The pipe is still open here: when it closes, the joiner shows the log.
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
    /// `None` once the broker is given up.
    tenure: SharedTenure,
    /// Locked, so that systemd-tmpfiles does not clean the directory up (tmpfiles.d(5)).
    _directory: File,
}

impl Keeper {
    fn start(dir: &Path, max_fds: Option<u64>, lock: File) -> Result<Self> {
        let room = Room::at(dir);
        let (gate, members) = (open(&room, GATE)?, open(&room, MEMBERS)?);
        let directory = File::open(dir).context(|| format!("open {}", dir.display()))?;
        // Without this lock a clean-up of old files may remove the room. Nothing else depends on
        // it.
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

    /// Returns once the broker has ended and the room is removed, or is another keeper's.
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

    /// Ends the broker and removes the room, unless a client is connected; returns whether it did.
    /// The caller has locked `members` and `gate`.
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
            // Another keeper has removed the room since. A new room in its place is not ours.
            None if !self.room.is_current(&self.gate, GATE) => None,
            // Another keeper may look after the room now: it has the lock.
            None => self.room.open(KEEPER)?,
        };
        // Locking again what this open file has already locked does no harm (flock(2)).
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

/// Cuts every tie to the joiner. Returns what the joiner passed on: the lock and the readiness
/// pipe.
fn detach() -> Result<(File, File)> {
    // The launcher's sockets and pipes for the rank would stay open as long as the keeper lives.
    // SAFETY: main() has opened nothing yet, so no owner of an fd from 3 on exists in this process.
    let closed = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    Errno::result(closed).context(|| "close inherited fds (close_range)")?;
    // With another parent and session, the rank's wait(2) does not find a child that the rank did
    // not start.
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
        // SAFETY: the kernel has just made this fd, so nothing else owns it.
        Ok(File::from(unsafe { OwnedFd::from_raw_fd(number) }))
    };
    let (lock, ready) = (stdio(std::io::stdin().as_fd())?, stdio(std::io::stdout().as_fd())?);
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.context(|| "open /dev/null")?;
    dup2_stdin(&null).context(|| "replace stdin")?;
    dup2_stdout(&null).context(|| "replace stdout")?;
    Ok((lock, ready))
}

/// Undoes the binding to cores that the launcher gave to the rank: the broker serves all ranks, and
/// must not slow the first.
fn unbind_from_cores() {
    let mut all = CpuSet::new();
    for cpu in 0..CpuSet::count() {
        let _ = all.set(cpu);
    }
    // The kernel leaves out cores that are not the job's. If this fails the broker is slower, not
    // wrong.
    let _ = sched_setaffinity(Pid::from_raw(0), &all);
}

/// Waits until the broker of a killed keeper has ended: a room has one broker at a time.
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

/// Starts the broker again when it ends by itself, and releases the lock when that is of no use.
fn watch(mut pid: Pid, tenure: &SharedTenure) {
    // The broker stays a zombie, so that no other process gets its pid.
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    loop {
        while waitid(Id::Pid(pid), flags) == Err(Errno::EINTR) {}
        let mut tenure = locked(tenure);
        let Some(Tenure { broker, .. }) = tenure.as_mut() else { return };
        let end = broker.ended().unwrap_or_default();
        if !broker.start_again(end, "the next process that joins starts another") {
            *tenure = None;
            return;
        }
        pid = broker.pid();
    }
}

/// How many clients are connected; 0 if the broker does not answer.
fn clients(broker: &PrivateBroker) -> u64 {
    let asked = Admin::connect(&broker.admin_socket()).and_then(|mut admin| admin.status());
    asked.map_or(0, |status| status.uses.connections.now.get())
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
