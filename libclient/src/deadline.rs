//! When a call ends at the latest. The broker is told an earlier time, so that its answer, which
//! says what was in the way, is here before the caller leaves. Must never be unbounded.

use crate::interrupt::now;
use crate::limits::{ANSWER_LEAD, REPLY_GRACE};
use fdbroker_protocol::limits::MAX_DEADLINE_MS;
use std::time::{Duration, Instant};

/// The latest moment a call may take until. At most one hour away ([`MAX_DEADLINE_MS`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    at: Instant,
    /// When the broker is to answer at the latest.
    answer_at: Instant,
}

impl Deadline {
    /// `timeout` from now, cut to one hour. Zero: do not wait for anything.
    pub fn after(timeout: Duration) -> Self {
        let timeout = timeout.min(Duration::from_millis(MAX_DEADLINE_MS.into()));
        let at = Instant::now() + timeout;
        Deadline { at, answer_at: at - (timeout / 4).min(ANSWER_LEAD) }
    }

    /// The same, but the broker is to answer within `most` from now: the caller may then ask again.
    /// A slow answer is waited for as long as before.
    #[must_use]
    pub fn answered_within(self, most: Duration) -> Self {
        Deadline { answer_at: self.answer_at.min(Instant::now() + most), ..self }
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
        self.at.saturating_duration_since(now())
    }

    /// Whether it has passed.
    pub fn has_passed(&self) -> bool {
        now() >= self.at
    }

    /// The time that the broker has, in ms, rounded up: 0 only when it has passed.
    pub(crate) fn answer_ms(&self) -> u32 {
        let left = self.answer_at.saturating_duration_since(now());
        let ms = left.as_nanos().div_ceil(1_000_000);
        u32::try_from(ms).map_or(MAX_DEADLINE_MS, |ms| ms.min(MAX_DEADLINE_MS))
    }

    /// Whether the broker has no time left: asking it again is of no use.
    pub(crate) fn is_answered(&self) -> bool {
        now() >= self.answer_at
    }

    /// When the library leaves without an answer.
    pub(crate) fn given_up_at(&self) -> Instant {
        self.at + REPLY_GRACE
    }

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
        assert!(Deadline::longest().answer_ms() > 3_590_000);
    }

    #[test]
    fn remaining_when_zero_then_passed_and_zero() {
        let deadline = Deadline::from_ms(0);
        assert!(deadline.has_passed());
        assert_eq!(deadline.answer_ms(), 0);
    }

    #[test]
    fn answer_when_short_or_long_then_sooner_than_the_deadline_by_a_part_of_it() {
        assert!(Deadline::from_ms(40).answer_ms() <= 30);
        let late = Deadline::from_ms(60_000);
        assert_eq!(late.at() - late.answer_at, ANSWER_LEAD);
    }
}
