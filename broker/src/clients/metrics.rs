//! Times counted in buckets. Must never overflow: the state of another broker may contain any
//! count.

use fdbroker_core::{Now, RequestId};
use fdbroker_protocol::admin::{self, BUCKET_BOUNDS_US};
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::U64;

/// Counts of times by [`BUCKET_BOUNDS_US`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    buckets: [u64; BUCKET_BOUNDS_US.len() + 1],
    sum_us: u64,
}

impl Histogram {
    /// One more, in microseconds.
    pub fn observe(&mut self, us: u64) {
        let bucket = &mut self.buckets[BUCKET_BOUNDS_US.partition_point(|bound| *bound < us)];
        // The state of another broker may contain any count.
        *bucket = bucket.saturating_add(1);
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// How many there are.
    #[cfg(test)]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// As administrators see it.
    pub fn record(&self) -> admin::Histogram {
        admin::Histogram { buckets: self.buckets.map(U64::new), sum_us: self.sum_us.into() }
    }
}

/// What is counted, since the start of the first broker whose clients were handed on to this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// From reading an acquire to sending fds.
    pub grant_latency: Histogram,
    /// From a recall to its supply.
    pub recall_time: Histogram,
}

/// An acquire that has been read and not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The client's number for it.
    pub request: RequestId,
    /// When it was read.
    pub at: Now,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observe_when_on_a_bound_then_in_its_bucket_and_above_all_in_the_last() {
        let mut histogram = Histogram::default();
        for us in [0, 5, 6, 10_000_000, 10_000_001, u64::MAX] {
            histogram.observe(us);
        }
        let mut expected = [0; BUCKET_BOUNDS_US.len() + 1];
        (expected[0], expected[1], expected[19], expected[20]) = (2, 1, 1, 2);
        assert_eq!(histogram.buckets, expected);
        assert_eq!((histogram.count(), histogram.sum_us), (6, u64::MAX));
    }

    #[test]
    fn observe_when_a_count_can_grow_no_more_then_it_stays() {
        let mut histogram = Histogram { sum_us: 1, ..Histogram::default() };
        histogram.buckets[0] = u64::MAX;
        histogram.observe(5);
        assert_eq!((histogram.buckets[0], histogram.sum_us), (u64::MAX, 6));
    }
}
