//! What is said of objects to the core, and what it says of them. Plain data: must never hold an
//! fd, a clock or an OS type.

use crate::api::deposit::Arrived;
use crate::api::ids::GroupId;
use fdbroker_protocol::object::ObjectEvent;
use fdbroker_protocol::{AllocationId, MemoryKind};
use serde::{Deserialize, Serialize};

/// An object of a group, as its creator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewObject<'a> {
    /// 1 to 255 bytes of UTF-8 without 0.
    pub name: &'a [u8],
    /// Where in the group's memory it begins, bytes.
    pub offset: u64,
    /// Size in bytes, more than 0.
    pub size_bytes: u64,
    /// The version that the name must have when the group is sealed, 0 = none. `None`: see
    /// [`Create::replace`].
    pub expect: Option<u64>,
    /// Opaque.
    pub metadata: &'a [u8],
}

/// What a group has, once it is sealed, from the versions that it replaces then: what its maker has
/// not said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inherits {
    /// [`Create::keep_us`]: the longest of them.
    pub keep: bool,
    /// [`Create::pin`], if one of them has it.
    pub pin: bool,
}

/// A group to begin. One fd comes with the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    /// The names are those of the client's job, not of its domain.
    pub of_job: bool,
    /// Other objects may have the names; they lose them when the group is sealed.
    pub replace: bool,
    /// It outlives its creator, for so many us after its last use; at most
    /// [`Config::object_ttl_us`](crate::Config).
    pub keep_us: Option<u64>,
    /// It ends neither by time nor to make room.
    pub pin: bool,
    /// What it may have beside these.
    pub inherits: Inherits,
    /// It outlives its creator in any case: as long as may be, where nothing else says for how
    /// long.
    pub outlives: bool,
    /// It may end when bytes are short.
    pub evictable: bool,
    /// Its memory. Share, address and what is said of recalls, keeping and virtual fds mean nothing
    /// here.
    pub deposit: Arrived,
    /// Deposits that will follow.
    pub credits_wanted: u32,
    /// The first of its objects.
    pub objects: &'a [NewObject<'a>],
}

/// An object to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deleted<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// The version that it must have; 0 = any.
    pub version: u64,
}

/// What a use of groups is to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch<'a> {
    /// The names are those of the client's job.
    pub of_job: bool,
    /// They outlive their creators, for so many us after their last use, as for
    /// [`Create::keep_us`].
    pub keep_us: Option<u64>,
    /// They end neither by time nor to make room; or they may.
    pub pin: Option<bool>,
    /// A name of each.
    pub names: &'a [&'a [u8]],
}

impl Touch<'_> {
    /// Whether its groups outlive their creators from now on.
    pub fn keeps(&self) -> bool {
        self.keep_us.is_some() || self.pin == Some(true)
    }
}

/// One object of the answer to a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GotObject {
    /// Its version.
    pub version: u64,
    /// Where in the group's memory it begins, bytes.
    pub offset: u64,
    /// Size of the object in bytes.
    pub size_bytes: u64,
    /// Which of the grants of the answer is that of its group.
    pub grant: u16,
    /// Bytes of its metadata.
    pub metadata_len: u16,
    /// Its group, and its place there: for [`Core::metadata_of`](crate::Core::metadata_of).
    pub place: (GroupId, u16),
}

/// The memory of a group in the making.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Making {
    /// The allocation that holds it until the seal, and from then on.
    pub allocation: AllocationId,
    /// What it is.
    pub kind: MemoryKind,
    /// Where in the fd it ends, bytes.
    pub end: u64,
}

/// What happened to a name; of [`ObjectEvent::Lost`] the version says how many events were lost,
/// and the name is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectNews {
    /// What.
    pub event: ObjectEvent,
    /// The version that was sealed, or is gone; 0 of one in the making.
    pub version: u64,
    /// The name.
    pub name: std::sync::Arc<[u8]>,
}
