//! What outlives a broker: records for one after a crash. Plain data; must never be believed
//! unchecked.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::api::deposit::Judged;
use crate::api::ids::{DomainKey, GroupId, JobKey, Now, OwnerKey};
use crate::api::job_name::JobName;
use fdbroker_protocol::{AllocationId, ErrorCode, Gpu, MemoryKind, Share};

/// A kept allocation as it is remembered outside the broker: with its fd in the service manager's
/// store, it outlives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The allocation.
    pub id: AllocationId,
    /// Charged for it.
    pub domain: DomainKey,
    /// Its owner's group.
    pub gid: u32,
    /// Its owner's job, with its name for people.
    pub job: Option<(JobKey, JobName)>,
    /// What its owner said of it when it was deposited, and its file now.
    pub deposit: Judged,
}

/// What is remembered of a live allocation outside the broker, for a broker after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its owner's.
    pub domain: DomainKey,
    /// Its owner's group.
    pub gid: u32,
    /// What it is.
    pub kind: MemoryKind,
    /// The GPU that it is on, as its owner says.
    pub gpu: Gpu,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Who may have it.
    pub share: Share,
    /// Its owner can give its fd again.
    pub recallable: bool,
    /// Its owner; not known of a kept one whose owner is gone.
    pub owner: OwnerKey,
}

/// What has become of the allocations of a broker that was killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comeback {
    /// Their owners have named them again, or they were kept.
    pub named: u64,
    /// Their owners had ended.
    pub without_owner: u64,
    /// Their owners lived, and could not export them again.
    pub not_recallable: u64,
    /// Their owners have not named them in time.
    pub not_named: u64,
}

impl Comeback {
    /// Those that nobody can have any more, though no owner has ended them.
    pub fn lost(&self) -> u64 {
        self.checked_lost().unwrap_or(u64::MAX)
    }

    /// The same; `None`: they are more than there can be.
    pub(crate) fn checked_lost(&self) -> Option<u64> {
        self.without_owner.checked_add(self.not_recallable)?.checked_add(self.not_named)
    }
}

/// What was remembered of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormerLife {
    /// It was live.
    Live {
        /// As [`crate::Core::record`] said.
        record: Record,
        /// Its owner's process may be there still.
        owner_lives: bool,
    },
    /// It had ended, for this reason, and clients may have leases of it, or its owner has not heard
    /// that it was drained.
    Leased {
        /// As [`crate::Core::record`] said.
        record: Record,
        /// Its owner's process may be there still.
        owner_lives: bool,
        /// What its handle answers from now on.
        code: ErrorCode,
    },
    /// It had ended, for this reason, and was drained.
    Ended(ErrorCode),
}

/// A slot of a broker that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormerSlot {
    /// The last allocation that was there.
    pub id: AllocationId,
    /// What became of it.
    pub life: FormerLife,
}

/// What a broker that was killed left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Former<'a> {
    /// Every slot that was ever used, in the order of slots; below `max_slots`, generation not 0.
    pub slots: &'a [FormerSlot],
    /// The live ones whose fds are here. The daemon puts their fds into its table by [`Kept::id`]'s
    /// slot.
    pub kept: &'a [Kept],
    /// The kept groups of objects whose fds are here, likewise; no two of them have a name in
    /// common.
    pub groups: &'a [KeptGroup<'a>],
    /// Versions up to this one may have been given.
    pub last_version: u64,
}

/// An object of a kept group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptObject<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Where in the group's memory it begins, bytes.
    pub offset: u64,
    /// Its size in bytes; may be 0.
    pub size_bytes: u64,
    /// Opaque.
    pub metadata: &'a [u8],
}

/// A kept group, as a table outside the broker remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptGroup<'a> {
    /// Of all its objects; no other group ever has it. 0: it is not sealed yet.
    pub version: u64,
    /// Its memory.
    pub id: AllocationId,
    /// Whose its names are, and charged for it.
    pub domain: DomainKey,
    /// The creator's job, with its name for people.
    pub job: Option<(JobKey, JobName)>,
    /// The creator's pid.
    pub creator_pid: u32,
    /// It lives for so many us after its last use; `None`: it is pinned.
    pub keep_us: Option<u64>,
    /// It ends neither by time nor to make room.
    pub pin: bool,
    /// It may end when bytes are short.
    pub evictable: bool,
    /// When it was sealed.
    pub since: Now,
    /// Its memory, as deposited.
    pub deposit: Judged,
    /// Those that have their names.
    pub objects: Vec<KeptObject<'a>>,
}

/// What the table of kept groups is to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptChange {
    /// The group outlives the broker from now on: [`Core::kept_group`](crate::Core::kept_group)
    /// says what it is.
    Began(GroupId),
    /// Its time or its pin is another one now.
    Changed(GroupId),
    /// An object of the group of this version has lost its name.
    Lost(u64, Arc<[u8]>),
    /// The group of this version has ended.
    Ended(u64),
}
