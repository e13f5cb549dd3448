//! Tells a child process that what it inherited is its parent's: a word that the kernel sets to 0
//! in each child, whether fork(3), _Fork(3) or clone(2) made it (MADV_WIPEONFORK). The first look
//! in a child closes what it must not see of its parent's (`reserved.rs`), before anything else.
//! Must never take a lock or make a system call to tell.
//!
//! A child that shares the memory of its parent (vfork(2), CLONE_VM) cannot be told from it: such a
//! child may only exec.

use crate::limits::CHILD_BEGIN;
use crate::reserved;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};
use nix::time::{ClockId, clock_gettime};
use std::num::NonZeroUsize;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The last number given to a process of this line: a child has its parent's, and takes the next
/// one.
static LAST: AtomicU32 = AtomicU32::new(0);

/// The word while the first thread of a child that looks closes what the child must not see.
const BEGINNING: u32 = u32::MAX;

/// A whole number of pages, of whatever size (4, 16, 64 KiB).
const PAGES: NonZeroUsize = NonZeroUsize::new(64 * 1024).expect("not 0");

/// The process that made something. A child of it is another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    word: &'static AtomicU32,
    number: u32,
}

impl Process {
    /// The calling process: in a child of fork(2) another than in its parent.
    pub fn current() -> Self {
        let word = word();
        let number = match word.load(Ordering::Acquire) {
            0 | BEGINNING => begin(word),
            number => number,
        };
        Process { word, number }
    }

    /// Its number, from 1: unlike those of its parent and of all processes above.
    pub fn number(self) -> u32 {
        self.number
    }

    /// Whether the caller is still that process: one load.
    #[inline]
    pub fn is_current(self) -> bool {
        self.word.load(Ordering::Relaxed) == self.number || self.look_in_child()
    }

    /// It is not. A child of _Fork(3) or clone(2) may look for the first time.
    #[cold]
    fn look_in_child(self) -> bool {
        Process::current();
        false
    }
}

/// The one word of this memory. Threads that come first at once each make one, and the first
/// counts: a child of fork(2) that copies a lock in the middle would wait for ever.
fn word() -> &'static AtomicU32 {
    static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
    // SAFETY: null, or a word that is never unmapped and is used as this atomic alone.
    if let Some(word) = unsafe { WORD.load(Ordering::Acquire).as_ref() } {
        return word;
    }
    let made = wiped_word().unwrap_or_else(word_by_handler);
    let pointer = std::ptr::from_ref(made).cast_mut();
    match WORD.compare_exchange(null_mut(), pointer, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        // SAFETY: as above. The word just made is lost, once in a program's life.
        Err(faster) => unsafe { &*faster },
    }
}

/// The first look of a process: its number. A second thread of a child of _Fork(3) waits here for
/// the first.
#[cold]
fn begin(word: &AtomicU32) -> u32 {
    loop {
        match word.compare_exchange(0, BEGINNING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => {
                reserved::close_in_child();
                let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                word.store(next, Ordering::Release);
                return next;
            }
            Err(BEGINNING) => std::thread::yield_now(),
            Err(number) => return number,
        }
    }
}

/// When fork(3) was last called, in ms of the monotonic clock; 0: not since children look.
static FORKED_MS: AtomicU64 = AtomicU64::new(0);

/// Has children of fork(3) look before fork(3) returns in them.
pub(crate) fn look_in_children() -> nix::Result<()> {
    // Two threads may both pass, and a child whose parent was here. A second handler does nothing.
    static DONE: AtomicBool = AtomicBool::new(false);
    extern "C" fn note() {
        FORKED_MS.store(now_ms(), Ordering::Relaxed);
    }
    extern "C" fn look() {
        Process::current();
    }
    if !DONE.load(Ordering::Acquire) {
        // SAFETY: the handlers live as long as the library; what they do is async-signal-safe.
        let failed = unsafe { libc::pthread_atfork(Some(note), Some(note), Some(look)) };
        if failed != 0 {
            return Err(Errno::from_raw(failed));
        }
        DONE.store(true, Ordering::Release);
    }
    Ok(())
}

/// How long from now it may take until all children that there are have looked.
pub(crate) fn until_children_look() -> Duration {
    let by_ms = match FORKED_MS.load(Ordering::Relaxed) {
        0 => 0,
        forked_ms => forked_ms + ms(CHILD_BEGIN),
    };
    Duration::from_millis(by_ms.saturating_sub(now_ms()))
}

fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    now.map_or(0, ms)
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A word that is 0 in each child.
fn wiped_word() -> nix::Result<&'static AtomicU32> {
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let page = unsafe { mmap_anonymous(None, PAGES, access, MapFlags::MAP_PRIVATE) }?;
    // SAFETY: the range is the mapping just made, all 0; the advice changes no byte of it here.
    unsafe { madvise(page, PAGES.get(), MmapAdvise::MADV_WIPEONFORK) }?;
    // SAFETY: aligned, never unmapped, and used as this atomic alone.
    Ok(unsafe { AtomicU32::from_ptr(page.as_ptr().cast()) })
}

/// Where the system lacks that: a word that a handler sets to 0, which only children of fork(3)
/// run.
fn word_by_handler(errno: nix::Error) -> &'static AtomicU32 {
    static WORD: AtomicU32 = AtomicU32::new(0);
    extern "C" fn in_child() {
        WORD.store(0, Ordering::Relaxed);
    }
    // SAFETY: the handler lives as long as the library and does one atomic store, which is
    // async-signal-safe.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    log::warn!(
        "MADV_WIPEONFORK: {errno}; pthread_atfork: {failed}: use this library in children of fork(3) only"
    );
    &WORD
}
