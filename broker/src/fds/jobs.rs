//! What lanes do, and what they say once it is done. Must never be done on the loop: each of it may take long or hang for ever.

use crate::fds::classify::{Looker, open_for_readers};
use crate::kernel::{Device, Start};
use fdbroker_core::{JobKey, JobName, Lane, Ticket};
use fdbroker_scm::{ReceivedFds, RecvError};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// No uid. Fds that are nobody's fault are counted against it, and it is never refused.
pub const NOBODY: u32 = u32::MAX;

/// What closes an fd; replaced by tests with something slower.
pub type CloseFn = Arc<dyn Fn(OwnedFd, Lane) + Send + Sync>;

/// What reads an fd's fdinfo: [`Looker::look`], or what tests put in its place.
pub type LookFn = Arc<dyn Fn(BorrowedFd<'_>) -> Option<Device> + Send + Sync>;

/// What reads the facts about the process with this number.
pub type ProcessFn = Arc<dyn Fn(u32) -> Process + Send + Sync>;

/// What /proc says of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Of its cgroups; `None` when they cannot be read: it is in another PID namespace, or gone.
    pub job: Option<(JobKey, JobName)>,
    /// Nothing when it cannot be read.
    pub start: Start,
}

/// What a lane calls.
#[derive(Clone)]
pub struct Calls {
    /// Closes an fd.
    pub close: CloseFn,
    /// Reads the fdinfo of an fd.
    pub look: LookFn,
    /// Reads the facts about a process.
    pub process: ProcessFn,
}

impl Calls {
    /// The calls of a daemon; `process` reads the facts about a process.
    ///
    /// # Errors
    /// /proc is not mounted.
    pub fn real(process: ProcessFn) -> nix::Result<Self> {
        let viewer = Looker::new()?;
        let look: LookFn = Arc::new(move |fd| viewer.look(fd));
        Ok(Calls { close: Arc::new(|fd, _| drop(fd)), look, process })
    }
}

/// What a lane says once it has done a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The fd was held; the core charged it under this ticket.
    Held(Ticket),
    /// The fd came with a message of this uid and was not kept; the core charged it under this ticket.
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
    /// The configuration has been read again.
    Reread,
    /// Messages of the carrier of kept objects with this number have been dropped.
    Carried(u32),
    /// The fd of the seal with this number has been opened for readers, or could not be.
    Opened(u64),
    /// The fd that was held before it is closed.
    Replaced,
}

/// Where a lane leaves an fd that it has opened, or why it could not.
pub type OpenedFd = Arc<Mutex<Option<nix::Result<OwnedFd>>>>;

/// What a lane is to do.
pub enum Job {
    /// Closes it.
    Close(OwnedFd, Report),
    /// A duplicate, closed when it has been looked at.
    Look(OwnedFd, u32),
    /// A duplicate of a socket, closed when so many messages at most have been dropped from it.
    Drop(OwnedFd, usize, Report),
    /// The process, and the connection's number and serial.
    Process(u32, usize, u64),
    /// Reads the configuration.
    Reread(Box<dyn FnOnce() + Send + Sync>),
    /// A duplicate, closed when it has been opened for readers; the number of the seal.
    Open(OwnedFd, u64, OpenedFd),
}

impl Job {
    /// Does it, in a lane for accepted fds or in another.
    pub fn run(self, calls: &Calls, lane: Lane) -> Report {
        match self {
            Job::Close(fd, report) => {
                (calls.close)(fd, lane);
                report
            }
            Job::Look(fd, uid) => {
                let dmabufs = (calls.look)(fd.as_fd());
                (calls.close)(fd, Lane::Refused);
                Report::Looked(uid, dmabufs)
            }
            Job::Drop(socket, most, report) => {
                drop_messages(socket.as_fd(), most);
                report
            }
            Job::Process(pid, number, serial) => {
                Report::Process(number, serial, (calls.process)(pid))
            }
            Job::Reread(read) => {
                read();
                Report::Reread
            }
            Job::Open(fd, number, opened) => {
                let result = open_for_readers(fd.as_fd()).inspect_err(|error| {
                    log::debug!("the memory of a group cannot be opened for readers: {error}");
                });
                *opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                (calls.close)(fd, lane);
                Report::Opened(number)
            }
        }
    }
}

/// Takes messages out of a socket without taking in their fds: the kernel closes them here.
fn drop_messages(socket: BorrowedFd<'_>, most: usize) {
    let mut no_fds = ReceivedFds::with_capacity(0);
    for _ in 0..most {
        match fdbroker_scm::recv(socket, &mut [0], &mut no_fds) {
            Ok(_) | Err(RecvError::EmptyMessage) => {}
            Err(_) => return,
        }
    }
}
