//! What is counted of one scope, and which of its caps can be full. Must never be changed but by the ledger.

use super::Account;
use crate::api::ids::Now;
use crate::books::order::Index;
use fdbroker_protocol::{NO_CAP, Resource, Scope};
use serde::{Deserialize, Serialize};

/// Which scope a charge did not fit into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Blocked {
    /// The resource whose cap is full.
    pub resource: Resource,
    /// The scope of the cap.
    pub scope: ScopeId,
}

impl Blocked {
    /// The broker's own table is full.
    pub const TABLE: Blocked = Blocked { resource: Resource::TablePlaces, scope: ScopeId::NODE };

    /// Whether an fd that is closed makes room. Else only leases that are given back do.
    pub fn is_helped_by_eviction(self) -> bool {
        FOR_HELD.contains(&self.resource)
    }

    /// The account that more of the share of a domain comes from; none if this is no share.
    pub fn beyond_share(self) -> Option<Blocked> {
        let is_share = matches!(self.resource, SHARE_OF_FDS | Resource::TablePlaces);
        (is_share && self.scope != ScopeId::NODE)
            .then_some(Blocked { scope: ScopeId::NODE, ..self })
    }

    /// Whether no recall at all fits, whatever its size and whoever its owner.
    pub fn stops_every_recall(self) -> bool {
        self.scope == ScopeId::NODE && self.resource != Resource::HeldBytes
    }
}

/// Stands for the share of a domain in the fds: fds of clients' own have no cap, so nothing else is blocked by them.
pub const SHARE_OF_FDS: Resource = Resource::OwnFds;

/// Resources of which a grant of a held fd takes one.
pub const FOR_LEASE: &[Resource] = &[Resource::Fds, Resource::OpenLeases, SHARE_OF_FDS];
/// Resources of which a deposit credit takes one.
pub const FOR_CREDIT: &[Resource] = &[Resource::Fds, Resource::HeldFds, Resource::TablePlaces];
/// Resources of which a recalled fd takes some.
pub const FOR_HELD: &[Resource] =
    &[Resource::Fds, Resource::HeldFds, Resource::TablePlaces, Resource::HeldBytes];

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

/// The number of a scope in the ledger. Used again once the scope is closed and nobody waits for room in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ScopeId(#[serde(skip)] pub(super) u32);

impl ScopeId {
    /// The node.
    pub const NODE: ScopeId = ScopeId(0);
}

/// What is counted of one client, job, domain or the node. Only the ledger changes it.
#[derive(Clone, Debug)]
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
    /// Its clients that have leases to be asked for, by kind of lease. Those that have given back nothing of what they were
    /// asked for come last; the others by their last activity, as far as it was known when they were put here.
    pub askable: [Index; LEASE_KINDS],
    /// Until when nobody is asked for leases for its sake, by kind of lease.
    pub pauses: [Now; LEASE_KINDS],
    /// Requests that wait for room in it.
    pub blocked: Queued,
    /// Its fds in the closers that will be closed soon; of the node, but for those of slow domains.
    pub coming: u64,
    /// Bytes of held memory that cannot be had again once its fd is closed; of domains and the node.
    pub resident_bytes: u128,
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

    pub(super) fn new(kind: Scope, number: u32, parent: Option<ScopeId>) -> Self {
        ScopeRecord {
            kind,
            number,
            parent,
            account: Account::default(),
            lru: Index::default(),
            evictable: 0,
            creditors: Index::default(),
            idle_credits: 0,
            askable: Default::default(),
            pauses: Default::default(),
            blocked: Queued::default(),
            coming: 0,
            resident_bytes: 0,
            most_held: NO_CAP,
            is_closed: false,
        }
    }
}
