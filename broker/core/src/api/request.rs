//! What goes into the core. Plain data: must never hold an fd, a clock or an OS type. The core
//! speaks of slots; the daemon's fd table maps a slot to the one fd that the broker has of that
//! allocation.

use crate::api::config::CapsOfScopes;
use crate::api::deposit::{Declared, Deposit, Redeposit, Supply, Wanted};
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
#[allow(missing_docs)] // the fields are named as their types and the messages of PROTOCOL.md
pub enum Input<'a> {
    /// A client's socket was accepted. Takes [`crate::limits::FDS_PER_CONNECTION`] places in the
    /// table. Answered by nothing, or by [`Effect::Disconnect`](crate::Effect::Disconnect) when a
    /// cap is in the way.
    Connect { client: ClientId, peer: Peer<'a> },
    /// Its hello. Answered by [`Effect::Welcome`](crate::Effect::Welcome), or at the deadline by
    /// [`Effect::Failed`](crate::Effect::Failed) and
    /// [`Effect::Disconnect`](crate::Effect::Disconnect).
    Hello { client: ClientId, request: RequestId, own_fds: u32, deadline: Now },
    /// Its process has died or its socket has ended. Ends with
    /// [`Effect::Forget`](crate::Effect::Forget), maybe some polls later.
    Gone { client: ClientId },
    /// Deposits; the fd of each is at the same index of the message. More of them than credits:
    /// [`Effect::Failed`](crate::Effect::Failed) PROTOCOL, every fd by
    /// [`Effect::CloseArrived`](crate::Effect::CloseArrived).
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
    /// A consumer would have these next. Answered by
    /// [`Effect::GrantedAhead`](crate::Effect::GrantedAhead) with those that can be had for
    /// nothing; at most [`AHEAD_FDS`](fdbroker_protocol::limits::AHEAD_FDS), further ones are left
    /// out. What does not reach the consumer is given back by [`Input::Release`].
    AcquireAhead { client: ClientId, wanted: &'a [Wanted] },
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
    /// Whether closes of a domain's accepted fds take long: nobody else waits for the room that
    /// they will make.
    Slow { domain: DomainKey, slow: bool },
    /// Allocations of before a crash, named again by their owner. Answered by
    /// [`Effect::Registered`](crate::Effect::Registered).
    Redeposit { client: ClientId, request: RequestId, items: &'a [Redeposit] },
    /// What the client is known by: before its hello, or never.
    Identify { client: ClientId, key: OwnerKey },
    /// The client bounds the fds that the broker holds for it: before its hello, or never.
    BoundHeld { client: ClientId, fds: u32 },
    /// The client has named all that is alive of what it had before a crash: what is left of it
    /// ends.
    Complete { client: ClientId },
    /// Leases of before a crash. Answered by [`Effect::Declared`](crate::Effect::Declared).
    Declare { client: ClientId, request: RequestId, items: &'a [Declared] },
    /// Begins a group of objects. One fd comes with the message, which uses a credit. Answered by
    /// [`Effect::ObjectsCreated`](crate::Effect::ObjectsCreated), or by
    /// [`Effect::Failed`](crate::Effect::Failed).
    CreateObjects { client: ClientId, request: RequestId, create: &'a Create<'a> },
    /// More objects of a group in the making: all of them or none. Answered by
    /// [`Effect::Statuses`](crate::Effect::Statuses) with one, or by
    /// [`Effect::Failed`](crate::Effect::Failed).
    AddObjects {
        client: ClientId,
        request: RequestId,
        group: GroupId,
        objects: &'a [NewObject<'a>],
    },
    /// All of a group can be had from now on. `checked`: what the daemon found of its memory, such
    /// as SEALED_BUSY. Answered by [`Effect::ObjectsSealed`](crate::Effect::ObjectsSealed), or by
    /// [`Effect::Failed`](crate::Effect::Failed).
    SealObjects {
        client: ClientId,
        request: RequestId,
        group: GroupId,
        checked: Result<(), Status>,
    },
    /// A group in the making is given up. Answered by [`Effect::Statuses`](crate::Effect::Statuses)
    /// with one.
    AbortObjects { client: ClientId, request: RequestId, group: GroupId },
    /// Wants objects by their names, all at once. Answered by
    /// [`Effect::ObjectsGot`](crate::Effect::ObjectsGot), or by
    /// [`Effect::Failed`](crate::Effect::Failed).
    GetObjects {
        client: ClientId,
        request: RequestId,
        of_job: bool,
        names: &'a [&'a [u8]],
        deadline: Now,
    },
    /// Takes their names from objects. Answered by [`Effect::Statuses`](crate::Effect::Statuses).
    DeleteObjects { client: ClientId, request: RequestId, of_job: bool, objects: &'a [Deleted<'a>] },
    /// Groups are used, by their names, and may be kept or kept no more. Answered by
    /// [`Effect::Statuses`](crate::Effect::Statuses).
    TouchObjects { client: ClientId, request: RequestId, touch: &'a Touch<'a> },
    /// The client is told what happens to names that begin so, from now on or no more. Answered by
    /// [`Effect::Statuses`](crate::Effect::Statuses) with one.
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

/// What is known of an input before it is served.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms<'a> {
    /// The client and its request, where only a client that was let in may make it; 0 stands for a
    /// one-way message.
    pub guest: Option<(ClientId, RequestId)>,
    /// The client does something for itself, and is not idle; what it answers, or gives back, does
    /// not show that.
    pub busy: Option<ClientId>,
    /// Items that the sender of the message has listed.
    pub items: usize,
    /// Of each fd that has come with it.
    pub deposits: &'a [Deposit],
}

impl<'a> Input<'a> {
    /// Its terms. Each input has a line here: one that is forgotten does not compile.
    pub(crate) fn terms(&self) -> Terms<'a> {
        let free = |items| Terms { items, ..Terms::default() };
        let gives = |client, request, items| {
            let guest = Some((client, request));
            Terms { guest, ..free(items) }
        };
        let asks = |client, request, items| {
            let busy = Some(client);
            Terms { busy, ..gives(client, request, items) }
        };
        let one_way = RequestId(0);
        match *self {
            Input::Register { client, request, deposits, .. } => {
                Terms { deposits, ..asks(client, request, deposits.len()) }
            }
            Input::CreateObjects { client, request, create } => {
                let deposits = std::slice::from_ref(&create.deposit);
                Terms { deposits, ..asks(client, request, create.objects.len()) }
            }
            Input::Unregister { client, request, ids } => asks(client, request, ids.len()),
            Input::Acquire { client, request, wanted, .. } => asks(client, request, wanted.len()),
            Input::Redeposit { client, request, items } => asks(client, request, items.len()),
            Input::Declare { client, request, items } => asks(client, request, items.len()),
            Input::AddObjects { client, request, objects, .. } => {
                asks(client, request, objects.len())
            }
            Input::SealObjects { client, request, .. } => asks(client, request, 0),
            Input::GetObjects { client, request, names, .. } => asks(client, request, names.len()),
            Input::DeleteObjects { client, request, objects, .. } => {
                asks(client, request, objects.len())
            }
            Input::TouchObjects { client, request, touch } => {
                asks(client, request, touch.names.len())
            }
            Input::WatchObjects { client, request, .. } => asks(client, request, 0),
            Input::AbortObjects { client, request, .. } => gives(client, request, 0),
            Input::Mapped { client, request, leases }
            | Input::Release { client, request, leases } => {
                gives(client, request.unwrap_or(one_way), leases.len())
            }
            Input::AcquireAhead { client, wanted } => gives(client, one_way, wanted.len()),
            Input::Complete { client } => gives(client, one_way, 0),
            Input::Hello { client, .. } => Terms { busy: Some(client), ..free(0) },
            Input::Supply { supplies, .. } => free(supplies.len()),
            Input::Unsent { grants, .. } => free(grants.len()),
            Input::Measured { files } => free(files.len()),
            Input::Evict { ids } | Input::Revoke { ids } => free(ids.len()),
            Input::Connect { .. }
            | Input::Gone { .. }
            | Input::Sendable { .. }
            | Input::MostGranted { .. }
            | Input::Cancel { .. }
            | Input::Closed { .. }
            | Input::Slow { .. }
            | Input::Identify { .. }
            | Input::BoundHeld { .. }
            | Input::SetCaps { .. }
            | Input::SetDraining { .. } => free(0),
        }
    }
}
