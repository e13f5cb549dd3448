//! Which account is in the way of a charge. Must never say how full it is.

use fdbroker_protocol::Resource;
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

/// Stands for the share of a domain in the fds: fds of clients' own have no cap, so nothing else is
/// blocked by them.
pub const SHARE_OF_FDS: Resource = Resource::OwnFds;

/// Resources of which a grant of a held fd takes one.
pub const FOR_LEASE: &[Resource] = &[Resource::Fds, Resource::OpenLeases, SHARE_OF_FDS];

/// Resources of which a deposit credit takes one.
pub const FOR_CREDIT: &[Resource] = &[Resource::Fds, Resource::HeldFds, Resource::TablePlaces];

/// Resources of which a recalled fd takes some.
pub const FOR_HELD: &[Resource] =
    &[Resource::Fds, Resource::HeldFds, Resource::TablePlaces, Resource::HeldBytes];

/// The number of a scope in the ledger. Used again once the scope is closed and nobody waits for
/// room in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ScopeId(#[serde(skip)] pub(super) u32);

impl ScopeId {
    /// The node.
    pub const NODE: ScopeId = ScopeId(0);
}
