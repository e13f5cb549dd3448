//! Whose memory this is: the calling process's, or that of a parent which vfork(2) has stopped.
//! Must never take a child for its parent: what the child closes is not the parent's to lose.

use crate::limits::PAGES_BYTES;
use crate::raw;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};
use std::num::NonZeroUsize;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

const LENGTH: NonZeroUsize = NonZeroUsize::new(PAGES_BYTES).expect("not 0");

/// The process that has this memory; the kernel makes it 0 in each child that gets a copy
/// (MADV_WIPEONFORK).
static OWNER: AtomicPtr<AtomicI32> = AtomicPtr::new(null_mut());

/// The process that installed the layer. A child keeps its parent's.
static FIRST: AtomicI32 = AtomicI32::new(0);

/// Remembers the calling process.
pub fn begin() {
    let word = wiped_word();
    word.store(raw::getpid(), Ordering::Relaxed);
    FIRST.store(raw::getpid(), Ordering::Relaxed);
    if OWNER
        .compare_exchange(null_mut(), word.as_ptr().cast(), Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
    {
        // SAFETY: the handler lives as long as the layer, which is never unloaded, and makes one
        // call and two stores.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// Whether the calling process has this memory to itself; not so in a child of vfork(2), or before
/// [`begin`].
pub fn owns_memory() -> bool {
    let Some(owner) = owner() else { return false };
    let caller = raw::getpid();
    // 0: a child that ran no handler (_Fork(3), clone(2)).
    let known = owner.compare_exchange(0, caller, Ordering::Relaxed, Ordering::Relaxed);
    known.is_ok() || known == Err(caller)
}

/// The process that has this memory; in a child of vfork(2) that is its parent. One load.
pub fn of_memory() -> i32 {
    let known = owner().map_or(0, |owner| owner.load(Ordering::Relaxed));
    if known == 0 { look() } else { known }
}

/// A child of _Fork(3) or clone(2) looks for the first time.
#[cold]
fn look() -> i32 {
    owns_memory();
    raw::getpid()
}

/// Whether it is a child of the process that installed the layer.
pub fn is_child() -> bool {
    FIRST.load(Ordering::Relaxed) != raw::getpid()
}

fn owner() -> Option<&'static AtomicI32> {
    // SAFETY: null, or a word that is never unmapped and is used as this atomic alone.
    unsafe { OWNER.load(Ordering::Acquire).as_ref() }
}

extern "C" fn in_child() {
    if let Some(owner) = owner() {
        owner.store(raw::getpid(), Ordering::Relaxed);
    }
}

/// A word that is 0 in each child; where the system has none, one that only children of fork(3)
/// change.
fn wiped_word() -> &'static AtomicI32 {
    static WORD: AtomicI32 = AtomicI32::new(0);
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let Ok(page) = (unsafe { mmap_anonymous(None, LENGTH, access, MapFlags::MAP_PRIVATE) }) else {
        return &WORD;
    };
    // SAFETY: the range is the mapping just made, all 0; the advice changes no byte of it here.
    match unsafe { madvise(page, LENGTH.get(), MmapAdvise::MADV_WIPEONFORK) } {
        // SAFETY: aligned, never unmapped, and used as this atomic alone.
        Ok(()) => unsafe { AtomicI32::from_ptr(page.as_ptr().cast()) },
        Err(_) => &WORD,
    }
}
