//! What a hit looks at: one entry of 32 bytes, all atomics.
//! Must never be written, but for the referenced bit, without the cache's lock.

use super::settings::ImportMode;
use crate::map::Access;
use fdbroker_protocol::HandlePrefix;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A type that all-zero bytes are a value of.
///
/// # Safety
/// As said: `mem::zeroed` is sound for it.
pub(super) unsafe trait Zeroed {}

// SAFETY: an atomic integer.
unsafe impl Zeroed for AtomicU32 {}

/// One allocation kept open. Tag, generation, address and length change only while the state is
/// FREE: a thread that has pinned the entry and then seen it LIVE reads them as they were when it
/// became so.
#[derive(Debug)]
#[repr(C, align(32))]
pub(super) struct Entry {
    pub tag: AtomicU64,
    pub ptr: AtomicPtr<u8>,
    pub len: AtomicUsize,
    pub generation: AtomicU32,
    word: AtomicU32,
}

// SAFETY: a struct of atomics of integers and of a raw pointer.
unsafe impl Zeroed for Entry {}
const _: () = assert!(size_of::<Entry>() == 32);

/// What the first 32 bytes of a handle are in one word: a thread that knows it has seen the handle.
/// Any one field that differs makes another tag, and without the MAC it cannot be guessed.
pub(super) fn tag_of(prefix: &HandlePrefix) -> u64 {
    let [a, b, c, d] = prefix.magic;
    let [f, g] = prefix.flags.to_le_bytes();
    let head = u64::from_le_bytes([a, b, c, d, prefix.version, prefix.kind, f, g]);
    prefix.mac ^ head ^ prefix.node
}

/// The state word of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(u32);

/// Nothing is open; the entry is to be taken.
const FREE: u32 = 0;
/// Open, in the index, in the list.
const LIVE: u32 = 1;
/// Being looked at by the holder of the lock, to close it.
const CLOSING: u32 = 2;
/// Open and in use, but nobody finds it any more: the last release closes it.
const DETACHED: u32 = 3;

const STATE: u32 = 3;
const WRITABLE: u32 = 4;
const HOST: u32 = 8;
const REFERENCED: u32 = 16;
/// Closed by its last release.
const PASSING: u32 = 32;
/// Nobody can change its bytes any more: children of fork(2) have it, too.
const FINAL: u32 = 64;
const INCARNATION_SHIFT: u32 = 7;
/// Incarnations before an entry's pins repeat themselves.
const INCARNATIONS: u32 = 1 << (u32::BITS - INCARNATION_SHIFT);

impl Word {
    pub fn is_live(self) -> bool {
        self.0 & STATE == LIVE
    }

    pub fn is_detached(self) -> bool {
        self.0 & STATE == DETACHED
    }

    pub fn is_open(self) -> bool {
        self.0 & STATE != FREE
    }

    /// Whether it is found by handle, or will be again in a moment.
    pub fn is_kept(self) -> bool {
        matches!(self.0 & STATE, LIVE | CLOSING)
    }

    pub fn is_referenced(self) -> bool {
        self.0 & REFERENCED != 0
    }

    /// Whether its last release closes it, whatever the cache's settings.
    pub fn is_passing(self) -> bool {
        self.0 & PASSING != 0
    }

    /// Counts what the entry has been; never 0 once it was open.
    pub fn incarnation(self) -> u32 {
        self.0 >> INCARNATION_SHIFT
    }

    pub fn access(self) -> Access {
        if self.0 & WRITABLE != 0 { Access::ReadWrite } else { Access::Read }
    }

    /// Whether the library mapped it itself.
    pub fn is_host(self) -> bool {
        self.0 & HOST != 0
    }

    /// Whether children have it, too.
    pub fn is_final(self) -> bool {
        self.0 & FINAL != 0
    }

    /// Whether it serves a user that wants `access`.
    pub fn serves(self, access: Access) -> bool {
        access == Access::Read || self.access() == Access::ReadWrite
    }
}

impl Entry {
    /// The state. SeqCst: see `segments`.
    #[inline]
    pub fn word(&self) -> Word {
        Word(self.word.load(Ordering::SeqCst))
    }

    /// Notes a use; once, so that hits only read.
    #[inline]
    pub fn refer(&self, seen: Word) {
        if !seen.is_referenced() {
            self.word.fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    /// Marks it as not used since the last round, so that the next round may close it.
    pub fn forget_uses(&self) {
        self.word.fetch_and(!REFERENCED, Ordering::Relaxed);
    }

    /// FREE to LIVE, of the next incarnation; returns that.
    pub fn open(&self, mode: ImportMode, is_host: bool, is_final: bool) -> u32 {
        let before = self.word().incarnation();
        let incarnation = if before + 1 < INCARNATIONS { before + 1 } else { 1 };
        let writable = if mode.access == Access::ReadWrite { WRITABLE } else { 0 };
        let host = if is_host { HOST } else { 0 } | if is_final { FINAL } else { 0 };
        let passing = if mode.keep { 0 } else { PASSING };
        let word = LIVE | writable | host | passing | incarnation << INCARNATION_SHIFT;
        self.word.store(word, Ordering::SeqCst);
        incarnation
    }

    /// LIVE to CLOSING, or back. A hit may set the referenced bit meanwhile, so no plain store.
    pub fn toggle_closing(&self) {
        self.word.fetch_xor(LIVE ^ CLOSING, Ordering::SeqCst);
    }

    /// LIVE or CLOSING to DETACHED.
    pub fn detach(&self) {
        self.word.fetch_or(DETACHED, Ordering::SeqCst);
    }

    /// CLOSING or DETACHED to FREE. The incarnation stays until it is open again: pins of before
    /// are pins of nothing.
    pub fn free(&self) {
        self.word
            .fetch_and(!(STATE | WRITABLE | HOST | REFERENCED | PASSING | FINAL), Ordering::SeqCst);
    }
}
