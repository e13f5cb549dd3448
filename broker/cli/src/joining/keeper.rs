//! The keeper of a job's broker: a process that starts the broker, and ends it after the last
//! process of the job. Must never keep anything open that its joiner had open: no pipe, no socket,
//! no terminal.
//!
//! Where programs start their broker themselves, a process counts while it is connected, and the
//! joiner holds `members` until its program is. There the broker also stays while it has kept
//! memory, and some seconds more.
//!
//! Why no race here hangs or loses a process:
//! - The keeper waits for `members`, then for `gate`. A joiner that has `gate` only tries
//!   `members`; if that fails it releases `gate` and tries again later. So the broker ends before
//!   the joiner has joined, or after it has ended.
//! - A joiner that has joined holds `members`, so the keeper cannot lock it: the broker that the
//!   joiner found stays.
//! - If the keeper is killed, its broker ends too, and then `keeper` is free, which both have
//!   locked: the next joiner starts another keeper.
//! - If the broker is killed, its keeper starts another in the same room at once. One that is
//!   killed again and again is given up, and the keeper releases `keeper`: the next joiner starts
//!   another keeper in the same room. The old keeper stays, to remove the room if no process joins.
//! - A member may close all its fds, and its lock with them. Its connection still counts: the
//!   broker stays while a client is connected. It is looked at with all locks held, so a client
//!   that has come through a joiner is seen.

use crate::admin::Admin;
use crate::error::{Context, Error, Result, exit};
use crate::output::say;
use crate::private_broker::PrivateBroker;
use crate::rooms::job::Job;
use crate::rooms::room::{GATE, KEEPER, MEMBERS, Room, try_lock};
use fdbrokerd::ListenError;
use fdbrokerd::lock::DirectoryLock;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{SigHandler, Signal};
use nix::sys::stat::{Mode, fstat, umask};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, daemon, dup2_stdin, dup2_stdout, ftruncate};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
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

/// Time between two looks at whether a broker that programs start themselves is used.
const USE_LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How long such a broker stays without a use: the next program of a script finds it.
const LINGER: Duration = Duration::from_secs(5);

/// Bytes of such a broker's log at which it begins anew. The broker says no more than some lines a
/// minute, but nobody knows how long it stays.
const LOG_MOST_BYTES: u64 = 1 << 20;

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
    /// Connections count in place of locks
    #[arg(long)]
    pub until_unused: bool,
}

/// Runs the keeper until its end. Its stdin is the locked file `keeper`, its stdout the pipe that
/// tells the joiner that the broker serves, its stderr the log.
pub fn main(args: KeeperArgs) -> Result<u8> {
    let (lock, mut ready) = detach(args.until_unused)?;
    match Keeper::start(&args, lock) {
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
    /// As [`KeeperArgs`] has it.
    until_unused: bool,
    /// Locked, so that systemd-tmpfiles does not clean the directory up (tmpfiles.d(5)).
    _directory: File,
}

impl Keeper {
    fn start(args: &KeeperArgs, lock: File) -> Result<Self> {
        let KeeperArgs { ref dir, max_fds, until_unused } = *args;
        let room = Room::at(dir);
        let (gate, members) = (open(&room, GATE)?, open(&room, MEMBERS)?);
        let directory = File::open(dir).context(|| format!("open {}", dir.display()))?;
        // Without this lock a clean-up of old files may remove the room. Nothing else depends on
        // it.
        let _ = directory.try_lock_shared();
        wait_for_predecessor(&room)?;
        let lock_of_broker = lock.try_clone().context(|| "pass the lock on")?;
        let broker = PrivateBroker::start_in(dir, max_fds, lock_of_broker)?;
        let pid = broker.pid();
        let tenure = Arc::new(Mutex::new(Some(Tenure { broker, lock })));
        let watched = Arc::clone(&tenure);
        std::thread::Builder::new()
            .name("watch-broker".into())
            .spawn(move || watch(pid, &watched))
            .context(|| "start a thread")?;
        Ok(Keeper { room, gate, members, tenure, until_unused, _directory: directory })
    }

    /// Returns once the broker has ended and the room is removed, or is another keeper's.
    fn serve(&self) -> Result<()> {
        loop {
            if self.until_unused {
                self.wait_until_unused();
            }
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

    /// Returns once the broker was not used for a while, is to end at once, or is given up.
    fn wait_until_unused(&self) {
        let mut used = Instant::now();
        while used.elapsed() < LINGER && !self.room.is_to_stop() && locked(&self.tenure).is_some() {
            if self.is_used() {
                used = Instant::now();
            }
            bound_log();
            std::thread::sleep(USE_LOOK_INTERVAL);
        }
    }

    /// Whether a client is connected, or something is kept where that counts. A broker that does
    /// not answer is of no use to ranks that have ended; else nobody knows.
    fn is_used(&self) -> bool {
        if self.room.is_to_stop() || !self.is_whole() {
            return false;
        }
        let admin = Admin::connect(&self.room.admin_socket());
        admin.and_then(|mut admin| admin.status()).map_or(self.until_unused, |status| {
            let uses = &status.uses;
            let kept = [&uses.kept_fds, &uses.kept_allocations].iter().any(|it| it.now.get() > 0);
            uses.connections.now.get() > 0 || self.until_unused && kept
        })
    }

    /// Whether a process can still find the broker. What somebody has removed of the room is not
    /// put back, and the next process that wants a broker is to get one.
    fn is_whole(&self) -> bool {
        let has_sockets = || self.room.socket().exists() && self.room.admin_socket().exists();
        self.room.is_current(&self.gate, GATE) && has_sockets()
    }

    /// Ends the broker and removes the room, unless it is used; returns whether it did. The caller
    /// has locked `members` and `gate`.
    fn end(&self) -> Result<bool> {
        let mut tenure = locked(&self.tenure);
        if tenure.is_some() && self.is_used() {
            return Ok(false);
        }
        // Somebody has removed the room since. A new one in its place is not ours.
        let is_ours = self.room.is_current(&self.gate, GATE);
        let lock = match tenure.take() {
            Some(Tenure { broker, lock }) => {
                drop(broker);
                Some(lock).filter(|_| is_ours)
            }
            None if !is_ours => None,
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
fn detach(until_unused: bool) -> Result<(File, File)> {
    // The launcher's sockets and pipes for the rank would stay open as long as the keeper lives.
    // SAFETY: main() has opened nothing yet, so no owner of an fd from 3 on exists in this process.
    let closed = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    Errno::result(closed).context(|| "close inherited fds (close_range)")?;
    // With another parent and session, the rank's wait(2) does not find a child that the rank did
    // not start.
    daemon(false, true).context(|| "become a process of its own")?;
    let _ = nix::sys::prctl::set_name(c"fdbroker-keeper");
    umask(Mode::from_bits_truncate(0o077));
    // Where no scheduler ends the job, SIGTERM is for all processes of a session or a machine.
    let is_ended = until_unused && !Job::of_started(|name| std::env::var_os(name)).is_scheduled();
    let not_ours = |signal: &Signal| !(is_ended && *signal == Signal::SIGTERM);
    for signal in SIGNALS_OF_THE_JOB.into_iter().filter(not_ours) {
        // SAFETY: no handler is installed, so none can run.
        let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigIgn) };
    }
    unbind_from_cores();
    unbind_from_memory();
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

/// The same for the binding to nodes of memory.
fn unbind_from_memory() {
    const MPOL_DEFAULT: libc::c_ulong = 0;
    let none = std::ptr::null::<libc::c_ulong>();
    // If this fails the broker is slower, not wrong.
    // SAFETY: the default policy has no mask.
    let _ = unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_DEFAULT, none, 0) };
}

/// Waits until a broker has ended that had taken over from the one of a killed keeper: a room has
/// one broker at a time, and this one does not have the room's lock.
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

/// Begins the log anew, which is stderr and is written at its end, when it has become long.
fn bound_log() {
    let log = std::io::stderr();
    if fstat(&log).is_ok_and(|it| u64::try_from(it.st_size).is_ok_and(|size| size > LOG_MOST_BYTES))
        && ftruncate(&log, 0).is_ok()
    {
        say!("fdbroker: the log begins anew here: it had become long");
    }
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
