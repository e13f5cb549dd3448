//! How long the broker takes, as histograms, and what has gone wrong. Layout only: must never hold
//! IO or state.

use crate::count::ByLogTopic;
use crate::resource::{ByResource, ByScope};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U64};

/// Upper bounds of the buckets of a [`Histogram`], in microseconds: from a grant of a held fd (some
/// 10) to the longest that a recall may take; a last bucket has what is above them. Each value is
/// in one bucket.
pub const BUCKET_BOUNDS_US: [u64; 20] = [
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// How often something took how long since the broker's process started, 176 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Histogram {
    /// How many took at most the bound of the same index and more than the bound before it. The
    /// last: more than all bounds.
    pub buckets: [U64; BUCKET_BOUNDS_US.len() + 1],
    /// The sum of all, in microseconds.
    pub sum_us: U64,
}

/// Body of [`crate::Kind::AdminMetricsReply`], 1160 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Metrics {
    /// From reading an acquire to sending the first fds it was granted, waiting included; one per
    /// answer with fds.
    pub grant_latency: Histogram,
    /// From a recall to its supply, one per fd supplied.
    pub recall_time: Histogram,
    /// The longest time that the broker took between two waits for something to do, in
    /// microseconds, since the start of its process.
    pub longest_wake_us: U64,
    /// Records of ended allocations ([`TombstoneRecord`](super::TombstoneRecord)) that the broker
    /// has.
    pub tombstones: U64,
    /// Such records that were dropped for newer ones, since the broker's start.
    pub tombstones_dropped: U64,
    /// Events that the broker has for a watch that begins with the past.
    pub events: U64,
    /// Such events that were dropped for newer ones, since the broker's start.
    pub events_dropped: U64,
    /// What has gone wrong since the broker's start.
    pub journal: Journal,
}

/// What has gone wrong, 768 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Journal {
    /// Refusals by the cap that was full. Beside them there are refusals of other reasons.
    pub refusals: ByScope<ByResource<U64>>,
    /// System calls on clients' fds that had not returned after a second, each counted once.
    pub hangs: U64,
    /// How often a socket of the broker was put back after somebody had removed, replaced or closed
    /// it.
    pub sockets_mended: U64,
    /// Lines that the log would have had, and that were left out.
    pub lines_left_out: ByLogTopic<U64>,
}
