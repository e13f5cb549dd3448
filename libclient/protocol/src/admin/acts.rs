//! What an administrator may do to a running broker: evict, revoke, drain. Layouts only; must never
//! name more allocations in one message than the broker ends in one
//! ([`ENDS_PER_MESSAGE`](crate::limits::ENDS_PER_MESSAGE)).

use super::records::AllocationRecord;
use crate::table::wire_enum;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

/// Bits of [`Act::flags`].
pub mod act_flags {
    /// Report what would become of each allocation, and change nothing.
    pub const DRY_RUN: u32 = 1;
    /// Drain: end the drain instead of beginning one.
    pub const UNDO: u32 = 2;
    /// Watch: begin with the events of the last `cursor` milliseconds.
    pub const SINCE: u32 = 4;
}

/// Body of [`Kind::AdminEvict`](crate::Kind::AdminEvict),
/// [`Kind::AdminRevoke`](crate::Kind::AdminRevoke), [`Kind::AdminDrain`](crate::Kind::AdminDrain)
/// and [`Kind::AdminWatch`](crate::Kind::AdminWatch), 24 bytes. A drain has neither cursor nor
/// filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Act {
    /// Slot to begin at: 0, then each answer's `next_cursor`. Of a watch with [`act_flags::SINCE`]:
    /// for how many milliseconds before now events are told, `u32::MAX` = all there are; else 0.
    pub cursor: U32,
    /// A [`Filter`](super::Filter).
    pub filter: U32,
    /// What the filter compares with.
    pub value: U64,
    /// [`act_flags`].
    pub flags: U32,
    /// Reserved, 0.
    pub reserved: U32,
}

wire_enum! {
    /// What became of one allocation of an act; in a dry run, what would become of it.
    ActOutcome: u32 {
        /// The allocation is evicted or revoked, as the act says.
        Done = 1, "done";
        /// Evict: the broker has no fd of it already.
        Evicted = 2, "evicted already";
        /// Evict: its owner cannot give the fd again.
        Resident = 3, "resident";
        /// Evict: the allocation outlives its owner (`keep`), so its fd stays. Revoke of a job: it
        /// is of named objects that outlive the job.
        Kept = 4, "kept";
        /// Evict: a client waits for the fd, and its owner is asked for it.
        Recalling = 5, "recalling";
        /// Evict: the fd has come, and some of the requests that wait for it are not served yet.
        Waited = 6, "waited for";
        /// Evict: the owner does not answer, so the fd would be lost.
        OwnerSilent = 7, "owner silent";
        /// Evict: it is from before a crash of the broker and not named again yet. The broker has
        /// no fd of it.
        Reserved = 8, "reserved";
        /// It has ended already; leases of it are still out.
        Ended = 9, "ended already";
        /// No allocation has this id (any more).
        NotFound = 10, "not found";
    }
}

/// One allocation that an act was for, 496 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ActRecord {
    /// An [`ActOutcome`].
    pub outcome: U32,
    /// Reserved, 0.
    pub reserved: U32,
    /// The allocation as it was before the act.
    pub allocation: AllocationRecord,
}
