//! Allocations, leases, clients, jobs and domains as an administrator sees them. Layouts only: must
//! never hold IO or state.

use super::status::Use;
use crate::facts::FactsItem;
use crate::limits::{
    COMMAND_BYTES, FORMER_FILES, JOB_NAME_BYTES, NAME_BYTES, NAME_OF_OBJECT_BYTES,
};
use crate::object::ObjectRecord;
use crate::resource::ByResource;
use crate::table::wire_enum;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

wire_enum! {
    /// Where an allocation's fd is.
    AllocationState: u32 {
        /// The broker holds the fd and may evict it.
        Held = 1, "held";
        /// The broker holds the fd and cannot get it again: never evicted.
        Resident = 2, "resident";
        /// The broker has closed the fd and can recall it.
        Evicted = 3, "evicted";
        /// The fd is on its way again.
        Recalling = 4, "recalling";
        /// The allocation has ended; some leases of it are not given back.
        Ended = 5, "ended";
        /// From before a crash of the broker; its owner has not named it again yet.
        Reserved = 6, "reserved";
    }
}

/// One allocation, 488 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct AllocationRecord {
    /// Slot: the first number of the allocation's id.
    pub slot: U32,
    /// Generation of the slot: the second number of the id.
    pub generation: U32,
    /// What it is; its size is 0 while not known, as for a reserved allocation.
    pub facts: FactsItem,
    /// A [`crate::handle::Share`].
    pub share: u8,
    /// [`crate::message::register_flags`].
    pub flags: u8,
    /// 1 = the owner is gone.
    pub owner_gone: u8,
    /// Its address in the owner.
    pub base: U64,
    /// An [`AllocationState`].
    pub state: U32,
    /// The owner's pid as the broker sees it, 0 when gone.
    pub owner_pid: U32,
    /// The owner's uid; 0xffffffff while a reserved allocation's owner is not known again.
    pub owner_uid: U32,
    /// Leases whose holders have an fd of it open.
    pub open_leases: U32,
    /// Leases whose holders have imported it and closed the fd.
    pub mapped_leases: U32,
    /// Requests that wait for it.
    pub waiters: U32,
    /// Inode of the fd that the broker holds or held last; 0 = not known.
    pub inode: U64,
    /// The owner's name, padded with zeros; all zeros when the owner is gone.
    pub owner_name: [u8; NAME_BYTES],
    /// Key of the owner's job; for a kept allocation without an owner, of the job that left it. 0 =
    /// none.
    pub job: U64,
    /// The job's name, see [`AccountRecord::name`].
    pub job_name: [u8; JOB_NAME_BYTES],
    /// Number of the broker's own fd in /proc/PID/fd; [`NO_OWN_FD`] while the broker holds none,
    /// and for an asker who sees their own domain alone.
    pub fd: U32,
    /// Its virtual fd, see [`crate::VirtualFd`]; 0 = it was registered without.
    pub virtual_fd: U32,
    /// For how long the allocation has had no other files than `inode` and `former_inodes`, in ms.
    /// u64::MAX = since the deposit; 0 = not known, as after a crash. A lease that is older may be
    /// of another file.
    pub files_ms: U64,
    /// Inodes of the files that the owner gave before this one, newest first; 0 = none. An owner
    /// that exports a new dma-buf at each recall has given several.
    pub former_inodes: [U64; FORMER_FILES],
    /// Since it was registered or, after a crash of the broker, named again: in ms, up to 131 too
    /// many.
    pub age_ms: U64,
    /// Since it was granted last, or else registered; as exact.
    pub unused_ms: U64,
    /// The first name of the objects that it is the memory of; empty: it has none.
    pub object: ObjectLabel,
}

/// A name of an object, or none, 256 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ObjectLabel {
    length: u8,
    bytes: [u8; NAME_OF_OBJECT_BYTES],
}

impl ObjectLabel {
    /// Of a name, or of none.
    pub fn new(name: &[u8]) -> Self {
        let length = name.len().min(NAME_OF_OBJECT_BYTES);
        let mut bytes = [0; NAME_OF_OBJECT_BYTES];
        bytes[..length].copy_from_slice(&name[..length]);
        ObjectLabel { length: u8::try_from(length).unwrap_or(u8::MAX), bytes }
    }

    /// The name; `None`: there is none.
    pub fn get(&self) -> Option<&[u8]> {
        self.bytes.get(..self.length.into()).filter(|name| !name.is_empty())
    }
}

/// A named object with its owner, 416 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct OwnedObject {
    /// What it is; no name and no metadata follow it.
    pub object: ObjectRecord,
    /// The uid of its domain.
    pub uid: U32,
    /// Number of the listener of its domain, from 0; `u32::MAX`: none that is served now.
    pub listener: U32,
    /// Key of its maker's job; 0 = none.
    pub job: U64,
    /// The job's name, see [`AccountRecord::name`].
    pub job_name: [u8; JOB_NAME_BYTES],
    /// Whole, and without the scope of its names.
    pub name: ObjectLabel,
}

/// Value of [`AllocationRecord::fd`] while the broker holds no fd.
pub const NO_OWN_FD: u32 = u32::MAX;

/// Value of [`ClientRecord::age_ms`] of a process that the broker cannot see.
pub const NO_AGE: u64 = u64::MAX;

/// Value of [`LeaseRecord::owner_pid`] of an owner that the asker does not see.
pub const OTHER_OWNER: u32 = u32::MAX;

/// One lease, 128 bytes. Of a lease of the asker's memory that another user has, an asker who sees
/// their own domain alone is told neither holder nor job: pid and job are 0, client and uid
/// 0xffffffff, the name is `another user`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct LeaseRecord {
    /// Number of the lease, as in [`crate::message::GrantItem::lease`].
    pub lease: U64,
    /// Slot of the allocation.
    pub slot: U32,
    /// Generation of the allocation.
    pub generation: U32,
    /// 1 = open, 2 = mapped.
    pub state: U32,
    /// 1 = its allocation has ended.
    pub ended: U32,
    /// The holder's number, as in [`ClientRecord::client`].
    pub client: U32,
    /// The holder's pid as the broker sees it.
    pub pid: U32,
    /// The holder's uid, by SO_PEERCRED.
    pub uid: U32,
    /// The owner's pid; 0 when gone, [`OTHER_OWNER`] where another user is the owner and the asker
    /// does not see that user.
    pub owner_pid: U32,
    /// Size of the allocation in bytes.
    pub size_bytes: U64,
    /// Age of the lease, ms.
    pub age_ms: U64,
    /// The name that the holder gave in hello, padded with zeros.
    pub name: [u8; NAME_BYTES],
    /// Key of the holder's job; 0 = none.
    pub job: U64,
    /// The job's name, see [`AccountRecord::name`].
    pub job_name: [u8; JOB_NAME_BYTES],
}

/// One client, 308 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ClientRecord {
    /// Its number, which hello reply told it.
    pub client: U32,
    /// Its pid as the broker sees it.
    pub pid: U32,
    /// Its uid: uid and listener together are its domain.
    pub uid: U32,
    /// 1 = it has not answered a recall in time.
    pub silent: U32,
    /// What it is charged for, in each resource's unit.
    pub uses: ByResource<U64>,
    /// Since its process was started, in ms, exact to a clock tick (10 ms), modulo 497 days;
    /// [`NO_AGE`] when the broker cannot know.
    pub age_ms: U64,
    /// Number of the listener it connected to, from 0.
    pub listener: U32,
    /// The name that it gave in hello, padded with zeros.
    pub name: [u8; NAME_BYTES],
    /// Key of its job; 0 = none.
    pub job: U64,
    /// The job's name, see [`AccountRecord::name`].
    pub job_name: [u8; JOB_NAME_BYTES],
    /// The name of its process as it connected, as in /proc/PID/comm, padded with zeros; all zeros
    /// when the broker cannot know.
    pub command: [u8; COMMAND_BYTES],
}

/// One job of a domain, or one domain, 648 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct AccountRecord {
    /// The job's key, the value of [`Filter::Job`](super::query::Filter::Job); 0 for a domain.
    pub key: U64,
    /// The uid of all clients of the domain.
    pub uid: U32,
    /// Number of the listener that they connected to, from 0; `u32::MAX`: none that is served now.
    pub listener: U32,
    /// Kept allocations that clients of the job have left. The domain is charged for them, the job
    /// is not. 0 for a domain.
    pub left_allocations: U32,
    /// Names of objects that clients of the job have made; 0 for a domain.
    pub objects: U32,
    /// What it is charged for.
    pub uses: ByResource<Use>,
    /// The job's name in printable ASCII, padded with zeros: `slurm:4711`, `flux:fTE9HHdZvi3`,
    /// `pbs:12.server`, `k8s:UID` of the pod, else `unit:NAME` of the nearest service or scope of
    /// systemd. Empty when the cgroup has no such name, and for a domain.
    pub name: [u8; JOB_NAME_BYTES],
}
