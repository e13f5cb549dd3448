//! The caps of every level, shown and changed. Layout only: no IO, no state.

use crate::error::Resource;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U64};

/// The resources that have caps, in the order of [`CapsRecord`].
pub const CAPPED: [Resource; 7] = [
    Resource::Fds,
    Resource::HeldFds,
    Resource::HeldBytes,
    Resource::OpenLeases,
    Resource::MappedLeases,
    Resource::Allocations,
    Resource::KeptAllocations,
];

/// Caps of one level, 56 bytes; `u64::MAX` = none. Fds, bytes, leases, allocations.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CapsRecord {
    /// By their places in [`CAPPED`].
    pub caps: [U64; CAPPED.len()],
}

/// Body of [`crate::Kind::AdminLimitsReply`], 224 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Limits {
    /// Of the node.
    pub node: CapsRecord,
    /// Of each domain.
    pub domain: CapsRecord,
    /// Of each job of a domain.
    pub job: CapsRecord,
    /// Of each client.
    pub client: CapsRecord,
}

/// Body of [`crate::Kind::AdminSetLimit`], 16 bytes: one cap from now on, until the broker starts or reads its
/// configuration again.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct SetLimit {
    /// A [`crate::Scope`].
    pub scope: u8,
    /// A [`Resource`] of [`CAPPED`].
    pub resource: u8,
    /// Reserved, 0.
    pub reserved: [u8; 6],
    /// The cap; `u64::MAX` = none.
    pub value: U64,
}

/// Body of [`crate::Kind::AdminSetLimitReply`], 16 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct LimitChange {
    /// The cap until now; `u64::MAX` = none.
    pub former: U64,
    /// The cap from now on.
    pub value: U64,
}
