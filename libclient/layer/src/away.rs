//! Since when a process finds that the broker is away. Its own calls share one wait, and so do its
//! children, which inherit the time. Must never take a lock: a child may have its parent's copy.

use nix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// In ms of the monotonic clock; 0: it is not away, as far as is known.
#[derive(Debug)]
pub(crate) struct Away(AtomicU64);

impl Away {
    pub(crate) const fn new() -> Self {
        Away(AtomicU64::new(0))
    }

    /// What is left of `wait`, which begins with the first call that finds the broker away.
    pub(crate) fn left_of(&self, wait: Duration) -> Duration {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).max(1);
        let begun = self.0.compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed);
        let since_ms = begun.err().unwrap_or(now_ms);
        wait.saturating_sub(Duration::from_millis(now_ms.saturating_sub(since_ms)))
    }

    /// A broker serves.
    pub(crate) fn end(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}
