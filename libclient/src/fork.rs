//! Tells a child process that what it inherited is its parent's: a word that the kernel sets to 0 in each child, whether
//! fork(3), _Fork(3) or clone(2) made it (MADV_WIPEONFORK). Must never take a lock or make a system call to tell.
//!
//! A child that shares the memory of its parent (vfork(2), CLONE_VM) cannot be told from it: such a child may only exec.

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};
use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The last number given to a process of this line: a child has its parent's, and takes the next one.
static LAST: AtomicU32 = AtomicU32::new(0);

/// A whole number of pages, of whatever size (4, 16, 64 KiB).
const PAGES: NonZeroUsize = NonZeroUsize::new(64 * 1024).expect("not 0");

/// The process that made something. A child of it is another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    word: &'static AtomicU32,
    number: u32,
}

impl Process {
    /// The calling process.
    pub fn current() -> Self {
        static WORD: OnceLock<&'static AtomicU32> = OnceLock::new();
        let word = *WORD.get_or_init(|| wiped_word().unwrap_or_else(word_by_handler));
        let mut number = word.load(Ordering::Relaxed);
        if number == 0 {
            let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            let first = word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
            number = first.map_or_else(|of_another_thread| of_another_thread, |_| next);
        }
        Process { word, number }
    }

    /// Its number, from 1: unlike those of its parent and of all processes above.
    pub fn number(self) -> u32 {
        self.number
    }

    /// Whether the caller is still that process: one load.
    #[inline]
    pub fn is_current(self) -> bool {
        self.word.load(Ordering::Relaxed) == self.number
    }
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

/// Where the system lacks that: a word that a handler sets to 0, which only children of fork(3) run.
fn word_by_handler(errno: nix::Error) -> &'static AtomicU32 {
    static WORD: AtomicU32 = AtomicU32::new(0);
    extern "C" fn in_child() {
        WORD.store(0, Ordering::Relaxed);
    }
    // SAFETY: the handler lives as long as the library and does one atomic store, which is async-signal-safe.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    log::warn!(
        "MADV_WIPEONFORK: {errno}; pthread_atfork: {failed}: use this library in children of fork(3) only"
    );
    &WORD
}
