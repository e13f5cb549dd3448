//! The ranges of device addresses that have physical memory (zeVirtualMemMap), to find them when
//! that memory is destroyed; and the memory whose fd the driver has given to the program. Must
//! never make a forked child wait for a lock of its parent's.

use fdbroker_client::layer::lock;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard};

/// One mapping: its addresses, and the physical memory's handle as a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub range: Range<usize>,
    pub memory: usize,
}

/// The mappings of one process by their first address, as many as the driver has.
struct Mapped {
    process: u32,
    by_base: Mutex<BTreeMap<usize, Mapping>>,
    /// From the base of each allocation whose fd the program has asked the driver for to the
    /// driver's number of it, which tells other memory at the same base, and the fd.
    shown: Mutex<BTreeMap<usize, (u64, RawFd)>>,
}

static CURRENT: AtomicPtr<Mapped> = AtomicPtr::new(std::ptr::null_mut());

/// This process's. A parent's are left alone: they are not a child's, and a thread that the child
/// does not have may hold their lock.
fn current() -> &'static Mapped {
    let process = std::process::id();
    let current = CURRENT.load(Ordering::Acquire);
    // SAFETY: null, or a box that is never freed.
    let known = unsafe { current.as_ref() }.filter(|mapped| mapped.process == process);
    known.unwrap_or_else(|| install(process, current))
}

fn mapped() -> MutexGuard<'static, BTreeMap<usize, Mapping>> {
    lock(&current().by_base)
}

/// Makes this process's table, in the place of none or of a parent's, unless another thread was
/// faster.
fn install(process: u32, before: *mut Mapped) -> &'static Mapped {
    let (by_base, shown) = (Mutex::default(), Mutex::default());
    let new = Box::into_raw(Box::new(Mapped { process, by_base, shown }));
    match CURRENT.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: made above, never freed.
        Ok(_) => unsafe { &*new },
        Err(faster) => {
            // SAFETY: made above, and nobody has seen it.
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: what is installed is never freed; only threads of this process install.
            unsafe { &*faster }
        }
    }
}

/// The program has the driver's fd of this allocation.
pub fn show(base: usize, id: u64, fd: RawFd) {
    lock(&current().shown).insert(base, (id, fd));
}

/// Whether the program has, or has had, the driver's fd of this allocation.
pub fn is_shown(base: usize, id: u64) -> bool {
    lock(&current().shown).get(&base).is_some_and(|(shown, _)| *shown == id)
}

/// Whether it is an fd that the program has: of any allocation, since those of a pool have one.
pub fn is_shown_fd(fd: RawFd) -> bool {
    lock(&current().shown).values().any(|(_, shown)| *shown == fd)
}

/// Forgets the allocations that begin in this range: they end.
pub fn forget_shown(range: &Range<usize>) {
    let mut shown = lock(&current().shown);
    let ended: Vec<usize> = shown.range(range.clone()).map(|(base, _)| *base).collect();
    ended.iter().for_each(|base| _ = shown.remove(base));
}

pub fn add(mapping: Mapping) {
    mapped().insert(mapping.range.start, mapping);
}

/// Takes out the mappings that begin in this range.
pub fn take_in(range: &Range<usize>) -> Vec<Mapping> {
    take(|mapping| range.contains(&mapping.range.start))
}

/// Takes out the mappings of this physical memory.
pub fn take_of(memory: usize) -> Vec<Mapping> {
    take(|mapping| mapping.memory == memory)
}

fn take(is_one: impl Fn(&Mapping) -> bool) -> Vec<Mapping> {
    let mut mapped = mapped();
    let taken: Vec<Mapping> = mapped.values().filter(|mapping| is_one(mapping)).cloned().collect();
    for mapping in &taken {
        mapped.remove(&mapping.range.start);
    }
    taken
}
