//! Messages about named objects: fixed little-endian layouts without padding, behind which names
//! and metadata follow (`named.rs` takes them apart). Layouts only: must never hold IO or state.
//! PROTOCOL.md explains them.

use crate::facts::FactsItem;
use crate::limits::DRIVER_DATA_BYTES;
use crate::table::wire_enum;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

/// The fixed part of an item that has bytes behind it.
pub trait Named: FromBytes + KnownLayout + Immutable + Unaligned {
    /// Whether it may have no name.
    const MAY_BE_EMPTY: bool = false;

    /// Bytes of its name.
    fn name_bytes(&self) -> usize;

    /// Bytes behind the name.
    fn more_bytes(&self) -> usize {
        0
    }
}

/// Bits of the `flags` in the heads of requests about objects.
pub mod object_flags {
    /// The names are those of the client's job, not of its domain.
    pub const JOB: u32 = 1;
    /// Create: another object may have the name; it loses it when this one is sealed.
    pub const REPLACE: u32 = 2;
    /// Create, touch: the group outlives its creator, for `ttl_ms` after its last use. A create
    /// without it, and without [`NO_KEEP`]: as the versions that it replaces when it is sealed, the
    /// longest of several.
    pub const KEEP: u32 = 4;
    /// Create, touch: the group ends neither by time nor to make room. A create without it, and
    /// without [`NO_PIN`]: as one of the versions that it replaces when it is sealed.
    pub const PIN: u32 = 8;
    /// Touch: it may again.
    pub const UNPIN: u32 = 16;
    /// Create: the group may end when bytes are short.
    pub const EVICTABLE: u32 = 32;
    /// Watch: no more.
    pub const UNWATCH: u32 = 64;
    /// Create, without KEEP: no time is inherited.
    pub const NO_KEEP: u32 = 128;
    /// Create, without PIN: no pin is inherited.
    pub const NO_PIN: u32 = 256;
    /// Create: where it has neither a time nor a pin, of its own or inherited, it outlives its
    /// creator as long as the broker allows.
    pub const OUTLIVE: u32 = 512;
    /// Every bit that has a meaning in a create.
    pub const OF_CREATE: u32 = JOB | REPLACE | KEEP | PIN | EVICTABLE | NO_KEEP | NO_PIN | OUTLIVE;
    /// Every bit that has a meaning in a touch.
    pub const OF_TOUCH: u32 = JOB | KEEP | PIN | UNPIN;
    /// Every bit that has a meaning in a watch.
    pub const OF_WATCH: u32 = JOB | UNWATCH;
    /// Every bit that has a meaning in a get, delete, list or stat.
    pub const OF_NAMES: u32 = JOB;
}

/// Head of [`Kind::ObjectCreate`](crate::Kind::ObjectCreate), 136 bytes: the memory of a group.
/// [`ObjectItem`]s follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectCreateHead {
    /// The memory; its size is more than 0.
    pub facts: FactsItem,
    /// Bytes of `driver_data` in use, 0..=64.
    pub driver_data_len: u8,
    /// Fds that will follow this message: the answer grants credit for as many of them as are free.
    pub credits_wanted: U16,
    /// Bits of [`object_flags`].
    pub flags: U32,
    /// Reserved, 0.
    pub reserved: U32,
    /// With KEEP: how long the group lives after its last use, in ms; 0 = as long as the broker
    /// allows.
    pub ttl_ms: U64,
    /// The driver's handle bytes, given with each grant.
    pub driver_data: [u8; DRIVER_DATA_BYTES],
}

/// An object of a group, 32 bytes; its name and its metadata follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectItem {
    /// Where in the group's memory it begins, in bytes.
    pub offset: U64,
    /// Its size in bytes; may be 0.
    pub size_bytes: U64,
    /// With [`ObjectItem::EXPECT`]: the version that the name must have when the group is sealed; 0
    /// = none.
    pub expect: U64,
    /// Bytes of metadata, 0..=4096.
    pub metadata_len: U16,
    /// Bytes of the name, 1..=255.
    pub name_len: u8,
    /// [`ObjectItem::EXPECT`], or 0.
    pub flags: u8,
    /// Reserved, 0.
    pub reserved: U32,
}

impl ObjectItem {
    /// Bit of `flags`: `expect` is meant.
    pub const EXPECT: u8 = 1;
}

impl Named for ObjectItem {
    fn name_bytes(&self) -> usize {
        self.name_len.into()
    }

    fn more_bytes(&self) -> usize {
        self.metadata_len.get().into()
    }
}

/// Body of [`Kind::ObjectCreated`](crate::Kind::ObjectCreated), 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectCreated {
    /// The group's number, never 0.
    pub group: U64,
    /// Fds the client may deposit from now on.
    pub deposit_credits: U32,
    /// [`ObjectCreated::KEPT_ENDS_WITH_BROKER`], or 0.
    pub flags: U32,
}

impl ObjectCreated {
    /// Bit of `flags`: no service manager stores what this broker keeps. Objects outlive their
    /// creator, and end with the broker.
    pub const KEPT_ENDS_WITH_BROKER: u32 = 1;
}

/// A group that its creator names, 8 bytes: the head of an add, the body of a seal and of an abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectGroup {
    /// From [`ObjectCreated::group`].
    pub group: U64,
}

/// Body of [`Kind::ObjectSealed`](crate::Kind::ObjectSealed), 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectSealed {
    /// The version of all objects of the group: above every version given before on this node.
    pub version: U64,
}

/// A name alone, 1 byte; the name follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectName {
    /// Bytes of the name, 1..=255.
    pub name_len: u8,
}

impl Named for ObjectName {
    fn name_bytes(&self) -> usize {
        self.name_len.into()
    }
}

/// Head of a get, 8 bytes; [`ObjectName`]s follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectGetHead {
    /// How long the broker may park the request, in ms; 0 = never.
    pub deadline_ms: U32,
    /// Bits of [`object_flags`].
    pub flags: U32,
}

/// Head of [`Kind::ObjectGot`](crate::Kind::ObjectGot), 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectGotHead {
    /// Grants behind the items: one for each group, with an fd each.
    pub grants: U16,
    /// Reserved, 0.
    pub reserved: [U16; 3],
}

/// One object of a get, 32 bytes, in the order of the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectGotItem {
    /// Given when it was sealed, above every version that the name had before.
    pub version: U64,
    /// Where in the memory of the grant it begins, in bytes.
    pub offset: U64,
    /// Its size in bytes.
    pub size_bytes: U64,
    /// Index of the grant in this message.
    pub grant: U16,
    /// All bytes of its metadata, 0..=4096.
    pub metadata_len: U16,
    /// So many bytes of the metadata are in this message: all of it if it has 64 at most and the
    /// message has room, else none, and a stat tells it.
    pub metadata_here: u8,
    /// Reserved, 0.
    pub reserved: [u8; 3],
}

/// An object to delete, 16 bytes; its name follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectDeleteItem {
    /// The version that it must have; 0 = any.
    pub version: U64,
    /// Bytes of the name, 1..=255.
    pub name_len: u8,
    /// Reserved, 0.
    pub reserved: [u8; 7],
}

impl Named for ObjectDeleteItem {
    fn name_bytes(&self) -> usize {
        self.name_len.into()
    }
}

/// Head of a delete or a stat, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectScope {
    /// Bits of [`object_flags`].
    pub flags: U32,
    /// Reserved, 0.
    pub reserved: U32,
}

/// Head of a touch, 16 bytes; [`ObjectName`]s follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectTouchHead {
    /// With KEEP, as in [`ObjectCreateHead::ttl_ms`].
    pub ttl_ms: U64,
    /// Bits of [`object_flags`].
    pub flags: U32,
    /// Reserved, 0.
    pub reserved: U32,
}

/// Head of a list or a watch, 8 bytes; the prefix follows, then the last name of the page before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectPrefix {
    /// Bits of [`object_flags`].
    pub flags: U32,
    /// Bytes of the prefix; 0 = all names.
    pub prefix_len: u8,
    /// Bytes of the name behind which the list goes on; 0 = from the first. In a watch 0.
    pub after_len: u8,
    /// Reserved, 0.
    pub reserved: U16,
}

/// Head of the answer to a list or a stat, 8 bytes; [`ObjectRecord`]s follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectPage {
    /// 1 = nothing follows. Else a list goes on behind the last name, and a stat with the names
    /// that are not answered.
    pub done: U32,
    /// Reserved, 0.
    pub reserved: U32,
}

wire_enum! {
    /// What is known of a name.
    #[non_exhaustive]
    ObjectState: u8 {
        /// Nothing; only in the answer to a stat.
        Unknown = 0, "unknown";
        /// Its group is not sealed.
        Making = 1, "making";
        /// It can be had.
        Sealed = 2, "sealed";
    }
}

/// Bits of [`ObjectRecord::flags`].
pub mod record_flags {
    /// The group outlives its creator.
    pub const KEPT: u8 = 1;
    /// It ends neither by time nor to make room.
    pub const PINNED: u8 = 2;
    /// It may end when bytes are short.
    pub const EVICTABLE: u8 = 4;
    /// Nothing but the creator's word keeps it from being written: GPU memory.
    pub const COOPERATIVE: u8 = 8;
    /// Its creator is gone.
    pub const CREATOR_GONE: u8 = 16;
    /// It outlives its creator, and ends with the broker all the same: no service manager stores
    /// what this broker keeps.
    pub const ENDS_WITH_BROKER: u8 = 32;
    /// Its name is one of its job: in answers to administrators.
    pub const OF_JOB: u8 = 64;
}

/// One object, 96 bytes; its name follows and, in the answer to a stat, its metadata. All fields
/// but the name's length are 0 of an unknown one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectRecord {
    /// Its version; 0 while it is in the making.
    pub version: U64,
    /// Where in the group's memory it begins, in bytes.
    pub offset: U64,
    /// Its size in bytes.
    pub size_bytes: U64,
    /// Number of its group: the names that are sealed at one moment.
    pub group: U64,
    /// Size of the group's memory in bytes.
    pub group_bytes: U64,
    /// Time since it was sealed, or since its group was begun, in ms.
    pub age_ms: U64,
    /// Time that is left to the group if nobody uses it, in ms; u64::MAX = no end by time.
    pub ttl_left_ms: U64,
    /// Slot of the group's allocation.
    pub slot: U32,
    /// Generation of the slot: another one is another allocation.
    pub generation: U32,
    /// Names of the group.
    pub group_names: U32,
    /// Leases that clients hold of the group now.
    pub leases: U32,
    /// The creator's pid as the broker sees it.
    pub creator_pid: U32,
    /// All bytes of its metadata, 0..=4096.
    pub metadata_len: U16,
    /// Bytes of metadata that follow the name.
    pub metadata_here: U16,
    /// An [`ObjectState`].
    pub state: u8,
    /// Bits of [`record_flags`].
    pub flags: u8,
    /// A [`crate::memory::MemoryKind`].
    pub kind: u8,
    /// Bytes of the name, 1..=255.
    pub name_len: u8,
    /// Reserved, 0.
    pub reserved: [U32; 3],
}

impl Named for ObjectRecord {
    fn name_bytes(&self) -> usize {
        self.name_len.into()
    }

    fn more_bytes(&self) -> usize {
        self.metadata_here.get().into()
    }
}

wire_enum! {
    /// What happened to a name that is watched.
    #[non_exhaustive]
    ObjectEvent: u8 {
        /// It can be had.
        Sealed = 1, "sealed";
        /// Another object has it now.
        Replaced = 2, "replaced";
        /// It is gone: deleted, its time is over, its creator is gone without KEEP, or an
        /// administrator has ended it.
        Deleted = 3, "deleted";
        /// It is gone, to make room.
        Evicted = 4, "evicted";
        /// It was in the making, and is not any more.
        Aborted = 5, "aborted";
        /// Events were lost: the version says how many, and the name is empty.
        Lost = 6, "lost";
    }
}

/// One event, 16 bytes; the name follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectEventItem {
    /// The version that was sealed, or is gone; 0 of one in the making.
    pub version: U64,
    /// An [`ObjectEvent`].
    pub event: u8,
    /// Bytes of the name, 0..=255: none when events were lost.
    pub name_len: u8,
    /// Reserved, 0.
    pub reserved: [U16; 3],
}

impl Named for ObjectEventItem {
    const MAY_BE_EMPTY: bool = true;

    fn name_bytes(&self) -> usize {
        self.name_len.into()
    }
}
