//! What is known of an object. Plain data: must never hold a connection.

use fdbroker_protocol::object::{ObjectRecord, ObjectState, record_flags};
use fdbroker_protocol::{AllocationId, MemoryKind};
use std::time::Duration;

/// What is known of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectInfo {
    /// 1 to 255 bytes without NUL.
    pub name: String,
    /// Sealed, or in the making.
    pub state: ObjectState,
    /// Its version; 0 while it is in the making.
    pub version: u64,
    /// Its size in bytes; may be 0.
    pub size_bytes: u64,
    /// Where in its group's memory it begins, in bytes.
    pub offset: u64,
    /// Number of its group: the names that are sealed at one moment.
    pub group: u64,
    /// Bytes of its group's memory.
    pub group_bytes: u64,
    /// Names that its group has.
    pub group_names: u32,
    /// The allocation that has the bytes of its whole group.
    pub id: AllocationId,
    /// Leases that clients hold of its group now.
    pub leases: u32,
    /// How it can be opened: memfd, cuda-vmm and so on.
    pub kind: MemoryKind,
    /// Since it was sealed, or its group was begun.
    pub age: Duration,
    /// Left to its group if nobody uses it; `None`: no end by time.
    pub ttl_left: Option<Duration>,
    /// Its group outlives its creator.
    pub kept: bool,
    /// Its group is kept, and ends with the broker all the same: a private broker, or one whose
    /// service manager stores no fds.
    pub ends_with_broker: bool,
    /// Its group ends neither by time nor to make room.
    pub pinned: bool,
    /// Its group may end when bytes are short.
    pub evictable: bool,
    /// Nothing but its maker's word keeps it from being written: GPU memory.
    pub cooperative: bool,
    /// Its creator's pid as the broker sees it.
    pub creator_pid: u32,
    /// Its creator is gone.
    pub creator_gone: bool,
    /// 0 to 4096; a list says this number alone.
    pub metadata_bytes: usize,
    /// Its metadata; empty in a list.
    pub metadata: Vec<u8>,
}

impl ObjectInfo {
    /// From the wire; `None`: nothing is known of the name.
    #[doc(hidden)]
    pub fn of(record: &ObjectRecord, name: &[u8], metadata: &[u8]) -> Option<Self> {
        let state = ObjectState::from_number(record.state).unwrap_or(ObjectState::Unknown);
        if state == ObjectState::Unknown {
            return None;
        }
        let has = |flag: u8| record.flags & flag != 0;
        let ttl_left = Some(record.ttl_left_ms.get()).filter(|ms| *ms != u64::MAX);
        Some(ObjectInfo {
            name: String::from_utf8_lossy(name).into_owned(),
            state,
            version: record.version.get(),
            size_bytes: record.size_bytes.get(),
            offset: record.offset.get(),
            group: record.group.get(),
            group_bytes: record.group_bytes.get(),
            group_names: record.group_names.get(),
            id: AllocationId { slot: record.slot.get(), generation: record.generation.get() },
            leases: record.leases.get(),
            kind: MemoryKind::from_number(record.kind)?,
            age: Duration::from_millis(record.age_ms.get()),
            ttl_left: ttl_left.map(Duration::from_millis),
            kept: has(record_flags::KEPT),
            ends_with_broker: has(record_flags::ENDS_WITH_BROKER),
            pinned: has(record_flags::PINNED),
            evictable: has(record_flags::EVICTABLE),
            cooperative: has(record_flags::COOPERATIVE),
            creator_pid: record.creator_pid.get(),
            creator_gone: has(record_flags::CREATOR_GONE),
            metadata_bytes: record.metadata_len.get().into(),
            metadata: metadata.to_vec(),
        })
    }
}
