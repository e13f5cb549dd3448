//! What lanes do, and what they say once it is done. Jobs and answers are plain data, for they go
//! to other processes and back. Must never be done on the loop: each of it may take long or hang
//! for ever.

use crate::fds::classify::look;
use crate::kernel::{Device, Start};
use fdbroker_core::{JobKey, JobName, Lane, PodKey, Ticket};
use fdbroker_protocol::Status;
use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// No uid. Fds that are nobody's fault are counted against it, and it is never refused.
pub const NOBODY: u32 = u32::MAX;

/// What closes an fd; replaced by tests with something slower. Called in a lane's process, as the
/// next one: it neither allocates nor takes a lock.
pub type CloseFn = Arc<dyn Fn(OwnedFd, Lane) + Send + Sync>;

/// What reads an fd's fdinfo: [`look`], or what tests put in its place.
pub type LookFn = Arc<dyn Fn(BorrowedFd<'_>) -> Option<Device> + Send + Sync>;

/// What makes facts of a process's /proc/PID/cgroup, if that can be read, and /proc/PID/stat.
/// Called on the loop.
pub type ProcessFn = Arc<dyn Fn(Option<&[u8]>, &[u8]) -> Process + Send + Sync>;

/// What /proc says of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Of its cgroups; `None` when they cannot be read: it is in another PID namespace, or gone.
    pub job: Option<(JobKey, JobName)>,
    /// Likewise; `None` when it is in no pod, too.
    pub pod: Option<PodKey>,
    /// Why it is in none, for the log.
    pub outside: &'static str,
    /// Nothing when it cannot be read.
    pub start: Start,
}

/// What lanes call; tests have calls that hang.
#[derive(Clone)]
pub struct Calls {
    pub close: CloseFn,
    /// Reads the fdinfo of an fd.
    pub look: LookFn,
    /// Makes facts of what was read about a process.
    pub process: ProcessFn,
    /// Directories that are root's alone where pods count, as far as they are there.
    pub roots_own: Arc<[CString]>,
}

impl Calls {
    /// The calls of a daemon; `process` makes facts of what was read about a process.
    pub fn real(process: impl Fn(Option<&[u8]>, &[u8]) -> Process + Send + Sync + 'static) -> Self {
        let (close, look): (CloseFn, LookFn) = (Arc::new(|fd, _| drop(fd)), Arc::new(look));
        Calls { close, look, process: Arc::new(process), roots_own: Arc::new([]) }
    }
}

/// What a lane's work on a job comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The fd was held; the core charged it under this ticket.
    Held(Ticket),
    /// The fd came with a message of this uid and was not kept; the core charged it under this
    /// ticket.
    Arrived(Ticket, u32),
    /// The fd was charged to nobody.
    Uncharged,
    /// The core never saw the fd; it counts against this uid's refused fds.
    Refused(u32),
    /// The main socket of the ended connection with this number, of this uid, is closed.
    Retired(usize, u32),
    /// So is its event socket.
    RetiredEvent(usize, u32),
    /// A message of this uid has been dropped with its fds.
    Dropped(u32),
    /// This uid's fd has been looked at: the device number of dma-bufs, if it is one.
    Looked(u32, Option<Device>),
    /// A socket of this uid that was turned away is closed.
    TurnedAway(u32),
    /// The facts about the process of the connection with this number and serial.
    Process(usize, u64, Process),
    /// The facts about the process of the caller with this number, whose pod counts.
    Caller(u64, Process),
    /// The configuration has been read again: its bytes, or the errno.
    Reread(Result<usize, i32>),
    /// Messages of the carrier of kept objects with this number have been dropped.
    Carried(u32),
    /// The fd of the seal with this number has been opened for readers as this one, or could not
    /// be: the errno.
    Opened(u64, Result<RawFd, i32>),
    /// The fd that was held before it is closed.
    Replaced,
}

impl Report {
    /// Completed by what the lane has found: its number, and its text.
    pub fn completed(self, value: i64, text: &[u8], process: &ProcessFn) -> Self {
        let result = usize::try_from(value).map_err(|_| i32::try_from(-value).unwrap_or(libc::EIO));
        let facts = || {
            let (cgroup, stat) = text.split_at(result.unwrap_or(0).min(text.len()));
            process(result.is_ok().then_some(cgroup), stat)
        };
        match self {
            Report::Looked(uid, _) => Report::Looked(uid, device_of(value)),
            Report::Process(number, serial, _) => Report::Process(number, serial, facts()),
            Report::Caller(number, _) => Report::Caller(number, facts()),
            Report::Reread(_) => Report::Reread(result),
            Report::Opened(number, _) => {
                Report::Opened(number, result.map(|fd| RawFd::try_from(fd).unwrap_or(-1)))
            }
            closed => closed,
        }
    }

    /// Whether the lane has nothing to add.
    pub fn is_complete(&self) -> bool {
        use Report::{Caller, Looked, Opened, Process, Reread};
        !matches!(self, Looked(..) | Process(..) | Caller(..) | Reread(_) | Opened(..))
    }

    /// As it is when the lane died at the job; `None`: nobody knows whether the fd is closed, and
    /// its number may be another file's by now, so it stays charged.
    pub fn of_dead(self, process: &ProcessFn) -> Option<Self> {
        let is_of_fd = self.is_complete() || matches!(self, Report::Looked(..));
        (!is_of_fd).then(|| self.completed(-i64::from(libc::EIO), &[], process))
    }
}

/// A device number as the number of a [`Said`].
pub fn device_number(device: Option<Device>) -> i64 {
    device.map_or(-1, |(major, minor)| i64::from(major) << 32 | i64::from(minor))
}

fn device_of(value: i64) -> Option<Device> {
    let value = u64::try_from(value).ok()?;
    Some(((value >> 32) as u32, (value & 0xffff_ffff) as u32))
}

/// What is to be done with the fd of a [`Job`].
pub mod act {
    pub const CLOSE: u32 = 1;
    /// As one of the accepted fds.
    pub const CLOSE_ACCEPTED: u32 = 2;
    /// A duplicate, closed when its fdinfo has been read.
    pub const LOOK: u32 = 3;
    /// A duplicate of a socket, closed when `number` messages at most have been dropped from it.
    pub const DROP: u32 = 4;
    /// The same, of one whose connection is shut down first.
    pub const EMPTY: u32 = 8;
    /// A socket, closed when its peer has been told why it is turned away, if there is room for
    /// that.
    pub const TURN_AWAY: u32 = 9;
    /// None: what /proc says of the process `number` is read.
    pub const PROCESS: u32 = 5;
    /// The same, if the cgroups above those of pods are root's alone.
    pub const PROCESS_OF_POD: u32 = 10;
    /// A memfd that begins with the path of a file: the file's bytes are written behind it.
    pub const READ: u32 = 6;
    /// A duplicate, closed when it has been opened for readers.
    pub const OPEN: u32 = 7;
}

/// One thing that a lane is to do, as it travels. Its fds have the same numbers there.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Job {
    /// A number of [`act`].
    pub act: u32,
    /// Given away with the job: the lane closes it.
    pub fd: RawFd,
    pub number: u32,
    pub reserved: u32,
}

impl Job {
    /// Gives the fd away.
    pub fn with(act: u32, fd: OwnedFd, number: usize) -> Self {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        Job { act, fd: fd.into_raw_fd(), number, reserved: 0 }
    }

    /// [`act::TURN_AWAY`], for this: without the pid that it may have.
    pub fn turning_away(socket: OwnedFd, status: Status) -> Self {
        let Status { code, resource, scope, value, .. } = status;
        let number = u32::from(code) << 16 | u32::from(resource) << 8 | u32::from(scope);
        let reserved = u32::try_from(value).unwrap_or(u32::MAX);
        Job { act: act::TURN_AWAY, fd: socket.into_raw_fd(), number, reserved }
    }

    /// What [`Job::turning_away`] was given.
    pub fn status(self) -> Status {
        let [_, _, resource, scope] = self.number.to_be_bytes();
        let code = (self.number >> 16) as u16;
        Status { code, resource, scope, pid: 0, value: self.reserved.into() }
    }

    /// Lends the fd, which is open until the job is done.
    pub fn lent(act: u32, fd: BorrowedFd<'_>) -> Self {
        Job { act, fd: fd.as_raw_fd(), ..Job::default() }
    }
}

/// A job with what is to be reported of it.
pub type Task = (Job, Report);

/// What a [`Said`] tells.
pub mod word {
    /// The lane waits for jobs.
    pub const READY: u32 = 1;
    /// It has waited for a while.
    pub const IDLE: u32 = 2;
    /// So many jobs of those at hand are done; the last one's number is `value`.
    pub const DONE: u32 = 3;
    /// The lane's process has ended.
    pub const ENDED: u32 = 4;
    /// It could not be started: `value` is the errno.
    pub const NOT_STARTED: u32 = 5;
}

/// What lanes and their spawner tell the loop; text may follow.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Said {
    /// Of which lane, by its place.
    pub place: u32,
    /// Tells the lane from others that had the place.
    pub serial: u32,
    /// A number of [`word`].
    pub word: u32,
    pub done: u32,
    pub value: i64,
}

/// The loop has a lane started.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Order {
    pub place: u32,
    pub serial: u32,
    /// The socket from which it takes jobs.
    pub line: RawFd,
}
