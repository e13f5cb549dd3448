//! What goes into the core and what comes out of it: inputs, effects, configuration. Plain data: must
//! never hold an fd, a clock or an OS type. The core speaks of slots; the daemon's fd table maps a slot
//! to the one fd the broker has of that allocation.

use crate::job_name::JobName;
use crate::limits::EFFECTS_KEPT;
use crate::objects::ObjectNews;
use crate::objects::api::{
    Create, Deleted, GotObject, GroupId, KeptChange, KeptGroup, NewObject, Touch,
};
use crate::subordinate::SubordinateUids;
use fdbroker_protocol::admin::ActOutcome;
use fdbroker_protocol::{
    AllocationId, ByScope, Caps, ErrorCode, MemoryKind, Share, Status, limits::DRIVER_DATA_BYTES,
};
use serde::{Deserialize, Serialize};

/// A point in time, in microseconds from an origin of the daemon's choice. Never goes back.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Now(pub u64);

impl Now {
    /// So many us later.
    #[must_use]
    pub fn after(self, us: u64) -> Self {
        Now(self.0.saturating_add(us))
    }
}

/// A client's number: chosen by the daemon (its connection slot), free for another client after
/// [`Effect::Forget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// The client's number for a request. Unique among those of the client that are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A lease's number: slot in the low half, generation in the high half. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

/// An fd on its way through a closer thread. Charged until [`Input::Closed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u32);

/// Which isolation domain a client is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DomainKey {
    /// The listener it came by.
    pub listener: u32,
    /// Its uid (SO_PEERCRED).
    pub uid: u32,
}

impl DomainKey {
    /// Of no domain that there can be: uid -1 is nobody's (chown(2)).
    pub const NOBODYS: DomainKey = DomainKey { listener: u32::MAX, uid: u32::MAX };
}

/// Which job a client is of, within its domain: the daemon's hash of the cgroup's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobKey(pub u64);

/// Stands for a group that no two clients share: gid -1 is nobody's (chown(2)).
pub const NO_GROUP: u32 = u32::MAX;

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer<'a> {
    /// Listener and uid.
    pub domain: DomainKey,
    /// With its name for people. `None`: of no job; its domain alone is charged.
    pub job: Option<(JobKey, JobName)>,
    /// Process, for display.
    pub pid: u32,
    /// Its group (SO_PEERCRED): that of what it registers. [`NO_GROUP`]: one that nobody else has.
    pub gid: u32,
    /// Its other groups (SO_PEERGROUPS), sorted.
    pub groups: &'a [u32],
}

/// Which of its user's closing lanes takes an fd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Classified: its close may take milliseconds, and ends.
    Accepted,
    /// Not recognised: its close may hang for ever. Bounded per domain.
    Refused,
}

/// A file as the kernel names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    /// Of its file system: the major number in the high half.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
}

/// The file behind an fd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Its device and inode.
    pub id: FileId,
    /// Memory that it keeps as long as an fd of it is open, bytes.
    pub pinned_bytes: u64,
}

/// One deposit of a register: what the client said, with what the daemon found out about the fd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deposit {
    /// `Err`: the fd was refused before the core saw it (UNSUPPORTED_FD and its kind), and goes to `lane`.
    pub checked: Result<(), Status>,
    /// Where the fd goes when it is not kept.
    pub lane: Lane,
    /// Its file; `None` where the kernel does not tell: then it pins the size that the owner claims.
    pub file: Option<File>,
    /// What it is.
    pub kind: MemoryKind,
    /// Who may acquire it.
    pub share: Share,
    /// The broker may evict it, unless it is kept.
    pub recallable: bool,
    /// It outlives its owner, for [`Config::keep_ttl_us`].
    pub keep: bool,
    /// The owner's device ordinal.
    pub device: u32,
    /// Bytes, more than 0.
    pub size_bytes: u64,
    /// Where in the fd it begins, bytes.
    pub fd_offset: u64,
    /// The owner's id of it.
    pub owner_allocation_id: u64,
    /// Address in the owner, 0 = none.
    pub base: u64,
    /// Driver data, if any: length 1..=64 and the bytes.
    pub driver_data: Option<(u8, [u8; DRIVER_DATA_BYTES])>,
    /// Its handle has a virtual fd.
    pub virtual_fd: bool,
}

/// One answer of a supply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supply {
    /// The allocation recalled.
    pub id: AllocationId,
    /// `Ok`: index of the fd among the message's fds, after the daemon classified it. `Err`: the owner's
    /// refusal, or the daemon's (the fd, if any, is listed as `refused_fd`).
    pub fd: Result<u16, ErrorCode>,
    /// An fd that came with the item and did not pass the daemon's check, and where it goes.
    pub refused_fd: Option<(u16, Lane)>,
    /// The file of `fd`, as in [`Deposit::file`].
    pub file: Option<File>,
    /// The allocation's id read again after the export.
    pub owner_allocation_id: u64,
    /// Where in the fd it begins now, bytes.
    pub fd_offset: u64,
    /// Its size, bytes.
    pub size_bytes: u64,
}

/// An allocation that its owner names again after a crash; no fd comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redeposit {
    /// `Err`: what the daemon found wrong with handle, token or item.
    pub id: Result<AllocationId, ErrorCode>,
    /// As at its registration; `checked` and `lane` mean nothing here.
    pub deposit: Deposit,
    /// Its owner has ended it meanwhile, and wants to hear when it is drained.
    pub ended: bool,
}

/// A lease of before a crash, as its holder says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Its allocation.
    pub wanted: Wanted,
    /// The holder has the fd still.
    pub open: bool,
}

/// A kept allocation as it is remembered outside the broker: with its fd in the service manager's store, it
/// outlives a crash.
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
    /// As deposited; `checked` and `lane` mean nothing here.
    pub deposit: Deposit,
}

/// An allocation that has ended, with its owner as it was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its slot and generation, which no other allocation has again.
    pub id: AllocationId,
    /// What it was.
    pub kind: MemoryKind,
    /// Size of its memory in bytes, as it was registered.
    pub size_bytes: u64,
    /// Its owner's domain.
    pub domain: DomainKey,
    /// Its owner's process; 0: the owner was gone already, or is in another PID namespace.
    pub pid: u32,
    /// Its owner's job, with its name for people.
    pub job: Option<(JobKey, JobName)>,
    /// Why it ended: STALE or OWNER_GONE, as holders are told.
    pub code: ErrorCode,
    /// Leases of it are out.
    pub is_leased: bool,
}

/// What a client is known by over connections and brokers. All zero: it is not known.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct OwnerKey {
    /// Its process; 0: in another PID namespace.
    pub pid: u32,
    /// When that was started, in clock ticks since boot, the low 32 bits; 0: not known.
    pub started: u32,
    /// Chosen by the client, so that a process can have several.
    pub random: u64,
}

/// What is remembered of a live allocation outside the broker, for a broker after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its owner's.
    pub domain: DomainKey,
    /// Its owner's group.
    pub gid: u32,
    /// Who may have it.
    pub share: Share,
    /// Its owner can give its fd again.
    pub recallable: bool,
    /// Its owner; not known of a kept one whose owner is gone.
    pub owner: OwnerKey,
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
    /// It had ended, for this reason, and clients may have leases of it, or its owner has not heard that it was drained.
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
    /// The live ones whose fds are here. The daemon puts their fds into its table by [`Kept::id`]'s slot.
    pub kept: &'a [Kept],
    /// The kept groups of objects whose fds are here, likewise; no two of them have a name in common.
    pub groups: &'a [KeptGroup<'a>],
    /// Versions up to this one may have been given.
    pub last_version: u64,
}

/// One handle of an acquire, after the daemon verified its MAC.
pub type Wanted = Result<AllocationId, ErrorCode>;

/// What happened.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the fields are named as their types and the messages of PROTOCOL.md
pub enum Input<'a> {
    /// A client's socket was accepted. Takes [`crate::limits::FDS_PER_CONNECTION`] places in the table.
    /// Answered by nothing, or by [`Effect::Disconnect`] when a cap is in the way.
    Connect { client: ClientId, peer: Peer<'a> },
    /// Its hello. Answered by [`Effect::Welcome`], or at the deadline by [`Effect::Failed`] and [`Effect::Disconnect`].
    Hello { client: ClientId, request: RequestId, own_fds: u32, deadline: Now },
    /// Its process has died or its socket has ended. Ends with [`Effect::Forget`], maybe some polls later.
    Gone { client: ClientId },
    /// Deposits; the fd of each is at the same index of the message. More of them than credits:
    /// [`Effect::Failed`] PROTOCOL, every fd by [`Effect::CloseArrived`].
    Register {
        client: ClientId,
        request: RequestId,
        deposits: &'a [Deposit],
        credits_wanted: u32,
        deadline: Now,
    },
    /// The owner ends registrations.
    Unregister { client: ClientId, request: RequestId, ids: &'a [AllocationId] },
    /// A consumer wants fds.
    Acquire { client: ClientId, request: RequestId, wanted: &'a [Wanted], deadline: Now },
    /// A consumer would have these next. Answered by [`Effect::GrantedAhead`] with those that can be had for nothing; at most
    /// [`AHEAD_FDS`](fdbroker_protocol::limits::AHEAD_FDS), further ones are left out. What does not reach the consumer is given
    /// back by [`Input::Release`].
    AcquireAhead { client: ClientId, wanted: &'a [Wanted] },
    /// The grant that the effects of the step just applied told the daemon to send could not be sent
    /// (EAGAIN, ETOOMANYREFS): its leases never were, and the request goes back to the head of the queue.
    /// `wanted` as in [`Granted::wanted`], `deadline` and `seq` as in [`Effect::Granted`].
    Unsent { client: ClientId, request: RequestId, grants: &'a [Granted], deadline: Now, seq: u64 },
    /// Whether the client has room for another message with fds. While `false` its parked requests stay parked.
    /// Connected clients begin with `true`.
    Sendable { client: ClientId, sendable: bool },
    /// From now on an answer has at most so many fds, at least one; its other items say AGAIN. Before the first of
    /// these, as many as a message has.
    MostGranted { fds: usize },
    /// Give up a parked request: answers CANCELLED. Not parked any more: nothing.
    Cancel { client: ClientId, request: RequestId },
    /// Leases whose memory is imported and whose fd is closed. `request` `None` = one-way.
    Mapped { client: ClientId, request: Option<RequestId>, leases: &'a [LeaseId] },
    /// Leases given back. `request` `None` = one-way.
    Release { client: ClientId, request: Option<RequestId>, leases: &'a [LeaseId] },
    /// The owner's answers to recalls.
    Supply { client: ClientId, supplies: &'a [Supply] },
    /// A closer has closed it.
    Closed { ticket: Ticket },
    /// Whether closes of a domain's accepted fds take long: nobody else waits for the room that they will make.
    Slow { domain: DomainKey, slow: bool },
    /// Allocations of before a crash, named again by their owner. Answered by [`Effect::Registered`].
    Redeposit { client: ClientId, request: RequestId, items: &'a [Redeposit] },
    /// What the client is known by: before its hello, or never.
    Identify { client: ClientId, key: OwnerKey },
    /// The client bounds the fds that the broker holds for it: before its hello, or never.
    BoundHeld { client: ClientId, fds: u32 },
    /// The client has named all that is alive of what it had before a crash: what is left of it ends.
    Complete { client: ClientId },
    /// Leases of before a crash. Answered by [`Effect::Declared`].
    Declare { client: ClientId, request: RequestId, items: &'a [Declared] },
    /// Begins a group of objects. One fd comes with the message, which uses a credit. Answered by [`Effect::ObjectsCreated`], or
    /// by [`Effect::Failed`].
    CreateObjects { client: ClientId, request: RequestId, create: &'a Create<'a> },
    /// More objects of a group in the making: all of them or none. Answered by [`Effect::Statuses`] with one, or by
    /// [`Effect::Failed`].
    AddObjects {
        client: ClientId,
        request: RequestId,
        group: GroupId,
        objects: &'a [NewObject<'a>],
    },
    /// All of a group can be had from now on. `checked`: what the daemon found of its memory, such as SEALED_BUSY. Answered by
    /// [`Effect::ObjectsSealed`], or by [`Effect::Failed`].
    SealObjects {
        client: ClientId,
        request: RequestId,
        group: GroupId,
        checked: Result<(), Status>,
    },
    /// A group in the making is given up. Answered by [`Effect::Statuses`] with one.
    AbortObjects { client: ClientId, request: RequestId, group: GroupId },
    /// Wants objects by their names, all at once. Answered by [`Effect::ObjectsGot`], or by [`Effect::Failed`].
    GetObjects {
        client: ClientId,
        request: RequestId,
        of_job: bool,
        names: &'a [&'a [u8]],
        deadline: Now,
    },
    /// Takes their names from objects. Answered by [`Effect::Statuses`].
    DeleteObjects { client: ClientId, request: RequestId, of_job: bool, objects: &'a [Deleted<'a>] },
    /// Groups are used, by their names, and may be kept or kept no more. Answered by [`Effect::Statuses`].
    TouchObjects { client: ClientId, request: RequestId, touch: &'a Touch<'a> },
    /// The client is told what happens to names that begin so, from now on or no more. Answered by [`Effect::Statuses`] with one.
    WatchObjects {
        client: ClientId,
        request: RequestId,
        of_job: bool,
        prefix: &'a [u8],
        is_wanted: bool,
    },
    /// New caps. What is above a lowered one stays until it is given back; nothing is added to it.
    SetCaps { caps: &'a CapsOfScopes },
    /// What files pin now, bytes, each by the slot of an allocation that is held.
    Measured { files: &'a [(u32, u64)] },
    /// The administrator has the fds of these closed, as far as they can be had again and nobody waits for them. Answered
    /// in [`Effects::acted`]; at most [`ENDS_PER_MESSAGE`](fdbroker_protocol::limits::ENDS_PER_MESSAGE), further ones are
    /// left out.
    Evict { ids: &'a [AllocationId] },
    /// The administrator ends these: as if their owners had, but for what the owners are told. Answered as an evict, and
    /// as many.
    Revoke { ids: &'a [AllocationId] },
    /// Whether clients that connect from now on may deposit nothing, and whatever can be given up is, again and again.
    SetDraining { draining: bool },
}

/// The outcome of one handle of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The handle asked for.
    pub wanted: Wanted,
    /// OK: the fields below hold, and the fd in the slot of `wanted` is to be sent.
    pub status: Status,
    /// The lease; `LeaseId(0)` unless OK.
    pub lease: LeaseId,
    /// Memory kind.
    pub kind: MemoryKind,
    /// Bytes.
    pub size_bytes: u64,
    /// Where in the fd it begins, bytes.
    pub fd_offset: u64,
    /// The owner's device ordinal.
    pub device: u32,
    /// The owner's id of it.
    pub owner_allocation_id: u64,
    /// Whether [`crate::Core::driver_data`] has some for it.
    pub has_driver_data: bool,
}

/// The outcome of one deposit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// OK, or why not.
    pub status: Status,
    /// The allocation; meaningless unless OK.
    pub id: AllocationId,
    /// Index of the deposit in its message, for the handle's hints.
    pub index: u16,
}

/// What became of one allocation that an administrator's act was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acted {
    /// The allocation.
    pub id: AllocationId,
    /// Done, or why not.
    pub outcome: ActOutcome,
}

/// What the daemon is to do, in this order. Ranges are into the lists of [`Effects`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are named as their types
pub enum Effect {
    /// The fd at `index` of the message just handed in becomes the fd of `slot`.
    StoreArrived { index: u16, slot: u32 },
    /// The fd at `index` of the message just handed in goes to a closer.
    CloseArrived { index: u16, ticket: Ticket, lane: Lane },
    /// The fd of `slot`, charged to `uid`, goes to the closer of accepted fds.
    CloseHeld { slot: u32, ticket: Ticket, uid: u32 },
    /// Write the generation page: the live generation of `slot`, or 0. Before it, what [`crate::Core::record`] or
    /// [`crate::Core::end_of`] says of the slot is to be remembered.
    Publish { slot: u32, generation: u32 },
    /// Remember the end of an allocation: [`Effects::ended`] at this index. The slot's files are still those of the allocation.
    Ended { index: usize },
    /// Answer hello: welcome, with credit for that many deposits.
    Welcome { client: ClientId, request: RequestId, deposit_credits: u32 },
    /// Answer register: [`Effects::registered`].
    Registered {
        client: ClientId,
        request: RequestId,
        range: std::ops::Range<usize>,
        deposit_credits: u32,
    },
    /// The fd of `slot` goes to the service manager's store too: [`crate::Core::kept`] says what to remember with it.
    Keep { slot: u32 },
    /// The fd of `slot` stays in the store, and [`crate::Core::kept`] says something else of it now: it is adopted.
    KeptChanged { slot: u32 },
    /// The fd of `slot` leaves the service manager's store. Before its [`Effect::CloseHeld`].
    Unkeep { slot: u32 },
    /// Answer declare: [`Effects::granted`], without fds.
    Declared { client: ClientId, request: RequestId, range: std::ops::Range<usize> },
    /// Answer unregister, mapped or release, as [`StatusReply`] says: [`Effects::statuses`].
    Statuses {
        client: ClientId,
        request: RequestId,
        reply: StatusReply,
        range: std::ops::Range<usize>,
    },
    /// Answer acquire: [`Effects::granted`]. If it cannot be sent, hand in [`Input::Unsent`] after the
    /// remaining effects of the step have been applied.
    Granted {
        client: ClientId,
        request: RequestId,
        range: std::ops::Range<usize>,
        deadline: Now,
        seq: u64,
    },
    /// Answer a create: the group's number.
    ObjectsCreated { client: ClientId, request: RequestId, group: GroupId, deposit_credits: u32 },
    /// Answer a seal: the version of all objects of the group.
    ObjectsSealed { client: ClientId, request: RequestId, version: u64 },
    /// Answer a get: [`Effects::objects`], and of each of their groups one of [`Effects::granted`], each of them OK. If it cannot
    /// be sent, the leases are given back by [`Input::Release`], and the answer is AGAIN.
    ObjectsGot {
        client: ClientId,
        request: RequestId,
        objects: std::ops::Range<usize>,
        grants: std::ops::Range<usize>,
    },
    /// Send these ahead: [`Effects::granted`], each of them OK.
    GrantedAhead { client: ClientId, range: std::ops::Range<usize> },
    /// Answer a request that failed as a whole.
    Failed { client: ClientId, request: RequestId, status: Status },
    /// The client has events: call [`crate::Core::take_events`] as its event socket takes them.
    Events { client: ClientId },
    /// End the client's connection (then [`Input::Gone`]).
    Disconnect { client: ClientId, status: Status },
    /// Nothing of the client is left: its number is free.
    Forget { client: ClientId },
}

/// Which reply a list of statuses is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusReply {
    /// To unregister; an OK status with value 1 = drained already.
    Unregister,
    /// To mapped or release.
    Lease,
    /// To add, abort or delete of objects.
    Objects,
}

/// The effects of one step, in a buffer that is cleared and reused.
#[derive(Debug, Default)]
pub struct Effects {
    /// What to do, in order.
    pub list: Vec<Effect>,
    /// Items of [`Effect::Granted`].
    pub granted: Vec<Granted>,
    /// Objects of [`Effect::ObjectsGot`].
    pub objects: Vec<GotObject>,
    /// Items of [`Effect::Registered`].
    pub registered: Vec<Registered>,
    /// Items of [`Effect::Statuses`].
    pub statuses: Vec<Status>,
    /// What the table of kept groups is to hear before anything in `list` is done: all of it, or nothing.
    pub kept: Vec<KeptChange>,
    /// Of each fd supplied: the time since it was recalled, in microseconds.
    pub recalled_us: Vec<u64>,
    /// The answer to [`Input::Evict`] or [`Input::Revoke`], in its order.
    pub acted: Vec<Acted>,
    /// Allocations of [`Effect::Ended`].
    pub ended: Vec<Ended>,
}

impl Effects {
    /// Forgets everything; keeps the memory, but for what only a burst has needed.
    pub fn clear(&mut self) {
        empty(&mut self.list);
        empty(&mut self.granted);
        empty(&mut self.objects);
        empty(&mut self.registered);
        empty(&mut self.statuses);
        empty(&mut self.kept);
        empty(&mut self.recalled_us);
        empty(&mut self.acted);
        empty(&mut self.ended);
    }
}

fn empty<T>(list: &mut Vec<T>) {
    list.clear();
    list.shrink_to(EFFECTS_KEPT);
}

/// One message for a client's event socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Events {
    /// Export these again.
    Recall(Vec<RecallEvent>),
    /// Give back those of these leases that are not in use.
    Reclaim(Vec<LeaseId>),
    /// These leases' allocations have ended.
    Revoked(Vec<RevokedEvent>),
    /// These allocations' last leases are gone.
    Drained(Vec<DrainedEvent>),
    /// This happened to names that the client watches.
    Objects(Vec<ObjectNews>),
}

/// One recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecallEvent {
    /// The allocation.
    pub id: AllocationId,
    /// As registered.
    pub owner_allocation_id: u64,
    /// As registered.
    pub base: u64,
    /// Bytes.
    pub size_bytes: u64,
    /// Bytes.
    pub fd_offset: u64,
    /// Ordinal.
    pub device: u32,
}

/// One revoked lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevokedEvent {
    /// The allocation that ended.
    pub id: AllocationId,
    /// The client's lease of it.
    pub lease: LeaseId,
    /// STALE or OWNER_GONE.
    pub code: ErrorCode,
}

/// One drained allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainedEvent {
    /// The allocation that ended.
    pub id: AllocationId,
    /// As registered.
    pub owner_allocation_id: u64,
    /// As registered.
    pub base: u64,
}

/// The caps of every scope.
pub type CapsOfScopes = ByScope<Caps>;

/// How the core is set up. Every number is checked by [`Config::check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Caps of the node.
    pub node: Caps,
    /// Caps of each domain.
    pub domain: Caps,
    /// Caps of each job of a domain.
    pub job: Caps,
    /// Caps of each client.
    pub client: Caps,
    /// Fds in the broker's table that the core may plan with: RLIMIT_NOFILE less what the daemon itself keeps open.
    pub table_fds: u64,
    /// Most clients.
    pub max_clients: u32,
    /// Most domains.
    pub max_domains: u32,
    /// Most requests of one client parked at once.
    pub max_parked_per_client: u32,
    /// Refused fds of one domain whose close has not returned; at this number the domain's deposits are refused unread.
    pub max_refused_per_domain: u32,
    /// Most allocation slots: those of the generation page.
    pub max_slots: u32,
    /// Lowest generation ever given out here, at least 1: above all that a former broker gave.
    pub first_generation: u32,
    /// Deposit credits a client keeps when it wants no more.
    pub base_credits: u32,
    /// Most deposit credits of one client, at most 253.
    pub max_credits: u32,
    /// Of what cannot be taken back, a domain gets more only while it holds less than so many times what is still free.
    /// [`NO_CAP`](fdbroker_protocol::NO_CAP): as much as there is.
    pub share_factor: u64,
    /// Uids that share as one domain, at most [`DOMAINS_PER_USER`](crate::limits::DOMAINS_PER_USER) of each user at once.
    pub subordinate_uids: SubordinateUids,
    /// Time an owner has to answer a recall, in microseconds.
    pub recall_timeout_us: u64,
    /// Time a kept allocation lives without its owner, in microseconds.
    pub keep_ttl_us: u64,
    /// Longest time that a kept group of objects lives after its last use, in microseconds.
    pub object_ttl_us: u64,
    /// Time that owners have to name their allocations again after a crash, in microseconds.
    pub grace_us: u64,
}
