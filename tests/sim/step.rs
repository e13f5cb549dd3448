//! What is known of a step while it is judged: what its input foretells, and what its effects have
//! shown so far. Plain data; must never judge.

use crate::returns::Return;
use fdbroker_core::{DomainKey, Lane, Wanted};
use fdbroker_protocol::{AllocationId, ErrorCode, Status};
use std::collections::{BTreeMap, BTreeSet};

/// What has become of an fd of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Waiting,
    Stored(u32),
    Closed(Lane),
}

/// A status the model foretold.
#[derive(Clone, Copy, Debug)]
pub enum Foretold {
    Exactly(Status),
    OneOf(&'static [ErrorCode]),
    /// OK to the last unregister: its value is 1 if no client holds a lease of the allocation.
    Ends(AllocationId),
}

/// One step under judgement.
#[derive(Debug, Default)]
pub struct Step {
    pub arrived: Vec<Fate>,
    /// The client that sent the message.
    pub sender: Option<u32>,
    /// Indices of the fds for which no place was reserved.
    pub uninvited: BTreeSet<usize>,
    /// Tickets of the closes of fds of the message.
    pub arrived_tickets: Vec<u32>,
    /// Allocations that the input ends, and why. Each ends when the page says so.
    pub due_end: BTreeMap<AllocationId, ErrorCode>,
    /// Allocations that ended in this step.
    pub ended: BTreeSet<AllocationId>,
    /// The owners of the allocations in `ended`.
    pub ended_of: BTreeSet<u32>,
    /// The ended allocations that were leased.
    pub ended_leased: BTreeSet<AllocationId>,
    /// Allocations of a gone client: the core takes them off the page in portions.
    pub orphaned: BTreeSet<AllocationId>,
    /// Allocations that the page stopped showing in this step.
    pub unpublished: BTreeSet<AllocationId>,
    /// Allocations that the page began to show in this step, until the deposit of each is known.
    pub published: BTreeSet<AllocationId>,
    /// Slots of these.
    pub used_slots: BTreeSet<u32>,
    /// The client that the core may disconnect, and whether it must.
    pub disconnect: Option<(u32, bool)>,
    pub disconnected: BTreeSet<u32>,
    /// Statuses foretold for the request in the input.
    pub foretold: Option<Vec<Foretold>>,
    /// The whole request must fail with this code.
    pub must_fail: Option<ErrorCode>,
    /// A request that only a welcomed client may make.
    pub stranger: bool,
    /// For each deposit the live allocation that it repeats.
    pub same: Vec<Option<AllocationId>>,
    /// The whole message of deposits is refused: too many refused fds of the domain are closing.
    pub refused_unread: bool,
    /// Credits were given that a client had waited for.
    pub credits_given: bool,
    /// Clients of which credits were taken back.
    pub robbed: Vec<u32>,
    /// The message of deposits has more fds than credits, as far as its client cannot know.
    pub lacks_credits: bool,
    /// It is refused for that.
    pub has_no_place: bool,
    /// Connections refused, and deposits and requests refused because the broker is being drained.
    pub turned_away: u64,
    pub connecting: Option<u32>,
    /// A request whose grant could not be sent may be told to ask again: its client has no place
    /// left in the queue.
    pub may_ask_again: bool,
    /// A parked request that was cancelled.
    pub cancelled: Option<(u32, u64)>,
    /// Fds that a supply must see stored.
    pub must_store: BTreeMap<usize, AllocationId>,
    /// Whether an Events effect was seen.
    pub events_seen: bool,
    /// NO_QUOTA answers to be proved with the sums before and after the step. Of each request one
    /// item must be true.
    pub quotas: Vec<Vec<Quota>>,
    /// The client to which the last of these belongs, while its request is being judged.
    pub quota_of: Option<u32>,
    /// Owners that an answer called silent, to be proved by the views before and after.
    pub said_silent: Vec<u32>,
    /// Owners silent before the step.
    pub silent_before: BTreeSet<u32>,
    /// Grants of the step, in order.
    pub grants: Vec<Grant>,
    /// Allocations that the requests answered in this step wanted.
    pub asked: BTreeSet<AllocationId>,
    /// Allocations that live on and whose fd the core closed.
    pub evicted: Vec<AllocationId>,
    /// Allocations that were evicted as soon as they were registered, because of the cap on bytes.
    pub not_kept: Vec<AllocationId>,
    pub new_allocations: u64,
    /// Clients that were let in, each with the fds that it declared.
    pub let_in: Vec<(u32, u64)>,
    /// What is to be fetched ahead, and for whom, until it is granted; how much of it is.
    pub ahead: Option<(u32, Vec<Wanted>)>,
    pub granted_ahead: u64,
    /// What each item of a redeposit may come to.
    pub returns: Vec<Return>,
}

/// A request for which at least one item was granted.
#[derive(Clone, Debug)]
pub struct Grant {
    pub client: u32,
    /// Number of its arrival.
    pub order: u64,
    pub granted: Vec<AllocationId>,
    /// An fd was kept back for it: it comes before other requests.
    pub was_supplied: bool,
}

/// A NO_QUOTA to be proved: the cap must have been full.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    pub status: Status,
    pub client: u32,
    /// The allocation's owner and domain: they are charged for the place of a recall.
    pub owner: Option<(u32, DomainKey)>,
    /// The most that the request could have needed of the resource.
    pub need: u64,
    /// One of several items in a message: the cap may have got room again since.
    pub passing: bool,
}
