//! Shares of domains: of what cannot be taken back, a domain gets more only while it holds less than so many times
//! ([`crate::Config::share_factor`]) what is still free. So a newcomer always finds some. Must never take anything back.

use fdbroker_protocol::{NO_CAP, Resource};

use crate::Core;
use crate::ledger::{ScopeId, ScopeRecord};
use crate::limits::{FDS_PER_CONNECTION, TABLE_RESERVE};

/// What of a resource cannot be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Held by the domain.
    pub held: u64,
    /// Held by all domains.
    pub used: u64,
    /// All that there is.
    pub most: u64,
}

impl Part {
    /// How much more the domain may get; `factor` as in [`crate::Config::share_factor`].
    pub fn room(self, factor: u64) -> u64 {
        if factor == NO_CAP || self.most == NO_CAP {
            return NO_CAP;
        }
        let held = u128::from(self.held);
        let free = u128::from(self.most.saturating_sub(self.used));
        let reach = u128::from(factor) * free;
        if held >= reach {
            return 0;
        }
        // The last one that it gets finds that the domain holds less than `factor` times what is free then.
        let room = (reach - held - 1) / (u128::from(factor) + 1) + 1;
        u64::try_from(room.min(free)).expect("no more than is free")
    }
}

impl Core {
    /// How many more fds of their own clients of a domain may declare. What clients have open counts, too.
    pub(crate) fn share_of_own_fds(&self, domain: u32) -> u64 {
        let of = |resources: [u64; 2]| resources.iter().sum();
        let [held, used] = self.shared(domain).map(|scope| {
            [Resource::OwnFds, Resource::OpenLeases].map(|it| scope.account.counted(it))
        });
        let most = self.ledger.caps().node.fds;
        Part { held: of(held), used: of(used), most }.room(self.config.share_factor)
    }

    /// How many more connections a domain may have.
    pub(crate) fn share_of_connections(&self, domain: u32) -> u64 {
        let [held, used] =
            self.shared(domain).map(|scope| scope.account.now(Resource::Connections));
        let most = self.ledger.caps().node.connections;
        Part { held, used, most }.room(self.config.share_factor)
    }

    /// How many more places of the broker's own fd table a domain may have: for connections, credits and recalls. Fds
    /// that can be closed, and idle credits, count as free.
    pub(crate) fn share_of_table(&self, domain: u32) -> u64 {
        let [record, node] = self.shared(domain);
        let connections = record.account.now(Resource::Connections) * FDS_PER_CONNECTION;
        let held =
            connections + record.account.counted(Resource::HeldFds) - record.can_be_had_back();
        let used = self.ledger.table_now() - TABLE_RESERVE - node.can_be_had_back();
        let most = self.config.table_fds.saturating_sub(TABLE_RESERVE);
        Part { held, used, most }.room(self.config.share_factor)
    }

    /// Whether a domain may have no other place of the table, though there are some, or fds that can be closed.
    pub(crate) fn is_beyond_share_of_table(&self, domain: u32) -> bool {
        let [_, node] = self.shared(domain);
        self.share_of_table(domain) == 0 && self.ledger.table_room() + node.can_be_had_back() > 0
    }

    /// What is counted of a domain, and of the node.
    fn shared(&self, domain: u32) -> [&ScopeRecord; 2] {
        [self.domains[domain].scope, ScopeId::NODE].map(|scope| &self.ledger[scope])
    }
}

#[cfg(test)]
#[path = "../tests/unit/shares.rs"]
mod tests;
