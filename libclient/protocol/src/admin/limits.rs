//! The caps of every scope, shown and changed. Layout only: must never hold IO or state.

use crate::limits::CONFIG_PATH_BYTES;
use crate::resource::{ByResource, ByScope};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U64};

/// The caps of each scope; [`NO_CAP`](crate::NO_CAP) = none.
pub type Limits = ByScope<ByResource<U64>>;

/// Body of [`crate::Kind::AdminLimitsReply`]: the caps of each scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct LimitsReply {
    /// In force.
    pub in_force: Limits,
    /// As the configuration has them: they are in force again after a restart or a reload.
    pub configured: Limits,
    /// The file that they come from, a path and zeros; zeros alone: none.
    pub config_file: [u8; CONFIG_PATH_BYTES],
}

/// Body of [`crate::Kind::AdminSetLimit`], 16 bytes: one cap from now on, until the broker starts
/// or reads its configuration again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct SetLimit {
    /// A [`crate::Scope`].
    pub scope: u8,
    /// A [`crate::Resource`] that can be capped in the scope.
    pub resource: u8,
    /// 1 = say what the cap would be, and change nothing.
    pub dry_run: u8,
    /// Reserved, 0.
    pub reserved: [u8; 5],
    /// The cap; [`NO_CAP`](crate::NO_CAP) = none.
    pub value: U64,
}

/// Body of [`crate::Kind::AdminSetLimitReply`], 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct LimitChange {
    /// The cap until now; [`NO_CAP`](crate::NO_CAP) = none.
    pub former: U64,
    /// The cap in force from now on, or that would be: the cap asked for, or less where the
    /// configuration bounds it.
    pub value: U64,
}
