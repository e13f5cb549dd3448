//! What a broker tells an administrator who watches: one record for each thing that happened.
//! Layouts only: must never hold IO or state.

use crate::error::StatusItem;
use crate::limits::NAME_BYTES;
use crate::table::wire_enum;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

wire_enum! {
    /// What happened. The record names the client: for a grant its holder, for all others the
    /// owner.
    EventKind: u32 {
        /// A client's hello was answered with a welcome.
        Connected = 1, "connected";
        /// A client's process or connection has ended.
        Gone = 2, "gone";
        /// A new allocation; its owner is the client.
        Deposit = 3, "deposit";
        /// A duplicate of its fd was sent to the client.
        Grant = 4, "grant";
        /// The broker has closed its fd.
        Evict = 5, "evict";
        /// The owner is asked for its fd again.
        Recall = 6, "recall";
        /// The owner has not answered in time.
        Silent = 7, "silent";
        /// The allocation has ended; the status says why.
        End = 8, "end";
        /// A request or deposit of the client was refused; the status names the cap, or is
        /// SHUTTING_DOWN under a drain. Or a connection was refused: the record then has a pid and
        /// a uid, and no client.
        Refusal = 9, "refusal";
        /// The broker is being drained.
        Drain = 10, "drain";
        /// An administrator has ended the drain.
        Undrain = 11, "undrain";
        /// An administrator or a new configuration has changed caps.
        Caps = 12, "caps";
        /// This watcher read too slowly, and `lost` events are missing here.
        Lost = 13, "lost";
        /// The broker serves from now on. What happened before may be missing.
        Started = 14, "started";
        /// A system call on an fd of the uid has not returned for a second.
        Hang = 15, "hang";
    }
}

/// One event, 88 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct EventRecord {
    /// When the broker noted it: microseconds since 1970, UTC.
    pub unix_us: U64,
    /// An [`EventKind`].
    pub kind: U32,
    /// The client's number; `u32::MAX` when the event is of no client.
    pub client: U32,
    /// The pid of the client, or of the connection refused, as the broker sees it, or 0.
    pub pid: U32,
    /// The uid of the client, or of the connection refused, or `u32::MAX`.
    pub uid: U32,
    /// The allocation's slot; `u32::MAX` when the event is of no allocation.
    pub slot: U32,
    /// Generation of the allocation's slot; 0 when the event is of no allocation.
    pub generation: U32,
    /// The allocation's size in bytes, or 0.
    pub size_bytes: U64,
    /// For [`EventKind::Lost`]: how many events are missing; else 0.
    pub lost: U64,
    /// The reason of an end or a refusal.
    pub status: StatusItem,
    /// The client's name, padded with zeros; all zeros when the event is of no client.
    pub name: [u8; NAME_BYTES],
    /// Number of the listener that the client connected to, from 0, as they are listed; with the
    /// uid it is the domain. `u32::MAX`: none that is served now, or the event is of no client.
    pub listener: U32,
    /// Reserved, 0.
    pub reserved: U32,
}
