//! What a broker remembers of allocations that have ended. Layout only: must never hold IO or
//! state.

use crate::limits::JOB_NAME_BYTES;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

/// One file of an allocation that has ended, 104 bytes. An allocation whose owner gave several has
/// one record of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct TombstoneRecord {
    /// Inode of the file; 0 = not known, or, as for CUDA memory, it tells nothing. Such a record is
    /// kept only where leases were out at the end.
    pub inode: U64,
    /// Size of the allocation in bytes.
    pub size_bytes: U64,
    /// Time since the end, in ms.
    pub age_ms: U64,
    /// Slot of the allocation.
    pub slot: U32,
    /// Generation of the allocation.
    pub generation: U32,
    /// Pid of the owner as the broker saw it; 0 = the owner was gone already.
    pub owner_pid: U32,
    /// Uid of the owner.
    pub owner_uid: U32,
    /// Number of the listener that the owner connected to, from 0; `u32::MAX`: none that is served
    /// now.
    pub listener: U32,
    /// The reason of the end: an [`ErrorCode`](crate::ErrorCode).
    pub code: U16,
    /// A [`MemoryKind`](crate::MemoryKind).
    pub kind: u8,
    /// Reserved, 0.
    pub reserved: u8,
    /// Key of the owner's job; 0 = none.
    pub job: U64,
    /// The job's name, see [`AccountRecord::name`](super::AccountRecord::name).
    pub job_name: [u8; JOB_NAME_BYTES],
}
