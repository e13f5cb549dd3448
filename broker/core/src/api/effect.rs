//! What comes out of the core: what the daemon is to do, in order, and what clients are told. Must
//! never hold an fd.

use crate::api::deposit::{Item, Wanted};
use crate::api::former::KeptChange;
use crate::api::ids::{
    ClientId, DomainKey, GroupId, JobKey, Lane, LeaseId, Now, RequestId, StatusReply, Ticket,
};
use crate::api::job_name::JobName;
use crate::api::objects::{GotObject, ObjectNews};
use crate::limits::EFFECTS_KEPT;
use fdbroker_protocol::admin::{ActOutcome, EventKind};
use fdbroker_protocol::{AllocationId, ErrorCode, Facts, MemoryKind, Status};

impl Granted {
    /// An item that gets no fd, and why.
    pub fn refused(wanted: Wanted, status: Status) -> Self {
        let (lease, facts) = (LeaseId(0), Facts::NONE);
        Granted { wanted, status, lease, facts, has_driver_data: false }
    }
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

/// The outcome of one handle of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The handle asked for.
    pub wanted: Wanted,
    /// OK: the fields below hold, and the fd in the slot of `wanted` is to be sent.
    pub status: Status,
    /// The lease; `LeaseId(0)` unless OK.
    pub lease: LeaseId,
    /// [`Facts::NONE`] unless OK.
    pub facts: Facts,
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
    /// The fd at `index` of the message just handed in is the first one of the allocation in
    /// `slot`, and is not kept. Before its [`Effect::CloseArrived`].
    MeetArrived { index: u16, slot: u32 },
    /// The fd at `index` of the message just handed in goes to a closer.
    CloseArrived { index: u16, ticket: Ticket, lane: Lane },
    /// The fd of `slot`, charged to `uid`, goes to the closer of accepted fds.
    CloseHeld { slot: u32, ticket: Ticket, uid: u32 },
    /// Write the generation page: the live generation of `slot`, or 0. Before it, what
    /// [`crate::Core::record`] or [`crate::Core::end_of`] says of the slot is to be remembered.
    Publish { slot: u32, generation: u32 },
    /// Remember the end of an allocation: [`Effects::ended`] at this index. The slot's files are
    /// still those of the allocation.
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
    /// The fd of `slot` goes to the service manager's store too: [`crate::Core::kept`] says what to
    /// remember with it.
    Keep { slot: u32 },
    /// The fd of `slot` stays in the store, and [`crate::Core::kept`] says something else of it
    /// now: it is adopted.
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
    /// Answer acquire: [`Effects::granted`]. If it cannot be sent, hand in
    /// [`Input::Unsent`](crate::Input::Unsent) after the remaining effects of the step have been
    /// applied.
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
    /// Answer a get: [`Effects::objects`], and of each of their groups one of [`Effects::granted`],
    /// each of them OK. If it cannot be sent, the leases are given back by
    /// [`Body::Release`](crate::Body::Release), and the answer is AGAIN.
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
    /// End the client's connection (then [`Input::Gone`](crate::Input::Gone)).
    Disconnect { client: ClientId, status: Status },
    /// Nothing of the client is left: its number is free.
    Forget { client: ClientId },
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
    /// What the table of kept groups is to hear before anything in `list` is done: all of it, or
    /// nothing.
    pub kept: Vec<KeptChange>,
    /// Of each fd supplied: the time since it was recalled, in microseconds.
    pub recalled_us: Vec<u64>,
    /// The answer to [`Input::Evict`](crate::Input::Evict) or
    /// [`Input::Revoke`](crate::Input::Revoke), in its order.
    pub acted: Vec<Acted>,
    /// What the items of the acquire at hand come to: here, so that its memory is used again.
    pub(crate) items: Vec<Item>,
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
    /// As registered or, after a supply, as supplied last.
    pub facts: Facts,
    /// Its address in the owner, as registered.
    pub base: u64,
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
    /// The owner's id of it, as registered.
    pub owner_allocation_id: u64,
    /// Its address in the owner, as registered.
    pub base: u64,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// What.
    pub kind: EventKind,
    /// To whom; `None`: to the node, to an allocation without an owner, or to a connection that is
    /// refused.
    pub client: Option<ClientId>,
    /// The pid of the client, or of the connection refused, or 0.
    pub pid: u32,
    /// The domain of the client, of the allocation or of the connection refused;
    /// [`DomainKey::NOBODYS`]: of the node.
    pub domain: DomainKey,
    /// The client's job, or the one that has left the allocation.
    pub job: Option<JobKey>,
    /// To which allocation.
    pub id: Option<AllocationId>,
    /// Its size in bytes, or 0.
    pub size_bytes: u64,
    /// The reason, as the client is told it.
    pub status: Status,
}

impl Note {
    /// One of the node.
    pub fn of_node(kind: EventKind) -> Self {
        let (client, pid, domain, job) = (None, 0, DomainKey::NOBODYS, None);
        Note { kind, client, pid, domain, job, id: None, size_bytes: 0, status: Status::OK }
    }
}
