//! Which fds of this process are the library's own: for programs that close fds by their numbers,
//! and are to leave these alone ([`is_own`], [`list`]). What a program closes all the same is found
//! out, and the client connects anew.
// Each is known by what it is, since a program may close any number and open something of its own
// there. Must never use or close a number that is not proved first, nor name one to the layers that
// guard them after it was closed. Guarding takes no lock and no memory.

use crate::error::Error;
use crate::fork::Process;
use crate::limits::{HIGH_FD_MOST, OWN_FDS};
use crate::sync::low_half;
use fdbroker_protocol::ErrorCode;
use fdbroker_scm::File;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A process's number in the upper half and an fd in the lower; 0: free. A child's copies name its
/// parent.
static ENTRIES: [AtomicU64; OWN_FDS] = [const { AtomicU64::new(0) }; OWN_FDS];

/// The entries that were ever used: a look need not go further.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Whether this process's library keeps the fd. No lock, no memory, no system call.
pub fn is_own(fd: RawFd) -> bool {
    own().any(|own| own == fd)
}

/// Writes the fds that this process's library keeps, as many as there is room for. How many.
pub fn list(room: &mut [RawFd]) -> usize {
    own().zip(room).map(|(fd, room)| *room = fd).count()
}

fn own() -> impl Iterator<Item = RawFd> {
    ENTRIES[..USED.load(Ordering::Acquire)].iter().filter_map(|entry| {
        let entry = entry.load(Ordering::Acquire);
        // Numbers of processes begin with 1, so that the calling process is not asked for when
        // nothing is kept.
        (entry != 0 && entry >> 32 == u64::from(Process::current().number()))
            .then_some(low_half(entry).cast_signed())
    })
}

/// What an fd is, whatever its number. None of these looks waits for a file system or a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// SO_COOKIE: no two sockets have the same until the system starts again.
    Socket(u64),
    /// F_GET_SEALS, which only a file in memory answers: to ask another file system for the inode
    /// could hang.
    InMemory(File),
    /// Of anything else, statx(2) of what the kernel has at hand.
    Other(File),
}

impl Identity {
    pub fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        if let Some(cookie) = cookie(fd) {
            return Some(Identity::Socket(cookie));
        }
        let is_in_memory = has_seals(fd);
        let file = File::of(fd)?;
        Some(if is_in_memory { Identity::InMemory(file) } else { Identity::Other(file) })
    }

    fn is_of(self, fd: BorrowedFd<'_>) -> bool {
        match self {
            Identity::Socket(known) => cookie(fd) == Some(known),
            Identity::InMemory(known) => has_seals(fd) && File::of(fd) == Some(known),
            Identity::Other(known) => File::of(fd) == Some(known),
        }
    }
}

/// asm-generic/socket.h, of x86-64 and aarch64 alike.
const SO_COOKIE: libc::c_int = 57;

/// Of a socket: getsockopt(2). ENOTSOCK and EBADF for all else.
fn cookie(fd: BorrowedFd<'_>) -> Option<u64> {
    let (mut cookie, mut length): (u64, libc::socklen_t) = (0, 8);
    let room = (&raw mut cookie).cast();
    // SAFETY: the kernel writes at most `length` bytes, which the number has.
    let failed = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, SO_COOKIE, room, &raw mut length)
    };
    (failed == 0).then_some(cookie)
}

fn has_seals(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: takes numbers alone, and no more than answers for one that is not open.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) >= 0 }
}

/// The fd under a number that no open(2) of the program is given while it has fewer fds than half
/// of its limit, nor so high that the table would take memory and each fork(2) time. Where there is
/// no room it stays where it is, but never in the place of stdin, stdout or stderr: a program that
/// has closed these writes there.
pub(crate) fn raised(fd: OwnedFd) -> Result<OwnedFd, Error> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
    let mut least = RawFd::try_from(soft / 2).unwrap_or(HIGH_FD_MOST).min(HIGH_FD_MOST);
    while fd.as_raw_fd() < least && least > libc::STDERR_FILENO {
        if let Ok(fd) = duplicate(&fd, least) {
            return Ok(fd);
        }
        least /= 2;
    }
    off_stdio(fd)
}

/// See [`fdbroker_scm::off_stdio`].
pub(crate) fn off_stdio(fd: OwnedFd) -> Result<OwnedFd, Error> {
    fdbroker_scm::off_stdio(fd).map_err(|_| {
        Error::new(ErrorCode::LocalFdLimit, "an fd that is not in the place of stdio's")
    })
}

fn duplicate(fd: &OwnedFd, least: RawFd) -> nix::Result<OwnedFd> {
    let number = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(least))?;
    // SAFETY: the kernel has just made this fd for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Why a connection ends whose fds are not ours any more. What has their numbers now is the
/// program's, and not touched.
pub(crate) const CLOSED_HERE: &str = "this program has closed its fds";

fn identify(fd: &OwnedFd) -> Result<Identity, Error> {
    Identity::of(fd.as_fd()).ok_or_else(|| {
        let errno = std::io::Error::last_os_error();
        Error::os(ErrorCode::Internal, "what an fd is (statx)", errno)
    })
}

/// An fd that is kept, and never used nor closed unless its number still is what it was.
#[derive(Debug)]
pub(crate) struct OwnFd {
    entry: Option<Entry>,
    fd: ManuallyDrop<OwnedFd>,
    identity: Identity,
}

impl OwnFd {
    /// Keeps it for as long as the client is connected: it is raised, and layers guard it.
    pub fn guarded(fd: OwnedFd) -> Result<Self, Error> {
        let mut kept = Self::raised(fd)?;
        kept.entry = Entry::of(kept.fd.as_raw_fd());
        Ok(kept)
    }

    /// Keeps it for as long as something of this client lives.
    pub fn raised(fd: OwnedFd) -> Result<Self, Error> {
        // Before it is raised: from then on a program that opens by number could be there first.
        let identity = identify(&fd)?;
        Ok(OwnFd { entry: None, fd: ManuallyDrop::new(raised(fd)?), identity })
    }

    /// Keeps it as it is.
    pub fn kept(fd: OwnedFd) -> Result<Self, Error> {
        let identity = identify(&fd)?;
        Ok(OwnFd { entry: None, fd: ManuallyDrop::new(fd), identity })
    }

    /// Keeps a duplicate of it.
    pub fn duplicate(fd: BorrowedFd<'_>, what: &str) -> Result<Self, Error> {
        let refused = |error| Error::no_fd(ErrorCode::Internal, what, error);
        fd.try_clone_to_owned().map_err(refused).and_then(Self::kept)
    }

    /// To be used at once: right after this look another thread could still close it. `None`: it is
    /// not ours any more.
    pub fn proved(&self) -> Option<BorrowedFd<'_>> {
        self.identity.is_of(self.fd.as_fd()).then(|| self.fd.as_fd())
    }

    /// Gives it up, proved. `None`: it is not ours any more.
    pub fn into_proved(mut self) -> Option<OwnedFd> {
        self.entry = None;
        let is_ours = self.proved().is_some();
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once, and `this` is not dropped.
        is_ours.then(|| unsafe { ManuallyDrop::take(&mut this.fd) })
    }

    /// The number, to be polled: which does nothing to whatever has it.
    pub fn polled(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        // Off the list before it is closed: its number may be the program's right after.
        self.entry = None;
        if self.proved().is_some() {
            // SAFETY: not used any more; dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

/// What layers guard: taken off the list by its drop.
#[derive(Debug)]
pub(crate) struct Entry {
    place: &'static AtomicU64,
    value: u64,
}

impl Entry {
    /// `None`: the list is full, and the fd is not guarded.
    pub fn of(fd: RawFd) -> Option<Self> {
        let process = u64::from(Process::current().number());
        let value = process << 32 | u64::from(fd.cast_unsigned());
        ENTRIES.iter().zip(1..).find_map(|(place, used)| {
            let before = place.load(Ordering::Relaxed);
            if before >> 32 == process {
                return None;
            }
            place.compare_exchange(before, value, Ordering::AcqRel, Ordering::Relaxed).ok()?;
            USED.fetch_max(used, Ordering::Release);
            Some(Entry { place, value })
        })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // Not there: in a child, whose own entry may have taken the place of its parent's.
        let _ = self.place.compare_exchange(self.value, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EventFd;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    fn socket() -> OwnedFd {
        fdbroker_scm::seqpacket_pair().unwrap().0
    }

    fn memfd() -> OwnedFd {
        memfd_create(c"t", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap()
    }

    /// Puts something else under the number of an fd that is kept. Whether that is closed by the
    /// drop.
    fn is_taken_for_own(kept: OwnFd, other: &OwnedFd) -> bool {
        let number = kept.polled().as_raw_fd();
        // SAFETY: closes the kept fd, which is what is tested; both numbers are open.
        assert_eq!(unsafe { libc::dup3(other.as_raw_fd(), number, libc::O_CLOEXEC) }, number);
        let is_used = kept.proved().is_some();
        drop(kept);
        // SAFETY: takes a number; closed only when the drop has not.
        let was_closed = unsafe { libc::close(number) } != 0;
        is_used || was_closed
    }

    #[test]
    fn proved_when_its_number_is_anothers_then_neither_used_nor_closed() {
        let device = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let event = || OwnedFd::from(EventFd::new().unwrap());
        for own in [socket, memfd, device] {
            for other in [socket, memfd, event] {
                let kept = OwnFd::kept(own()).unwrap();
                assert!(kept.proved().is_some());
                assert!(!is_taken_for_own(kept, &other()));
            }
        }
    }

    #[test]
    fn guarded_when_kept_then_high_and_listed_until_it_is_dropped() {
        let kept = OwnFd::guarded(socket()).unwrap();
        let number = kept.polled().as_raw_fd();
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert!(number >= HIGH_FD_MOST.min(i32::try_from(soft / 2).unwrap_or(HIGH_FD_MOST)));
        let mut room = [0; OWN_FDS];
        let count = list(&mut room);
        assert!(is_own(number) && room[..count].contains(&number));
        drop(kept);
        assert!(!is_own(number));
        // SAFETY: takes a number.
        assert_eq!(unsafe { libc::fcntl(number, libc::F_GETFD) }, -1);
    }

    #[test]
    fn is_own_when_in_a_child_then_its_parents_are_not() {
        let kept = OwnFd::guarded(socket()).unwrap();
        let number = kept.polled().as_raw_fd();
        // SAFETY: the child reads atomics and leaves.
        let child = match unsafe { fork() }.unwrap() {
            // SAFETY: as above.
            ForkResult::Child => unsafe { libc::_exit(i32::from(is_own(number))) },
            ForkResult::Parent { child } => child,
        };
        assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        assert!(is_own(number));
    }
}
