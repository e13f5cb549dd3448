//! What is counted of one scope, and which of its caps can be full. Must never be changed but by
//! the ledger.

use super::Account;
use super::blocked::ScopeId;
use crate::api::Now;
use crate::books::order::Index;
use fdbroker_protocol::{NO_CAP, Resource, Scope};

/// Kinds of leases that a client can be asked for: open ones, and mapped ones.
pub const LEASE_KINDS: usize = 2;

/// Parked requests that wait for room in one scope, by the resource that is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queued(pub(super) [u32; Resource::COUNT]);

impl Queued {
    /// Whether any wait for this resource.
    pub fn has(self, resource: Resource) -> bool {
        self.0[resource.index()] > 0
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self == Queued::default()
    }
}

/// What is counted of one client, job, domain or the node. Only the ledger changes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopeRecord {
    /// What it is.
    pub kind: Scope,
    /// Its number among the clients, jobs or domains.
    pub number: u32,
    /// The next wider scope; none of the node.
    pub parent: Option<ScopeId>,
    /// What it is charged with.
    pub account: Account,
    /// Its clients with evictable allocations, by the place of the oldest one.
    pub lru: Index,
    /// Allocations that can be evicted.
    pub evictable: u64,
    /// Its clients with idle credits, by when they got them.
    pub creditors: Index,
    /// Credits that are taken back when another needs the place.
    pub idle_credits: u64,
    /// Its clients that have leases to be asked for, by kind of lease. Those that have given back
    /// nothing of what they were asked for come last; the others by their last activity, as far as
    /// it was known when they were put here.
    pub askable: [Index; LEASE_KINDS],
    /// Until when nobody is asked for leases for its sake, by kind of lease.
    pub pauses: [Now; LEASE_KINDS],
    /// Requests that wait for room in it.
    pub blocked: Queued,
    /// Its fds in the closers that will be closed soon; of the node, but for those of slow domains.
    pub coming: u64,
    /// Bytes of held memory that cannot be had again once its fd is closed; of domains and the
    /// node.
    pub resident_bytes: u128,
    /// Leases of before a crash that its clients have declared, by kind of lease.
    pub declared: [u64; LEASE_KINDS],
    /// The most fds that it wants to be held; [`NO_CAP`]: no bound.
    pub(super) most_held: u64,
    /// Nothing is charged to it any more.
    pub(super) is_closed: bool,
}

impl ScopeRecord {
    /// Places that are free as soon as another needs them.
    pub fn can_be_had_back(&self) -> u64 {
        self.evictable + self.idle_credits
    }

    /// Bytes that cannot be had again once their fd is closed.
    pub fn resident(&self) -> u64 {
        u64::try_from(self.resident_bytes).unwrap_or(NO_CAP)
    }

    pub(super) fn new(kind: Scope, number: u32, parent: Option<ScopeId>) -> Self {
        ScopeRecord { kind, number, parent, most_held: NO_CAP, ..ScopeRecord::default() }
    }
}
