//! Memory that children inherit, and how it is leased anew: a table that a child reads without a
//! lock, whatever its parent's other threads were doing at the fork. Must never free what a child
//! may read, nor be read by the process that made an entry.

use crate::fork::Process;
use crate::limits::INHERITED;
use crate::sync::low_half;
use fdbroker_protocol::HandlePrefix;
use nix::sys::stat::fstat;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A file by its device and inode.
pub(crate) type File = (u64, u64);

pub(crate) fn file_of(fd: BorrowedFd<'_>) -> Option<File> {
    fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// How a lease of memory is had.
#[derive(Debug)]
pub(crate) enum Way {
    Handle(HandlePrefix),
    /// By any of these names, if that still has the version; `flags` say whose names.
    Names {
        names: Box<[Arc<str>]>,
        version: u64,
        flags: u32,
    },
}

/// Memory that is mapped here and in all children.
#[derive(Debug)]
pub(crate) struct Record {
    pub file: File,
    pub way: Way,
    /// The client that has leased it anew, with the number of its process in the upper half; 0:
    /// none.
    heir: AtomicU64,
}

impl Record {
    /// The same for all records of one allocation.
    pub fn key(&self) -> (File, u64) {
        let number = match &self.way {
            Way::Handle(handle) => {
                let id = handle.id();
                u64::from(id.slot) << 32 | u64::from(id.generation)
            }
            // Given once.
            Way::Names { version, .. } => *version,
        };
        (self.file, number)
    }

    /// The names that may lead to it, each with its version and whose it is.
    pub fn names(&self) -> impl Iterator<Item = (&str, u64, u32)> {
        let (names, version, flags) = match &self.way {
            Way::Names { names, version, flags } => (&names[..], *version, *flags),
            Way::Handle(_) => (&[][..], 0, 0),
        };
        names.iter().map(move |name| (&**name, version, flags))
    }

    /// Whether `client` is to lease it: no other one of this process has.
    pub fn claim(&self, client: u64) -> bool {
        let now = self.heir.load(Ordering::Relaxed);
        let swap = || self.heir.compare_exchange(now, client, Ordering::Relaxed, Ordering::Relaxed);
        now >> 32 != client >> 32 && swap().is_ok()
    }

    /// `client` has no lease of it.
    pub fn let_go(&self, client: u64) {
        let _ = self.heir.compare_exchange(client, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// A number for a client, with that of its process in the upper half.
pub(crate) fn new_client() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = low_half(LAST.fetch_add(1, Ordering::Relaxed));
    u64::from(Process::current().number()) << 32 | u64::from(number)
}

#[derive(Debug)]
struct Entry {
    /// The number of the process that made it in the upper half, and [`LIVE`]; 0: free.
    owner: AtomicU64,
    record: AtomicPtr<Record>,
    /// While it is free: the number of the next free one.
    next: AtomicU32,
}

/// Its record is there.
const LIVE: u64 = 1;

static ENTRIES: [Entry; INHERITED] = [const {
    Entry {
        owner: AtomicU64::new(0),
        record: AtomicPtr::new(std::ptr::null_mut()),
        next: AtomicU32::new(0),
    }
}; INHERITED];
/// The entries that were ever used: a look need not go further.
static USED: AtomicUsize = AtomicUsize::new(0);
/// The first free one of these by its number, from 1; the upper half counts changes. One word, so
/// that a fork finds it whole.
static FREE: AtomicU64 = AtomicU64::new(0);

/// A free entry, now the caller's: its number, from 1.
fn take_free() -> Option<u32> {
    let mut head = FREE.load(Ordering::Acquire);
    while let Some(at) = low_half(head).checked_sub(1) {
        let next = ENTRIES[at as usize].next.load(Ordering::Relaxed);
        match change_free(head, next) {
            Ok(_) => return Some(at + 1),
            Err(now) => head = now,
        }
    }
    let more = |used| (used < INHERITED).then_some(used + 1);
    let used = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
    u32::try_from(used + 1).ok()
}

fn change_free(head: u64, first: u32) -> Result<u64, u64> {
    let new = (head >> 32).wrapping_add(1) << 32 | u64::from(first);
    FREE.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire)
}

/// Keeps a record as long as the memory is mapped: dropped before that is unmapped. In a child it
/// stays.
#[derive(Debug)]
pub(crate) struct Inheritable {
    number: u32,
    process: Process,
}

impl Inheritable {
    /// Of memory mapped from `fd`. `None`: there are too many; children have the memory, and do not
    /// lease it.
    pub fn new(fd: BorrowedFd<'_>, way: Way) -> Option<Self> {
        let file = file_of(fd)?;
        let Some(number) = take_free() else {
            log::debug!("children will not lease it: {INHERITED} mappings are noted for them");
            return None;
        };
        let process = Process::current();
        let made = Inheritable { number, process };
        let record = Box::new(Record { file, way, heir: AtomicU64::new(0) });
        made.entry().record.store(Box::into_raw(record), Ordering::Relaxed);
        made.entry().owner.store(u64::from(process.number()) << 32 | LIVE, Ordering::Release);
        Some(made)
    }

    fn entry(&self) -> &'static Entry {
        &ENTRIES[self.number as usize - 1]
    }
}

impl Drop for Inheritable {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        // First: a child of a fork in between finds nothing.
        self.entry().owner.store(0, Ordering::Release);
        let record = self.entry().record.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: made by `new`, taken out once, and read by no thread of this process, which has
        // made it.
        drop(unsafe { Box::from_raw(record) });
        let mut head = FREE.load(Ordering::Relaxed);
        loop {
            self.entry().next.store(low_half(head), Ordering::Relaxed);
            match change_free(head, self.number) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// What this process has inherited. No lock.
pub(crate) fn inherited() -> impl Iterator<Item = &'static Record> {
    let own = u64::from(Process::current().number());
    ENTRIES[..USED.load(Ordering::Relaxed)].iter().filter_map(move |entry| {
        let owner = entry.owner.load(Ordering::Acquire);
        // SAFETY: the record was there before LIVE was. Another process made it, so nothing in this
        // one takes it back.
        (owner & LIVE != 0 && owner >> 32 != own)
            .then(|| unsafe { &*entry.record.load(Ordering::Relaxed) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_protocol::{AllocationId, Facts, NodeKey};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    use std::os::fd::AsFd;

    fn way(slot: u32) -> Way {
        let id = AllocationId { slot, generation: 1 };
        Way::Handle(NodeKey::from_bytes([7; 32]).seal(42, id, &Facts::NONE).prefix)
    }

    /// Whether `checks` hold in a child.
    fn in_child(checks: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child only reads this table, allocates, and ends; glibc's allocator survives
        // a fork.
        match unsafe { fork() }.unwrap() {
            // SAFETY: as above.
            ForkResult::Child => unsafe { libc::_exit(i32::from(!checks())) },
            ForkResult::Parent { child } => {
                waitpid(child, None).unwrap() == WaitStatus::Exited(child, 0)
            }
        }
    }

    #[test]
    fn inherited_when_forked_then_a_child_and_its_child_have_what_was_there_and_it_stays() {
        let fd = memfd_create(c"final", MFdFlags::MFD_CLOEXEC).unwrap();
        let file = file_of(fd.as_fd()).unwrap();
        let dropped = Inheritable::new(fd.as_fd(), way(1)).unwrap();
        let kept = Inheritable::new(fd.as_fd(), way(2)).unwrap();
        drop(dropped);
        assert_eq!(inherited().filter(|one| one.file == file).count(), 0, "it is this process's");
        let found = || {
            let found: Vec<_> = inherited().filter(|one| one.file == file).collect();
            found.len() == 1 && found[0].key() == (file, 2 << 32 | 1)
        };
        assert!(in_child(move || {
            let its_own = Inheritable::new(fd.as_fd(), way(3)).unwrap();
            drop(kept);
            let stays = found();
            stays && in_child(|| inherited().filter(|one| one.file == file).count() == 2) && {
                drop(its_own);
                found()
            }
        }));
    }

    #[test]
    fn new_when_more_were_made_and_dropped_than_there_is_room_for_then_noted_all_the_same() {
        let fd = memfd_create(c"final", MFdFlags::MFD_CLOEXEC).unwrap();
        for _ in 0..INHERITED + 100 {
            assert!(Inheritable::new(fd.as_fd(), way(1)).is_some());
        }
    }

    #[test]
    fn claim_when_another_client_of_this_process_has_it_then_refused_until_it_lets_go() {
        let heir = AtomicU64::new(0);
        let record = Record { file: (1, 2), way: way(1), heir };
        let [one, other] = [(); 2].map(|()| new_client());
        assert!(record.claim(one) && !record.claim(other));
        record.let_go(other);
        assert!(!record.claim(other));
        record.let_go(one);
        assert!(record.claim(other));
        assert!(in_child(|| record.claim(new_client())), "a child leases for itself");
    }
}
