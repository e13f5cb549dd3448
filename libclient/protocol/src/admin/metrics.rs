//! How long the broker takes, as histograms. Layout only: no IO, no state.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U64};

/// Upper bounds of the buckets of a [`Histogram`], in microseconds: from a grant of a held fd (some 10) to the longest
/// that a recall may take; a last bucket has what is above them. Each value is in one bucket.
pub const BUCKET_BOUNDS_US: [u64; 20] = [
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// Counts of times, 176 bytes. Since the broker's process started.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Histogram {
    /// How many were at most as long as the bound of the same index, and longer than the one before; the last: longer
    /// than all bounds.
    pub buckets: [U64; BUCKET_BOUNDS_US.len() + 1],
    /// Their sum, in microseconds.
    pub sum_us: U64,
}

/// Body of [`crate::Kind::AdminMetricsReply`], 352 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Metrics {
    /// From reading an acquire to sending the first fds it was granted, waiting included; one per answer with fds.
    pub grant_latency: Histogram,
    /// From a recall to its supply, one per fd supplied.
    pub recall_time: Histogram,
}
