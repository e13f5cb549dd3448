//! Every message on the client's and the event socket: fixed little-endian layouts without padding.
//! Layout only: must never hold IO or state. The page that explains them is PROTOCOL.md.

use crate::error::StatusItem;
use crate::facts::FactsItem;
use crate::handle::{HandleItem, HandlePrefixItem, TOKEN_BYTES};
use crate::limits::{DRIVER_DATA_BYTES, NAME_BYTES};
use crate::table::wire_enum;
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

/// Version of this protocol. A broker and a client agree in hello or part.
pub const PROTOCOL_VERSION: u8 = 7;

/// First eight bytes of hello's body, in every version of the protocol for ever.
pub const HELLO_MAGIC: [u8; 8] = *b"fdbroker";

wire_enum! {
    /// What a message is. Requests are even or have their reply beside them; see PROTOCOL.md.
    Kind: u16 {
        /// Client: the first message. Body [`Hello`]. Layout fixed in every version.
        Hello = 0x01, "hello";
        /// Broker: [`HelloReply`], 1 fd: generation page.
        HelloReply = 0x02, "hello reply";
        /// Broker: a request failed as a whole. Body [`StatusItem`]. Layout fixed in every version.
        Failed = 0x03, "failed";
        /// Client: the first message on a further socket of a client. Body [`Join`].
        Join = 0x04, "join";
        /// Broker: it is. Without a body.
        Joined = 0x05, "joined";
        /// Client: [`RegisterHead`], [`RegisterItem`]s, one fd per item.
        Register = 0x10, "register";
        /// Broker: [`RegisterReplyHead`], [`Registered`]s.
        RegisterReply = 0x11, "register reply";
        /// Client: [`AllocationItem`]s.
        Unregister = 0x12, "unregister";
        /// Broker: a [`StatusItem`] each; value 1 = drained already (no lease was left).
        UnregisterReply = 0x13, "unregister reply";
        /// Client, after a crash of the broker: [`RegisterHead`], [`RedepositItem`]s, no fds.
        /// Reply: RegisterReply.
        Redeposit = 0x14, "redeposit";
        /// Client, one-way, after a crash of the broker: it has named all that is alive. Without a
        /// body.
        Complete = 0x16, "complete";
        /// Client: answer when the fds of this client's that the broker is closing now are closed.
        /// Without a body.
        Settle = 0x18, "settle";
        /// Broker: they are. Without a body.
        Settled = 0x19, "settled";
        /// Client: [`AcquireHead`], [`HandlePrefixItem`]es.
        Acquire = 0x20, "acquire";
        /// Broker: [`GrantItem`]s, then driver data of those that have it, and the fds.
        Granted = 0x21, "granted";
        /// Client, one-way: give up the request whose id is the header's `id`.
        Cancel = 0x22, "cancel";
        /// Client: [`LeaseItem`]s imported, fds closed. One-way when the header's `id` is 0.
        Mapped = 0x24, "mapped";
        /// Client: [`LeaseItem`]s given back. One-way when the header's `id` is 0.
        Release = 0x26, "release";
        /// Broker, to mapped, release and declare with an id: a [`StatusItem`] each.
        LeaseReply = 0x27, "lease reply";
        /// Client, after a crash of the broker: [`DeclareItem`]s it holds. Reply: Granted without
        /// fds.
        Declare = 0x28, "declare";
        /// Client: body [`Resolve`].
        Resolve = 0x2a, "resolve";
        /// Broker: [`HandleItem`]s, that of the virtual fd first.
        Resolved = 0x2b, "resolved";
        /// Client, one-way: [`HandlePrefixItem`]es that it will most likely acquire next, at most
        /// [`crate::limits::AHEAD_FDS`].
        Fetch = 0x2e, "fetch";
        /// Broker, event socket: [`RecallItem`]s; export again and answer with supply.
        Recall = 0x40, "recall";
        /// Client, event socket: [`SupplyItem`]s, one fd per item whose code is 0, in order.
        Supply = 0x41, "supply";
        /// Broker, event socket: [`LeaseItem`]s it would like back if unused; answered by release.
        Reclaim = 0x42, "reclaim";
        /// Broker, event socket: [`RevokedItem`]s whose allocation has ended.
        Revoked = 0x43, "revoked";
        /// Broker, event socket: [`DrainedItem`]s whose last lease is gone.
        Drained = 0x44, "drained";
        /// Broker, event socket: [`GoingAway`].
        GoingAway = 0x45, "going away";
        /// Broker, event socket: [`RefusedItem`]s, fds of supplies that are not what was asked for.
        SupplyRefused = 0x46, "supply refused";
        /// Client: begins a group of objects. [`crate::object::ObjectCreateHead`],
        /// [`crate::object::ObjectItem`]s, 1 fd.
        ObjectCreate = 0x50, "object create";
        /// Broker: [`crate::object::ObjectCreated`].
        ObjectCreated = 0x51, "object created";
        /// Client: more objects of a group. [`crate::object::ObjectGroup`],
        /// [`crate::object::ObjectItem`]s. Reply: ObjectReply.
        ObjectAdd = 0x52, "object add";
        /// Broker: a [`StatusItem`] each.
        ObjectReply = 0x53, "object reply";
        /// Client: all of a group can be had from now on. Body [`crate::object::ObjectGroup`].
        ObjectSeal = 0x54, "object seal";
        /// Broker: [`crate::object::ObjectSealed`].
        ObjectSealed = 0x55, "object sealed";
        /// Client: [`crate::object::ObjectGetHead`], [`crate::object::ObjectName`]s.
        ObjectGet = 0x56, "object get";
        /// Broker: [`crate::object::ObjectGotHead`], [`crate::object::ObjectGotItem`]s,
        /// [`GrantItem`]s, driver data, metadata, fds.
        ObjectGot = 0x57, "object got";
        /// Client: [`crate::object::ObjectScope`], [`crate::object::ObjectDeleteItem`]s. Reply:
        /// ObjectReply.
        ObjectDelete = 0x58, "object delete";
        /// Client: [`crate::object::ObjectPrefix`], prefix, last name. Reply: ObjectRecords.
        ObjectList = 0x59, "object list";
        /// Broker: [`crate::object::ObjectPage`], [`crate::object::ObjectRecord`]s.
        ObjectRecords = 0x5a, "object records";
        /// Client: [`crate::object::ObjectScope`], [`crate::object::ObjectName`]s. Reply:
        /// ObjectRecords.
        ObjectStat = 0x5b, "object stat";
        /// Client: [`crate::object::ObjectTouchHead`], [`crate::object::ObjectName`]s. Reply:
        /// ObjectReply.
        ObjectTouch = 0x5c, "object touch";
        /// Client: [`crate::object::ObjectPrefix`], prefix. Reply: ObjectReply.
        ObjectWatch = 0x5d, "object watch";
        /// Client: the group is given up. Body [`crate::object::ObjectGroup`]. Reply: ObjectReply.
        ObjectAbort = 0x5e, "object abort";
        /// Broker, event socket: [`crate::object::ObjectEventItem`]s.
        ObjectEvents = 0x5f, "object events";
        /// Administrator: body [`crate::admin::Query`]. Reply: one [`crate::admin::NodeStatus`].
        AdminStatus = 0x80, "admin status";
        /// Broker: one [`crate::admin::NodeStatus`].
        AdminStatusReply = 0x81, "admin status reply";
        /// Administrator: body [`crate::admin::Query`]. Reply: [`crate::admin::Page`], records.
        AdminAllocations = 0x82, "admin allocations";
        /// Broker: [`crate::admin::Page`], [`crate::admin::AllocationRecord`]s.
        AdminAllocationsReply = 0x83, "admin allocations reply";
        /// Administrator: body [`crate::admin::Query`]. Reply: [`crate::admin::Page`], records.
        AdminLeases = 0x84, "admin leases";
        /// Broker: [`crate::admin::Page`], [`crate::admin::LeaseRecord`]s.
        AdminLeasesReply = 0x85, "admin leases reply";
        /// Administrator: body [`crate::admin::Query`]. Reply: [`crate::admin::Page`], records.
        AdminClients = 0x86, "admin clients";
        /// Broker: [`crate::admin::Page`], [`crate::admin::ClientRecord`]s.
        AdminClientsReply = 0x87, "admin clients reply";
        /// Administrator: hand everything over to me. Body [`crate::admin::Query`], its `value` the
        /// format of the state that it reads.
        AdminTakeover = 0x88, "admin takeover";
        /// Broker: [`crate::admin::TakeoverOffer`], the state and sockets that carry its fds.
        AdminTakeoverOffer = 0x89, "admin takeover offer";
        /// Either: [`crate::admin::TakeoverStep`].
        AdminTakeoverStep = 0x8a, "admin takeover step";
        /// Administrator: body [`crate::admin::Query`]. Reply: [`crate::admin::Page`], records.
        AdminJobs = 0xa0, "admin jobs";
        /// Broker: [`crate::admin::Page`], [`crate::admin::AccountRecord`]s, one per job of a
        /// domain.
        AdminJobsReply = 0xa1, "admin jobs reply";
        /// Administrator: body [`crate::admin::Query`]. Reply: [`crate::admin::Page`], records.
        AdminDomains = 0xa2, "admin domains";
        /// Broker: [`crate::admin::Page`], [`crate::admin::AccountRecord`]s, one per domain.
        AdminDomainsReply = 0xa3, "admin domains reply";
        /// Administrator: body [`crate::admin::Query`]. Reply: [`crate::admin::Limits`].
        AdminLimits = 0xa4, "admin limits";
        /// Broker: [`crate::admin::Limits`].
        AdminLimitsReply = 0xa5, "admin limits reply";
        /// Administrator: change a cap. Body [`crate::admin::SetLimit`].
        AdminSetLimit = 0xa6, "admin set limit";
        /// Broker: [`crate::admin::LimitChange`].
        AdminSetLimitReply = 0xa7, "admin set limit reply";
        /// Administrator: body [`crate::admin::Query`]. Reply: [`crate::admin::Metrics`].
        AdminMetrics = 0xa8, "admin metrics";
        /// Broker: [`crate::admin::Metrics`].
        AdminMetricsReply = 0xa9, "admin metrics reply";
        /// Administrator: body [`crate::admin::Query`], its cursor as for no other list a number
        /// that the broker alone knows. Reply: [`crate::admin::Page`], records.
        AdminObjects = 0xac, "admin objects";
        /// Broker: [`crate::admin::Page`], [`crate::admin::OwnedObject`]s.
        AdminObjectsReply = 0xad, "admin objects reply";
        /// Administrator: body [`crate::admin::Query`]. Reply: [`crate::admin::Page`], records.
        AdminTombstones = 0xae, "admin tombstones";
        /// Broker: [`crate::admin::Page`], [`crate::admin::TombstoneRecord`]s.
        AdminTombstonesReply = 0xaf, "admin tombstones reply";
        /// Administrator: close the fds of those chosen. Body [`crate::admin::Act`].
        AdminEvict = 0xb0, "admin evict";
        /// Broker: [`crate::admin::Page`], [`crate::admin::ActRecord`]s, at most
        /// [`crate::limits::ENDS_PER_MESSAGE`].
        AdminEvictReply = 0xb1, "admin evict reply";
        /// Administrator: end those chosen. Body [`crate::admin::Act`].
        AdminRevoke = 0xb2, "admin revoke";
        /// Broker: as to an evict.
        AdminRevokeReply = 0xb3, "admin revoke reply";
        /// Administrator: take in nothing new and give up what can be. Body [`crate::admin::Act`].
        AdminDrain = 0xb4, "admin drain";
        /// Broker: one [`crate::admin::NodeStatus`].
        AdminDrainReply = 0xb5, "admin drain reply";
        /// Administrator: tell me what happens, until this connection ends. Body
        /// [`crate::admin::Act`].
        AdminWatch = 0xb6, "admin watch";
        /// Broker, at once without any, then as they happen: [`crate::admin::EventRecord`]s.
        AdminEvents = 0xb7, "admin events";
    }
}

/// Opens every message: 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Header {
    /// A [`Kind`].
    pub kind: U16,
    /// [`PROTOCOL_VERSION`].
    pub version: u8,
    /// Reserved, 0.
    pub flags: u8,
    /// Items after the head of the body.
    pub count: U16,
    /// Fds that travel with the message. Fewer arrived: the receiver's table was full.
    pub fd_count: U16,
    /// The client's number for a request, repeated in its reply; 0 on the event socket and one-way.
    pub id: U64,
}

/// Body of [`Kind::Hello`], 56 bytes. The first 16 keep their place in every version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Hello {
    /// [`HELLO_MAGIC`].
    pub magic: [u8; 8],
    /// Lowest protocol version the client speaks.
    pub version_min: U16,
    /// Highest protocol version the client speaks.
    pub version_max: U16,
    /// Reserved, 0.
    pub flags: U32,
    /// Fds of shared memory that this client will hold by itself: its arena, and exports on their
    /// way to the broker. Charged to it for as long as it is connected.
    pub own_fds: U32,
    /// The client's pid in its own PID namespace, for display.
    pub pid: U32,
    /// A name for display, such as the command's; padded with zeros.
    pub name: [u8; NAME_BYTES],
    /// How long the broker may let the hello wait until what it declares fits, in ms.
    pub deadline_ms: U32,
    /// Chosen at random by the client, and the same over all its connections: with its process it
    /// says after a crash of the broker who has come back. 0: it never names anything again.
    pub key: U32,
    /// The most fds that the broker is to hold for this client, beside the caps. 0: no bound of its
    /// own.
    pub max_held_fds: U32,
    /// Reserved, 0.
    pub reserved: U32,
}

impl Hello {
    /// A client of this version that declares and wants nothing, and does not wait.
    pub fn new(pid: u32, name: [u8; NAME_BYTES]) -> Self {
        let version = u16::from(PROTOCOL_VERSION).into();
        let (version_min, version_max) = (version, version);
        Hello {
            magic: HELLO_MAGIC,
            version_min,
            version_max,
            pid: pid.into(),
            name,
            ..Self::new_zeroed()
        }
    }
}

/// Body of [`Kind::HelloReply`], 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct HelloReply {
    /// The version both will speak.
    pub version: U16,
    /// Most items per message, at most [`crate::limits::MAX_BATCH`].
    pub max_batch: U16,
    /// Fds the client may deposit before it must ask for more credit.
    pub deposit_credits: U32,
    /// See [`crate::handle::node_id`].
    pub node: U64,
    /// Random per start of the broker: another value means that all former state is gone.
    pub incarnation: U64,
    /// The client's number, as `fdbroker clients` shows it.
    pub client: U32,
    /// Slots of the generation page.
    pub page_slots: U32,
    /// Longest time a recall may stay unanswered, in ms, before its owner counts as silent.
    pub recall_timeout_ms: U32,
    /// Most requests of this client that may be parked at once.
    pub max_parked: U32,
    /// How long clients that were connected to a broker before this one may still come back, in ms:
    /// the rest of the grace time. From then on the broker knows of all leases of what was named to
    /// it.
    pub grace_left_ms: U64,
    /// Random for each client: with it the client's further sockets [join](Join).
    pub secret: U64,
    /// Reserved, 0.
    pub reserved: U64,
}

/// Body of [`Kind::Join`], 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Join {
    /// The client's number, from [`HelloReply::client`].
    pub client: U32,
    /// A [`Role`].
    pub role: U32,
    /// From [`HelloReply::secret`].
    pub secret: U64,
}

/// What a client's further socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Role {
    /// Recalls, supplies and all else that the broker says by itself. Each client has one.
    Events = 1,
    /// Fds that are fetched ahead.
    Ahead = 2,
}

impl Role {
    /// The role of this number; `None`: there is none.
    pub fn from_number(number: u32) -> Option<Self> {
        [Role::Events, Role::Ahead].into_iter().find(|role| *role as u32 == number)
    }
}

/// Head of [`Kind::Register`] and [`Kind::Redeposit`], 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RegisterHead {
    /// Deposits that will follow this message: the reply grants credit for as many of them as are
    /// free.
    pub credits_wanted: U32,
    /// How long a register of 0 items may wait for its first credit, in ms.
    pub deadline_ms: U32,
}

/// An allocation to register, 128 bytes; its fd is at the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RegisterItem {
    /// What it is; its size is more than 0.
    pub facts: FactsItem,
    /// [`register_flags`].
    pub flags: u8,
    /// A [`crate::handle::Share`].
    pub share: u8,
    /// Bytes of `driver_data` in use, 0..=64.
    pub driver_data_len: u8,
    /// Address in the owner; 0 = it has none and never counts as the same or overlapping.
    pub base: U64,
    /// The driver's handle bytes, kept with the allocation and given with each grant.
    pub driver_data: [u8; DRIVER_DATA_BYTES],
}

/// Bits of [`RegisterItem::flags`].
pub mod register_flags {
    /// The owner can export it again: the broker may evict its fd.
    pub const RECALLABLE: u8 = 1;
    /// It outlives its owner, for the broker's `keep_ttl`; never evicted.
    pub const KEEP: u8 = 2;
    /// Its handle has a virtual fd, by which clients of the owner's domain can ask for the handle.
    pub const VIRTUAL_FD: u8 = 8;
    /// Every bit that has a meaning in a registration.
    pub const ALL: u8 = RECALLABLE | KEEP | VIRTUAL_FD;
    /// In a redeposit alone: its owner has ended it, and wants to hear when it is drained.
    pub const ENDED: u8 = 4;
    /// In what administrators are shown alone: it is the memory of named objects.
    pub const NAMED: u8 = 128;
}

/// An allocation named again by its owner after a crash of the broker, 208 bytes. No fd comes with
/// it: the broker recalls it when somebody asks. So it must be recallable, or a kept one whose fd
/// the broker still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RedepositItem {
    /// As at its registration.
    pub item: RegisterItem,
    /// The handle it had before the crash.
    pub handle: HandleItem,
    /// The owner token given with it.
    pub token: [u8; TOKEN_BYTES],
}

/// Head of [`Kind::RegisterReply`], 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RegisterReplyHead {
    /// Fds the client may deposit from now on.
    pub deposit_credits: U32,
    /// Reserved, 0.
    pub reserved: [U32; 3],
}

/// The outcome of one registration, 96 bytes. Handle and token are 0 unless the status is OK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Registered {
    /// OK, or why not.
    pub status: StatusItem,
    /// The handle to pass on.
    pub handle: HandleItem,
    /// Proves ownership at re-deposit; never pass it on.
    pub token: [u8; TOKEN_BYTES],
}

/// An allocation named by its owner, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct AllocationItem {
    /// Slot, from the allocation's handle.
    pub slot: U32,
    /// Generation of the slot, from the same handle.
    pub generation: U32,
}

/// Head of [`Kind::Acquire`], 8 bytes; then [`HandlePrefixItem`]es.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct AcquireHead {
    /// How long the broker may park the request, in ms; 0 = never.
    pub deadline_ms: U32,
    /// Reserved, 0.
    pub flags: U32,
}

/// The handle behind a virtual fd is wanted, 8 bytes. The answer is `failed` BAD_HANDLE unless the
/// number names a live allocation of the client's own domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Resolve {
    /// A [`crate::VirtualFd`].
    pub virtual_fd: U32,
    /// How many handles more may come: of allocations with a virtual fd that the same owner has
    /// registered next, at most [`crate::limits::MAX_NEIGHBOURS`].
    pub neighbours: U16,
    /// See [`resolve_flags`]. Other bits are refused.
    pub flags: U16,
}

/// Bits of [`Resolve::flags`].
pub mod resolve_flags {
    /// The fds behind the handles of the answer are sent ahead, as if fetch had named them: the
    /// first before the answer.
    pub const AHEAD: u16 = 1;
    /// Every bit that has a meaning.
    pub const ALL: u16 = AHEAD;
}

/// Value of [`GrantItem::fd_index`] when the item has no fd.
pub const NO_FD: u16 = u16::MAX;

/// The outcome of one handle, 88 bytes. Everything after the status is 0 (`fd_index` [`NO_FD`])
/// unless the status is OK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct GrantItem {
    /// OK, AGAIN (ask again), or why not. The value of an OK one that is alone in its message: how
    /// many leases its client may have that it does not use.
    pub status: StatusItem,
    /// The lease: give it back by this number.
    pub lease: U64,
    /// Slot of the allocation, for the generation page.
    pub slot: U32,
    /// Generation of the allocation: what was imported is good while the page shows it.
    pub generation: U32,
    /// Size, kind and identity of the allocation.
    pub facts: FactsItem,
    /// Bytes of driver data; when not 0, a 64-byte block follows the items, in their order.
    pub driver_data_len: u8,
    /// Index among the message's fds, or [`NO_FD`].
    pub fd_index: U16,
}

/// A lease, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct LeaseItem {
    /// The lease's number, from [`GrantItem::lease`].
    pub lease: U64,
}

/// A lease of before a crash of the broker, said by its holder, 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct DeclareItem {
    /// Of the handle it was granted for; of an object's memory only the id is read.
    pub handle: HandlePrefixItem,
    /// Bits of [`declare_flags`].
    pub flags: U32,
    /// Reserved, 0.
    pub reserved: U32,
}

/// Bits of [`DeclareItem::flags`].
pub mod declare_flags {
    /// The holder still has the fd; else it has imported the memory and closed it.
    pub const OPEN: u32 = 1;
    /// It was granted for the name of an object, so its holder has no handle. The object has to be
    /// of the holder's domain.
    pub const OBJECT: u32 = 2;
    /// Every bit that has a meaning.
    pub const ALL: u32 = OPEN | OBJECT;
}

/// An allocation whose fd the broker wants again, 72 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RecallItem {
    /// Slot of the allocation; supply repeats it.
    pub slot: U32,
    /// Generation of the slot; supply repeats it.
    pub generation: U32,
    /// As registered, with the offset of its last fd.
    pub facts: FactsItem,
    /// Reserved, 0.
    pub reserved: [u8; 3],
    /// Its address in the owner.
    pub base: U64,
}

/// The answer to one recall, 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct SupplyItem {
    /// Slot, as in the recall.
    pub slot: U32,
    /// Generation, as in the recall.
    pub generation: U32,
    /// As in the recall, with the offset in this fd and the id read again *after* the export: any
    /// other difference ends the allocation, and so does another id.
    pub facts: FactsItem,
    /// Reserved, 0.
    pub reserved: u8,
    /// 0 = the next fd is it; STALE = the memory is no longer there (ends the allocation); any
    /// other error code = not now.
    pub code: U16,
}

/// An fd of a supply that is not what was asked for, 24 bytes. The allocation stays as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RefusedItem {
    /// Slot, as in the supply.
    pub slot: U32,
    /// Generation, as in the supply.
    pub generation: U32,
    /// UNSUPPORTED_FD with the type of fd that came.
    pub status: StatusItem,
}

/// A lease whose allocation has ended, 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RevokedItem {
    /// Slot of the allocation that has ended.
    pub slot: U32,
    /// The generation that has ended.
    pub generation: U32,
    /// The client's lease of it: still on the ledger until released.
    pub lease: U64,
    /// Why: STALE (released, address reused, revoked) or OWNER_GONE.
    pub code: U16,
    /// Reserved, 0.
    pub reserved: [u8; 6],
}

/// An ended allocation whose last lease is gone, 24 bytes: its memory may be used anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct DrainedItem {
    /// Slot that the allocation had.
    pub slot: U32,
    /// The generation that has ended.
    pub generation: U32,
    /// The owner's id of it.
    pub owner_allocation_id: U64,
    /// Its address in the owner.
    pub base: U64,
}

/// Body of [`Kind::GoingAway`], 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct GoingAway {
    /// 1 = ends, 2 = restarts and keeps all state.
    pub reason: U32,
    /// Reserved, 0.
    pub reserved: U32,
}
