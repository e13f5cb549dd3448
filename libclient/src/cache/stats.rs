//! The cache's counters as its users see them.
//! Must never cost a hit more than one instruction on a line of its own.

use super::segments::SEATS;
use crate::limits::PIN_STRIPES;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Hits, counted per seat, each on a cache line of its own.
#[derive(Debug, Default)]
pub(super) struct Hits([Line; SEATS]);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

impl Hits {
    #[inline]
    pub fn add(&self, seat: usize) {
        let count = &self.0[seat].0;
        if seat < PIN_STRIPES {
            // One thread alone writes it, and saves a locked instruction.
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed)
        } else {
            _ = count.fetch_add(1, Ordering::Relaxed)
        }
    }

    pub fn sum(&self) -> u64 {
        self.0.iter().map(|line| line.0.load(Ordering::Relaxed)).sum()
    }
}

/// Counters of an [`crate::ImportCache`]. Since its start: hits, misses, stale, evicted. Now: the
/// others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Imports served from the cache, without the broker.
    pub hits: u64,
    /// Imports that asked the broker, or waited for another thread that did; failed ones too.
    pub misses: u64,
    /// Entries found ended when wanted: their address was reused, their owner is gone, the broker
    /// is another.
    pub stale: u64,
    /// Entries closed to stay within the limits.
    pub evicted: u64,
    /// Allocations that are open now, in use or not.
    pub entries: u64,
    /// Of these, in use.
    pub pinned: u64,
    /// Bytes of those open.
    pub bytes: u64,
    /// See [`crate::CacheSettings::max_entries`].
    pub max_entries: u64,
    /// See [`crate::CacheSettings::max_bytes`].
    pub max_bytes: u64,
}

impl fmt::Display for CacheStats {
    /// One line, as `FDBROKER_PRINT_STATS` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheStats { hits, misses, stale, evicted, entries, pinned, bytes, .. } = self;
        write!(
            f,
            "{hits} hits, {misses} misses, {stale} stale, {evicted} evicted; \
             {entries} open ({pinned} in use), {bytes} bytes"
        )
    }
}
