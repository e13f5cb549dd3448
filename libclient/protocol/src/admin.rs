//! Messages on the administrator's socket: queries, answered in pages by slot cursor so
//! that none holds the daemon's loop for long. Same framing and header as the client's socket; no hello.

mod acts;
mod events;

pub use acts::{Act, ActOutcome, ActRecord, act_flags};
pub use events::{EventKind, EventRecord};

use crate::error::wire_enum;
use crate::limits::{FORMER_FILES, JOB_NAME_BYTES, NAME_BYTES};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

mod accounts;
mod limits;
mod metrics;

pub use accounts::AccountRecord;
pub use limits::{CAPPED, CapsRecord, LimitChange, Limits, SetLimit};
pub use metrics::{BUCKET_BOUNDS_US, Histogram, Metrics};

wire_enum! {
    /// Which records a query wants.
    Filter: u32 {
        /// All.
        None = 0, "none";
        /// Those of the allocation whose slot is the low and generation the high half of `value`.
        Allocation = 1, "allocation";
        /// Those of the process `value` (the owner's for allocations, the holder's for leases).
        Pid = 2, "pid";
        /// Those of the uid `value`.
        Uid = 3, "uid";
        /// Those of the job with the key `value` (the owner's for allocations, the holder's for leases).
        Job = 4, "job";
    }
}

/// Body of every query, 24 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Query {
    /// Slot to begin at: 0, then each answer's `next_cursor`.
    pub cursor: U32,
    /// A [`Filter`].
    pub filter: U32,
    /// What to filter by.
    pub value: U64,
    /// Reserved, 0.
    pub reserved: U64,
}

/// Head of each paged answer, 8 bytes; the header's `count` records follow. A page may be empty and
/// still not be the last.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Page {
    /// Where the next query goes on.
    pub next_cursor: U32,
    /// 1 = this was the last page.
    pub done: U32,
}

/// Body of a takeover offer, 8 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct TakeoverOffer {
    /// Sockets after the state's memfd, in whose queues the other fds lie.
    pub carriers: U32,
    /// Reserved, 0.
    pub reserved: U32,
}

/// Body of a takeover step, 4 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct TakeoverStep {
    /// A number of [`step`].
    pub step: U32,
}

/// Steps of a takeover after the offer, in their order.
pub mod step {
    /// Administrator: everything has come and stands.
    pub const READY: u32 = 1;
    /// Broker: it is yours; nothing is touched here any more.
    pub const GO: u32 = 2;
    /// Administrator: clients are served.
    pub const SERVING: u32 = 3;
}

/// Use of one resource by one account, 24 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Use {
    /// In use now.
    pub now: U64,
    /// Most ever in use.
    pub peak: U64,
    /// The cap; `u64::MAX` = none.
    pub cap: U64,
}

/// The node at a glance.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct NodeStatus {
    /// The broker's pid.
    pub pid: U32,
    /// Connected clients.
    pub clients: U32,
    /// Isolation domains in use.
    pub domains: U32,
    /// Requests parked now.
    pub parked: U32,
    /// The node's id.
    pub node: U64,
    /// Random per start of the broker.
    pub incarnation: U64,
    /// Time since start, ms.
    pub uptime_ms: U64,
    /// Fds of shared memory on the node.
    pub fds: Use,
    /// Held, closing and promised places in the broker.
    pub held_fds: Use,
    /// Bytes of held allocations.
    pub held_bytes: Use,
    /// Open leases.
    pub open_leases: Use,
    /// Mapped leases.
    pub mapped_leases: Use,
    /// Allocations.
    pub allocations: Use,
    /// Clients' own fds.
    pub own_fds: Use,
    /// Bytes of ended allocations that leases still pin, charged to each holder.
    pub pinned_bytes: Use,
    /// The broker's fd table.
    pub table_fds: Use,
    /// Fds the broker holds now (without closing and promised).
    pub held_now: U64,
    /// Fds in the closers now.
    pub closing_now: U64,
    /// Grants sent since start.
    pub grants: U64,
    /// Registrations since start.
    pub registrations: U64,
    /// Evictions since start.
    pub evictions: U64,
    /// Recalls sent since start.
    pub recalls: U64,
    /// Recalls unanswered in time since start.
    pub recalls_silent: U64,
    /// Requests parked since start.
    pub parkings: U64,
    /// Requests and deposits refused with NO_QUOTA, or SHUTTING_DOWN under a drain, since start.
    pub refusals: U64,
    /// Allocations registered to outlive their owner.
    pub kept_allocations: Use,
    /// Leases asked for since start.
    pub reclaims: U64,
    /// Jobs in use.
    pub jobs: U32,
    /// 1 = it is being drained.
    pub draining: U32,
}

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
        /// It has ended; leases of it are still out.
        Ended = 5, "ended";
        /// Of before a crash of the broker, and its owner has not named it again yet.
        Reserved = 6, "reserved";
    }
}

/// One allocation, 192 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AllocationRecord {
    /// Slot.
    pub slot: U32,
    /// Generation.
    pub generation: U32,
    /// An [`AllocationState`].
    pub state: U32,
    /// A [`crate::handle::MemoryKind`].
    pub kind: u8,
    /// A [`crate::handle::Share`].
    pub share: u8,
    /// [`crate::message::register_flags`].
    pub flags: u8,
    /// 1 = the owner is gone.
    pub owner_gone: u8,
    /// Size in bytes.
    pub size_bytes: U64,
    /// Where in the fd it begins, in bytes.
    pub fd_offset: U64,
    /// The owner's id of it.
    pub owner_allocation_id: U64,
    /// Its address in the owner.
    pub base: U64,
    /// The owner's device ordinal.
    pub device: U32,
    /// The owner's pid as the broker sees it, 0 when gone.
    pub owner_pid: U32,
    /// The owner's uid; 0xffffffff of a reserved one, whose owner is not known again yet.
    pub owner_uid: U32,
    /// Open leases of it.
    pub open_leases: U32,
    /// Mapped leases of it.
    pub mapped_leases: U32,
    /// Requests that wait for it.
    pub waiters: U32,
    /// Inode of the fd held, or of the last one that was; 0 = not known.
    pub inode: U64,
    /// The owner's name.
    pub owner_name: [u8; NAME_BYTES],
    /// Key of the owner's job, or of the job that has left a kept one; 0 = none.
    pub job: U64,
    /// Its name, see [`AccountRecord::name`].
    pub job_name: [u8; JOB_NAME_BYTES],
    /// The broker's own fd of it, its number in /proc/PID/fd; [`NO_OWN_FD`] while it holds none.
    pub fd: U32,
    /// Reserved, 0.
    pub reserved: U32,
    /// For how long it has had no other files than these, in ms; u64::MAX = since it was deposited, 0 = not known,
    /// as after a crash. An older lease may be of another one.
    pub files_ms: U64,
    /// Inodes of files that its owner gave for it before, newest first; 0 = none. Memory that is exported as another
    /// dma-buf each time has them.
    pub former_inodes: [U64; FORMER_FILES],
}

/// [`AllocationRecord::fd`] of what the broker holds no fd of.
pub const NO_OWN_FD: u32 = u32::MAX;

/// One lease, 128 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct LeaseRecord {
    /// The lease's number.
    pub lease: U64,
    /// Slot of the allocation.
    pub slot: U32,
    /// Generation of the allocation.
    pub generation: U32,
    /// 1 = open, 2 = mapped.
    pub state: U32,
    /// 1 = its allocation has ended.
    pub ended: U32,
    /// The holder's number.
    pub client: U32,
    /// The holder's pid as the broker sees it.
    pub pid: U32,
    /// The holder's uid.
    pub uid: U32,
    /// The owner's pid, 0 when gone.
    pub owner_pid: U32,
    /// Size of the allocation in bytes.
    pub size_bytes: U64,
    /// Age of the lease, ms.
    pub age_ms: U64,
    /// The holder's name.
    pub name: [u8; NAME_BYTES],
    /// Key of the holder's job; 0 = none.
    pub job: U64,
    /// Its name, see [`AccountRecord::name`].
    pub job_name: [u8; JOB_NAME_BYTES],
}

/// One client, 144 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ClientRecord {
    /// Its number.
    pub client: U32,
    /// Its pid as the broker sees it.
    pub pid: U32,
    /// Its uid.
    pub uid: U32,
    /// 1 = it misses a recall.
    pub silent: U32,
    /// Fds charged to it.
    pub fds: U64,
    /// Fds of its allocations in the broker.
    pub held_fds: U64,
    /// Bytes of its allocations held in the broker.
    pub held_bytes: U64,
    /// Its open leases.
    pub open_leases: U64,
    /// Its mapped leases.
    pub mapped_leases: U64,
    /// Its allocations.
    pub allocations: U64,
    /// Its requests that are parked.
    pub parked: U32,
    /// Listener it came by.
    pub listener: U32,
    /// Its name.
    pub name: [u8; NAME_BYTES],
    /// Key of its job; 0 = none.
    pub job: U64,
    /// Its name, see [`AccountRecord::name`].
    pub job_name: [u8; JOB_NAME_BYTES],
}
