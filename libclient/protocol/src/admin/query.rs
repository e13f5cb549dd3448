//! A query and the head of its answer. Layouts only: must never hold IO or state.

use crate::table::wire_enum;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

wire_enum! {
    /// Which records a query wants.
    Filter: u32 {
        /// Every record.
        None = 0, "none";
        /// Records of one allocation. The low half of `value` is its slot, the high half its
        /// generation.
        Allocation = 1, "allocation";
        /// Records of the process `value`: allocations that it owns, leases that it holds.
        Pid = 2, "pid";
        /// Records of the uid `value`.
        Uid = 3, "uid";
        /// Records of the job with the key `value`: allocations that its clients own, leases that
        /// they hold.
        Job = 4, "job";
    }
}

/// Body of every query, 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Query {
    /// Slot to begin at: 0, then each answer's `next_cursor`.
    pub cursor: U32,
    /// A [`Filter`].
    pub filter: U32,
    /// What the filter compares with.
    pub value: U64,
    /// Reserved, 0.
    pub reserved: U64,
}

/// Head of each paged answer, 8 bytes; the header's `count` records follow. A page may be empty and
/// still not be the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Page {
    /// The cursor of the next query.
    pub next_cursor: U32,
    /// 1 = this was the last page.
    pub done: U32,
}
