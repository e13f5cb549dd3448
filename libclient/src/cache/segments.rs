//! Tables that grow without moving: segments made on demand, zeroed, never freed while the table lives.
//! Must never take a lock to read, nor touch memory that nobody asked for.

use crate::limits::{CACHE_ENTRIES, CACHE_SEGMENT_SHIFT};
use std::sync::OnceLock;

const SEGMENT: usize = 1 << CACHE_SEGMENT_SHIFT;
const SEGMENTS: usize = (CACHE_ENTRIES >> CACHE_SEGMENT_SHIFT) as usize;

/// A type that all-zero bytes are a value of, and that is shared between threads.
///
/// # Safety
/// As said: `mem::zeroed` is sound for it.
pub(super) unsafe trait Zeroed: Sync {}

/// A table of `CACHE_ENTRIES` values.
#[derive(Debug)]
pub(super) struct Segments<T>(Box<[OnceLock<Box<[T; SEGMENT]>>]>);

impl<T: Zeroed> Segments<T> {
    pub fn new() -> Self {
        Segments((0..SEGMENTS).map(|_| OnceLock::new()).collect())
    }

    /// The value, if its segment has been made.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        let segment = self.0.get((number >> CACHE_SEGMENT_SHIFT) as usize)?.get()?;
        Some(&segment[number as usize % SEGMENT])
    }

    /// The value, its segment made if need be.
    ///
    /// # Panics
    /// When `number` is not below `CACHE_ENTRIES`.
    pub fn make(&self, number: u32) -> &T {
        let segment = self.0[(number >> CACHE_SEGMENT_SHIFT) as usize].get_or_init(|| {
            // The allocator takes zeroed memory of this size from the kernel, which gives it page by page, as touched.
            // SAFETY: all-zero bytes are a value of T, so of an array of it.
            unsafe { Box::new_zeroed().assume_init() }
        });
        &segment[number as usize % SEGMENT]
    }
}
