//! When a call ends at the latest. The broker owns the deadline; the library adds a little grace.
//! Must never be unbounded.

use fdbroker_protocol::limits::MAX_DEADLINE_MS;
use std::time::{Duration, Instant};

/// The latest moment a call may take until. At most one hour away ([`MAX_DEADLINE_MS`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    at: Instant,
}

impl Deadline {
    /// `timeout` from now, cut to one hour. Zero: do not wait for anything.
    pub fn after(timeout: Duration) -> Self {
        let longest = Duration::from_millis(MAX_DEADLINE_MS.into());
        Deadline { at: Instant::now() + timeout.min(longest) }
    }

    /// `ms` milliseconds from now, cut to one hour.
    pub fn from_ms(ms: u32) -> Self {
        Self::after(Duration::from_millis(ms.into()))
    }

    /// The longest wait there is: one hour.
    pub fn longest() -> Self {
        Self::from_ms(MAX_DEADLINE_MS)
    }

    /// Time left; zero when it has passed.
    pub fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub fn has_passed(&self) -> bool {
        Instant::now() >= self.at
    }

    /// Time left in ms, rounded up: 0 only when it has passed.
    pub(crate) fn remaining_ms(&self) -> u32 {
        let ms = self.remaining().as_nanos().div_ceil(1_000_000);
        u32::try_from(ms).map_or(MAX_DEADLINE_MS, |ms| ms.min(MAX_DEADLINE_MS))
    }

    /// The moment itself.
    pub(crate) fn at(&self) -> Instant {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_when_longer_than_an_hour_then_one_hour() {
        assert!(Deadline::after(Duration::MAX).remaining() <= Duration::from_secs(3600));
        assert!(Deadline::longest().remaining_ms() > 3_590_000);
    }

    #[test]
    fn remaining_when_zero_then_passed_and_zero() {
        let deadline = Deadline::from_ms(0);
        assert!(deadline.has_passed());
        assert_eq!(deadline.remaining_ms(), 0);
    }
}
