//! What a job, or a whole domain, is charged for, as an administrator sees it. Layout only: no IO, no state.

use super::Use;
use crate::limits::JOB_NAME_BYTES;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

/// One job of a domain, or one domain, 240 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AccountRecord {
    /// The job's key: what [`super::Filter::Job`] takes. 0 of a domain.
    pub key: U64,
    /// Uid of the domain.
    pub uid: U32,
    /// Listener of the domain.
    pub listener: U32,
    /// Its clients, those being torn down included.
    pub clients: U32,
    /// Kept allocations that clients of the job have left: the domain is charged for them, the job is not. 0 of a domain.
    pub left_allocations: U32,
    /// Fds charged to it.
    pub fds: Use,
    /// Fds of its allocations in the broker.
    pub held_fds: Use,
    /// Bytes of its allocations held in the broker.
    pub held_bytes: Use,
    /// Its open leases.
    pub open_leases: Use,
    /// Its mapped leases.
    pub mapped_leases: Use,
    /// Its allocations.
    pub allocations: Use,
    /// Those registered to outlive their owner.
    pub kept_allocations: Use,
    /// The job's name in printable ASCII, padded with zeros: `slurm:4711`, `flux:fTE9HHdZvi3`, `pbs:12.server`,
    /// `k8s:UID` of the pod, else `unit:NAME` of the nearest service or scope of systemd. Empty when the cgroup has no
    /// such name, and for a domain.
    pub name: [u8; JOB_NAME_BYTES],
}
