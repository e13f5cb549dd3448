//! A query and the head of its answer. Layouts only: no IO, no state.

use crate::table::wire_enum;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

wire_enum! {
    /// Which records a query wants.
    Filter: u32 {
        /// All.
        None = 0, "none";
        /// Those of the allocation whose slot is the low and generation the high half of `value`.
        Allocation = 1, "allocation";
        /// Those of the process `value` (the owner's for allocations, the holder's for leases).
        Pid = 2, "pid";
        /// Those of the uid `value`.
        Uid = 3, "uid";
        /// Those of the job with the key `value` (the owner's for allocations, the holder's for leases).
        Job = 4, "job";
    }
}

/// Body of every query, 24 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Query {
    /// Slot to begin at: 0, then each answer's `next_cursor`.
    pub cursor: U32,
    /// A [`Filter`].
    pub filter: U32,
    /// What to filter by.
    pub value: U64,
    /// Reserved, 0.
    pub reserved: U64,
}

/// Head of each paged answer, 8 bytes; the header's `count` records follow. A page may be empty and
/// still not be the last.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Page {
    /// Where the next query goes on.
    pub next_cursor: U32,
    /// 1 = this was the last page.
    pub done: U32,
}
