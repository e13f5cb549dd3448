//! The fds that the library keeps for as long as it is connected, for layers that guard them: a program that closes all fds
//! that it does not know must not close these. Must never take a lock, allocate, or name an fd after it was closed.

use crate::fork::Process;
use crate::limits::OWN_FDS;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A process's number in the upper half and an fd in the lower; 0: free. A child's copies name its parent.
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
        // Numbers of processes begin with 1, so that the calling process is not asked for when nothing is kept.
        (entry != 0 && entry >> 32 == u64::from(Process::current().number()))
            .then_some(entry as u32 as RawFd)
    })
}

/// An fd that is kept. It is taken off the list before it is closed: its number may be the program's right after.
#[derive(Debug)]
pub(crate) struct OwnFd<F> {
    // Before `fd`: fields are dropped in their order.
    _entry: Option<Entry>,
    fd: F,
}

#[derive(Debug)]
struct Entry {
    place: &'static AtomicU64,
    value: u64,
}

impl<F: AsFd> OwnFd<F> {
    /// Keeps it. When the list is full it is kept, and not guarded.
    pub fn new(fd: F) -> Self {
        let process = u64::from(Process::current().number());
        let value = process << 32 | u64::from(fd.as_fd().as_raw_fd() as u32);
        let entry = ENTRIES.iter().zip(1..).find_map(|(place, used)| {
            let before = place.load(Ordering::Relaxed);
            if before >> 32 == process {
                return None;
            }
            place.compare_exchange(before, value, Ordering::AcqRel, Ordering::Relaxed).ok()?;
            USED.fetch_max(used, Ordering::Release);
            Some(Entry { place, value })
        });
        OwnFd { _entry: entry, fd }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // Not there: in a child, whose own entry may have taken the place of its parent's.
        let _ = self.place.compare_exchange(self.value, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl<F> Deref for OwnFd<F> {
    type Target = F;
    fn deref(&self) -> &F {
        &self.fd
    }
}

impl<F: AsFd> AsFd for OwnFd<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EventFd;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    #[test]
    fn is_own_when_kept_then_until_it_is_dropped() {
        let fd = EventFd::new().unwrap();
        let number = fd.as_fd().as_raw_fd();
        assert!(!is_own(number));
        let kept = OwnFd::new(fd);
        let mut room = [0; OWN_FDS];
        let count = list(&mut room);
        assert!(is_own(number) && room[..count].contains(&number));
        let OwnFd { _entry: entry, fd } = kept;
        drop(entry);
        // Still open, and the program's.
        assert!(!is_own(fd.as_fd().as_raw_fd()));
    }

    #[test]
    fn is_own_when_in_a_child_then_its_parents_are_not() {
        let kept = OwnFd::new(EventFd::new().unwrap());
        let number = kept.as_fd().as_raw_fd();
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
