//! What more a domain may have of what cannot be taken back. Domains of one user's subordinate uids
//! count as one. Must never take anything back.

use crate::books::Books;
use crate::books::ledger::{Blocked, SHARE_OF_FDS, ScopeId, ScopeRecord};
use crate::books::shares::Part;
use crate::limits::{FDS_PER_CONNECTION, TABLE_RESERVE};
use crate::work::visit;
use fdbroker_protocol::{NO_CAP, Resource, Scope, Status};

impl Books {
    /// How many more fds a domain may have: leases, fds of its clients' own, places of held fds.
    /// Fds that can be closed, and idle credits, count as free.
    pub(crate) fn share_of_fds(&self, domain: u32) -> u64 {
        if self.config.share_factor == NO_CAP {
            return NO_CAP;
        }
        self.share_after(domain, self.ledger.caps().node.fds, lasting_fds, [0; 2])
    }

    /// The share in the way of so many more fds of a domain, though there are some, or fds that can
    /// be closed.
    pub(crate) fn beyond_share_of_fds(&self, domain: u32, more: u64) -> Option<Blocked> {
        let is_beyond = more > self.share_of_fds(domain)
            && lasting_fds(&self.ledger[ScopeId::NODE]) < self.ledger.caps().node.fds;
        is_beyond.then(|| Blocked {
            resource: SHARE_OF_FDS,
            scope: self.clients.scope_of_domain(domain),
        })
    }

    /// The share in the way of so many more fds of a client.
    pub(crate) fn share_blocked(&self, client: u32, more: u64) -> Option<Blocked> {
        self.beyond_share_of_fds(self.clients[client].domain, more)
    }

    /// Where leases given back help against the share of a domain. In all domains; but one that has
    /// as much as it would get if all had the same must not take from others.
    pub(crate) fn scope_of_share(&self, domain: ScopeId) -> ScopeId {
        let domains = self.ledger[ScopeId::NODE].account.now(Resource::Domains).max(1);
        let even = self.ledger.caps().node.fds / domains;
        let [held, _] = self.shared(self.ledger[domain].number, lasting_fds);
        if held < even { ScopeId::NODE } else { domain }
    }

    /// How many more connections a domain may have.
    pub(crate) fn share_of_connections(&self, domain: u32) -> u64 {
        let most = self.ledger.caps().node.connections;
        self.share_after(domain, most, |it| it.account.now(Resource::Connections), [0; 2])
    }

    /// NO_QUOTA, if a domain may not hold so many bytes more of memory that cannot be had back.
    /// What room there is beyond its share is for other domains.
    pub(crate) fn beyond_share_of_bytes(&self, domain: u32, more: u64) -> Option<Status> {
        let most = self.ledger.caps().node.held_bytes;
        let room = self.share_after(domain, most, ScopeRecord::resident, [0; 2]);
        let share = self.shared(domain, ScopeRecord::resident)[0].saturating_add(room);
        (more > room)
            .then(|| Self::no_quota_limit(Resource::HeldBytes, Scope::Domain, share).of_share())
    }

    /// How much more a domain may have of something that cannot be taken back, once so much of its
    /// own and of all has been freed: `most` is the node's cap.
    pub(crate) fn share_after(
        &self,
        domain: u32,
        most: u64,
        count: fn(&ScopeRecord) -> u64,
        [own, all]: [u64; 2],
    ) -> u64 {
        let [held, used] = self.shared(domain, count);
        let (held, used) = (held.saturating_sub(own), used.saturating_sub(all));
        Part { held, used, most }.lasting_room(self.config.share_factor)
    }

    /// How many more places of the broker's own fd table a domain may have: for connections,
    /// credits and recalls. Fds that can be closed, and idle credits, count as free.
    pub(crate) fn share_of_table(&self, domain: u32) -> u64 {
        let [held, _] = self.shared(domain, lasting_places);
        let used =
            self.ledger.table_now() - TABLE_RESERVE - self.ledger[ScopeId::NODE].can_be_had_back();
        let most = self.config.table_fds.saturating_sub(TABLE_RESERVE);
        Part { held, used, most }.lasting_room(self.config.share_factor)
    }

    /// The share in the way of so many more places of a domain, though there are as many, or fds
    /// that can be closed.
    fn beyond_share_of_table(&self, domain: u32, more: u64) -> Option<Blocked> {
        let free = self.ledger.table_room_after(self.ledger[ScopeId::NODE].can_be_had_back());
        let is_beyond = self.share_of_table(domain) < more && free >= more;
        let (resource, scope) = (Resource::TablePlaces, self.clients.scope_of_domain(domain));
        is_beyond.then_some(Blocked { resource, scope })
    }

    /// The share in the way of another place for a held fd of a domain.
    pub(crate) fn beyond_share_of_held(&self, domain: u32) -> Option<Blocked> {
        self.beyond_share_of_table(domain, 1).or_else(|| self.beyond_share_of_fds(domain, 1))
    }

    /// The share in the way of the places of another connection. A domain that has none yet always
    /// finds some.
    pub(crate) fn beyond_share_of_places(&self, domain: u32) -> Option<Blocked> {
        let [held, _] = self.shared(domain, lasting_places);
        self.beyond_share_of_table(domain, FDS_PER_CONNECTION).filter(|_| held > 0)
    }

    /// What is counted of a domain with all others of its user, and of the node.
    fn shared(&self, domain: u32, count: fn(&ScopeRecord) -> u64) -> [u64; 2] {
        let of = |domain| count(&self.ledger[self.clients.scope_of_domain(domain)]);
        let held = match self.clients.of_same_user(domain) {
            [] => of(domain),
            all => {
                visit(all.len() as u64);
                all.iter().map(|domain| of(*domain)).fold(0, u64::saturating_add)
            }
        };
        [held, count(&self.ledger[ScopeId::NODE])]
    }
}

/// The fds of a domain, or of the node, but for those that can be closed, and idle credits.
fn lasting_fds(scope: &ScopeRecord) -> u64 {
    scope.account.counted(Resource::Fds) - scope.can_be_had_back()
}

/// The same for its places of the table.
fn lasting_places(scope: &ScopeRecord) -> u64 {
    let places = [Resource::TablePlaces, Resource::HeldFds];
    places.map(|it| scope.account.counted(it)).iter().sum::<u64>() - scope.can_be_had_back()
}
