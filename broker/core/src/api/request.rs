//! What goes into the core. Plain data: must never hold an fd, a clock or an OS type. The core
//! speaks of slots; the daemon's fd table maps a slot to the one fd that the broker has of that
//! allocation.

use crate::api::config::CapsOfScopes;
use crate::api::deposit::{Arrived, Declared, Redeposit, Supply, Wanted};
use crate::api::effect::Granted;
use crate::api::ids::{
    ClientId, DomainKey, GroupId, JobKey, LeaseId, Now, OwnerKey, RequestId, Ticket,
};
use crate::api::job_name::JobName;
use crate::api::objects::{Create, Deleted, NewObject, Touch};
use fdbroker_protocol::{AllocationId, Status};

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer<'a> {
    /// Listener and uid.
    pub domain: DomainKey,
    /// With its name for people. `None`: of no job; its domain alone is charged.
    pub job: Option<(JobKey, JobName)>,
    /// Process, for display.
    pub pid: u32,
    /// Its group (SO_PEERCRED): that of what it registers. [`NO_GROUP`](crate::NO_GROUP): one that
    /// nobody else has.
    pub gid: u32,
    /// Its other groups (SO_PEERGROUPS), sorted.
    pub groups: &'a [u32],
}

/// What happened.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the fields are named as their types
pub enum Input<'a> {
    /// A client says something: see [`Body::by`].
    Request(Request<'a>),
    /// A client's socket was accepted. Takes [`crate::limits::FDS_PER_CONNECTION`] places in the
    /// table. Answered by nothing, or by [`Effect::Disconnect`](crate::Effect::Disconnect) when a
    /// cap is in the way.
    Connect { client: ClientId, peer: Peer<'a> },
    /// What the client is known by: before its hello, or never.
    Identify { client: ClientId, key: OwnerKey },
    /// The client bounds the fds that the broker holds for it: before its hello, or never.
    BoundHeld { client: ClientId, fds: u32 },
    /// Its process has died or its socket has ended. Ends with
    /// [`Effect::Forget`](crate::Effect::Forget), maybe some polls later.
    Gone { client: ClientId },
    /// The grant that the effects of the step just applied told the daemon to send could not be
    /// sent (EAGAIN, ETOOMANYREFS): its leases never were, and the request goes back to the head of
    /// the queue. `wanted` as in [`Granted::wanted`], `deadline` and `seq` as in
    /// [`Effect::Granted`](crate::Effect::Granted).
    Unsent { client: ClientId, request: RequestId, grants: &'a [Granted], deadline: Now, seq: u64 },
    /// Whether the client has room for another message with fds. While `false` its parked requests
    /// stay parked. Connected clients begin with `true`.
    Sendable { client: ClientId, sendable: bool },
    /// From now on an answer has at most so many fds, at least one; its other items say AGAIN.
    /// Before the first of these, as many as a message has.
    MostGranted { fds: usize },
    /// A closer has closed it.
    Closed { ticket: Ticket },
    /// Whether closes of a domain's accepted fds take long: nobody else waits for the room that
    /// they will make.
    Slow { domain: DomainKey, slow: bool },
    /// What files pin now, bytes, each by the slot of an allocation that is held.
    Measured { files: &'a [(u32, u64)] },
    /// New caps. What is above a lowered one stays until it is given back; nothing is added to it.
    SetCaps { caps: &'a CapsOfScopes },
    /// The administrator has the fds of these closed, as far as they can be had again and nobody
    /// waits for them. Answered in [`Effects::acted`](crate::Effects::acted); at most
    /// [`ENDS_PER_MESSAGE`](fdbroker_protocol::limits::ENDS_PER_MESSAGE), further ones are left
    /// out.
    Evict { ids: &'a [AllocationId] },
    /// The administrator ends these: as if their owners had, but for what the owners are told.
    /// Answered as an evict, and as many.
    Revoke { ids: &'a [AllocationId] },
    /// Whether clients that connect from now on may deposit nothing, and whatever can be given up
    /// is, again and again.
    SetDraining { draining: bool },
}

/// Who asks, and is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Must have said hello, but for a hello itself.
    pub client: ClientId,
    /// Its number for the request; [`RequestId::ONE_WAY`]: it is not answered.
    pub request: RequestId,
}

/// What a client says.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Who says it.
    pub by: Asker,
    /// What it is.
    pub body: Body<'a>,
}

/// What is asked or said, by the message of PROTOCOL.md.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the fields are named as their types and the messages of PROTOCOL.md
pub enum Body<'a> {
    /// Its hello. Answered by [`Effect::Welcome`](crate::Effect::Welcome), or at the deadline by
    /// [`Effect::Failed`](crate::Effect::Failed) and
    /// [`Effect::Disconnect`](crate::Effect::Disconnect).
    Hello { own_fds: u32, deadline: Now },
    /// Deposits; the fd of each is at the same index of the message. More of them than credits:
    /// [`Effect::Failed`](crate::Effect::Failed) PROTOCOL, every fd by
    /// [`Effect::CloseArrived`](crate::Effect::CloseArrived).
    Register { deposits: &'a [Arrived], credits_wanted: u32, deadline: Now },
    /// The owner ends registrations.
    Unregister { ids: &'a [AllocationId] },
    /// The owner's answers to recalls. One-way.
    Supply { supplies: &'a [Supply] },
    /// A consumer wants fds.
    Acquire { wanted: &'a [Wanted], deadline: Now },
    /// A consumer would have these next. Answered by
    /// [`Effect::GrantedAhead`](crate::Effect::GrantedAhead) with those that can be had for
    /// nothing; at most [`AHEAD_FDS`](fdbroker_protocol::limits::AHEAD_FDS), further ones are left
    /// out. What does not reach the consumer is given back by [`Body::Release`].
    AcquireAhead { wanted: &'a [Wanted] },
    /// Give up a parked request: answers CANCELLED. Not parked any more: nothing.
    Cancel,
    /// Leases whose memory is imported and whose fd is closed. May be one-way.
    Mapped { leases: &'a [LeaseId] },
    /// Leases given back. May be one-way.
    Release { leases: &'a [LeaseId] },
    /// Begins a group of objects. One fd comes with the message, which uses a credit. Answered by
    /// [`Effect::ObjectsCreated`](crate::Effect::ObjectsCreated), or by
    /// [`Effect::Failed`](crate::Effect::Failed).
    CreateObjects { create: &'a Create<'a> },
    /// More objects of a group in the making: all of them or none. Answered by
    /// [`Effect::Statuses`](crate::Effect::Statuses) with one, or by
    /// [`Effect::Failed`](crate::Effect::Failed).
    AddObjects { group: GroupId, objects: &'a [NewObject<'a>] },
    /// All of a group can be had from now on. `checked`: what the daemon found of its memory, such
    /// as SEALED_BUSY. Answered by [`Effect::ObjectsSealed`](crate::Effect::ObjectsSealed), or by
    /// [`Effect::Failed`](crate::Effect::Failed).
    SealObjects { group: GroupId, checked: Result<(), Status> },
    /// A group in the making is given up. Answered by [`Effect::Statuses`](crate::Effect::Statuses)
    /// with one.
    AbortObjects { group: GroupId },
    /// Wants objects by their names, all at once. Answered by
    /// [`Effect::ObjectsGot`](crate::Effect::ObjectsGot), or by
    /// [`Effect::Failed`](crate::Effect::Failed).
    GetObjects { of_job: bool, names: &'a [&'a [u8]], deadline: Now },
    /// Takes their names from objects. Answered by [`Effect::Statuses`](crate::Effect::Statuses).
    DeleteObjects { of_job: bool, objects: &'a [Deleted<'a>] },
    /// Groups are used, by their names, and may be kept or kept no more. Answered by
    /// [`Effect::Statuses`](crate::Effect::Statuses).
    TouchObjects { touch: &'a Touch<'a> },
    /// The client is told what happens to names that begin so, from now on or no more. Answered by
    /// [`Effect::Statuses`](crate::Effect::Statuses) with one.
    WatchObjects { of_job: bool, prefix: &'a [u8], is_wanted: bool },
    /// Allocations of before a crash, named again by their owner. Answered by
    /// [`Effect::Registered`](crate::Effect::Registered).
    Redeposit { items: &'a [Redeposit] },
    /// Leases of before a crash. Answered by [`Effect::Declared`](crate::Effect::Declared).
    Declare { items: &'a [Declared] },
    /// The client has named all that is alive of what it had before a crash: what is left of it
    /// ends. One-way.
    Complete,
}

impl<'a> Body<'a> {
    /// As the request of a client.
    pub fn by(self, client: ClientId, request: RequestId) -> Input<'a> {
        Input::Request(Request { by: Asker { client, request }, body: self })
    }
}

/// What is known of a request before it is served.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms<'a> {
    /// Only a client that was let in may make it.
    pub is_for_guests: bool,
    /// The client does something for itself, and is not idle; what it answers, or gives back, does
    /// not show that.
    pub is_busy: bool,
    /// Items that the message lists.
    pub items: usize,
    /// Of each fd that has come with it.
    pub deposits: &'a [Arrived],
}

impl<'a> Body<'a> {
    /// Its terms. Each body has a line here: one that is forgotten does not compile.
    pub(crate) fn terms(&self) -> Terms<'a> {
        let says = |items| Terms { items, ..Terms::default() };
        let gives = |items| Terms { is_for_guests: true, ..says(items) };
        let asks = |items| Terms { is_busy: true, ..gives(items) };
        let brings = |deposits, items| Terms { deposits, ..asks(items) };
        match *self {
            Body::Hello { .. } => Terms { is_busy: true, ..says(0) },
            Body::Register { deposits, .. } => brings(deposits, deposits.len()),
            Body::CreateObjects { create } => {
                brings(std::slice::from_ref(&create.deposit), create.objects.len())
            }
            Body::Unregister { ids } => asks(ids.len()),
            Body::Acquire { wanted, .. } => asks(wanted.len()),
            Body::Redeposit { items } => asks(items.len()),
            Body::Declare { items } => asks(items.len()),
            Body::AddObjects { objects, .. } => asks(objects.len()),
            Body::SealObjects { .. } | Body::WatchObjects { .. } => asks(0),
            Body::GetObjects { names, .. } => asks(names.len()),
            Body::DeleteObjects { objects, .. } => asks(objects.len()),
            Body::TouchObjects { touch } => asks(touch.names.len()),
            Body::AbortObjects { .. } | Body::Complete => gives(0),
            Body::Mapped { leases } | Body::Release { leases } => gives(leases.len()),
            Body::AcquireAhead { wanted } => gives(wanted.len()),
            Body::Supply { supplies } => says(supplies.len()),
            Body::Cancel => says(0),
        }
    }
}

impl Input<'_> {
    /// Items that it lists.
    pub(crate) fn items(&self) -> usize {
        match *self {
            Input::Request(Request { body, .. }) => body.terms().items,
            Input::Unsent { grants, .. } => grants.len(),
            Input::Measured { files } => files.len(),
            Input::Evict { ids } | Input::Revoke { ids } => ids.len(),
            Input::Connect { .. }
            | Input::Identify { .. }
            | Input::BoundHeld { .. }
            | Input::Gone { .. }
            | Input::Sendable { .. }
            | Input::MostGranted { .. }
            | Input::Closed { .. }
            | Input::Slow { .. }
            | Input::SetCaps { .. }
            | Input::SetDraining { .. } => 0,
        }
    }
}
