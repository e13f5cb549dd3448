//! What is in the way of a charge, and how it is said. Must never change an account.

use crate::api::{DomainKey, NONE};
use crate::books::Books;
use crate::books::charges::{PROMISED_LEASE, RECALLED_PLACE};
use crate::books::clients::Client;
use crate::books::ledger::{Blocked, Charge, SHARE_OF_FDS, ScopeId, ScopeRecord};
use crate::books::objects::charges::of_objects_in;

use fdbroker_protocol::{ErrorCode, Resource, Scope, Status};

impl Books {
    /// The scope of a client.
    pub(crate) fn scope_of(&self, client: u32) -> ScopeId {
        self.clients[client].scope
    }

    /// The scope that an allocation is charged to: its owner's; its domain's when it has none.
    pub(crate) fn payer(&self, owner: u32, domain: u32) -> ScopeId {
        match owner {
            NONE => self.clients.scope_of_domain(domain),
            owner => self.scope_of(owner),
        }
    }

    /// What is in the way of a charge of a client. Idle credits are not.
    pub(crate) fn blocked(&self, client: u32, charge: Charge) -> Option<Blocked> {
        self.ledger.blocked(&[(self.scope_of(client), charge)])
    }

    /// Free room for held places of a client: the least of all its scopes', and of its domain's
    /// share.
    pub(crate) fn held_room(&mut self, client: u32) -> u64 {
        let record = self.client_mut(client);
        let (scope, domain) = (record.scope, record.domain);
        let share = self.share_of_table(domain).min(self.share_of_fds(domain));
        self.ledger.held_room(scope).min(share)
    }

    /// NO_QUOTA for a cap: its value, and the pid of the client that holds most of it, whoever is
    /// told. No pid when what belongs to no client is more, nor for what no cap of a client bounds.
    #[allow(clippy::wildcard_enum_match_arm, reason = "few resources have a rule of their own")]
    pub(crate) fn no_quota(&self, blocked: Blocked) -> Status {
        let Blocked { resource, scope } = blocked;
        let ScopeRecord { kind, number, ref account, .. } = self.ledger[scope];
        let (resource, cap) = match (resource, kind) {
            // The share of a domain, in what it has of the resource.
            (SHARE_OF_FDS, Scope::Domain) => {
                let share = self.share_of_fds(number);
                (Resource::Fds, account.counted(Resource::Fds).saturating_add(share))
            }
            (Resource::TablePlaces, Scope::Domain) => {
                let share = self.share_of_table(number);
                let places = account.counted(resource) + account.counted(Resource::HeldFds);
                (resource, places.saturating_add(share))
            }
            (Resource::TablePlaces, _) => (resource, self.config.table_fds),
            _ => (resource, self.ledger.cap(scope, resource)),
        };
        let counted = match resource {
            Resource::TablePlaces => Resource::HeldFds,
            resource => resource,
        };
        let is_share = kind == Scope::Domain
            && matches!(blocked.resource, SHARE_OF_FDS | Resource::TablePlaces);
        let full = Status::no_quota(resource, kind, cap, 0);
        let full = if is_share { full.of_share() } else { full };
        if !is_share && account.counted(counted) == 0 && resource != Resource::TablePlaces {
            return full.of_request();
        }
        if !counted.is_capped_in(Scope::Client) {
            return full;
        }
        let its =
            self.clients.iter().filter(|(_, it)| self.ledger.path(it.scope).any(|of| of == scope));
        let (mut largest, mut of_nobody) = ((0, 0), account.counted(counted));
        let mut declaring = 0;
        for (_, client) in its {
            let own = &self.ledger[client.scope].account;
            declaring += u64::from(own.now(Resource::OwnFds) > 0);
            let held = own.counted(counted);
            of_nobody = of_nobody.saturating_sub(held);
            if held >= largest.0 {
                largest = (held, client.pid);
            }
        }
        let full = if resource == Resource::Fds {
            full.with_declared(account.now(Resource::OwnFds), declaring)
        } else {
            full
        };
        match largest {
            (held, _) if of_nobody > held => full.of_no_process(),
            (_, pid) => Status { pid, ..full },
        }
    }

    /// A NO_QUOTA as a client is told it: pids of its own domain's processes alone.
    pub(crate) fn as_told(&self, client: u32, status: Status) -> Status {
        let pid = status.pid;
        let own = self.clients.find(client).map(|client| client.domain);
        let is_own = |client: &Client| client.pid == pid && Some(client.domain) == own;
        let is_cap = status.result() == Err(ErrorCode::NoQuota) && pid != 0;
        if is_cap && !self.clients.iter().any(|(_, client)| is_own(client)) {
            status.of_another_user()
        } else {
            status
        }
    }

    /// NO_QUOTA for a limit of the configuration that is no account's.
    pub(crate) fn no_quota_limit(resource: Resource, scope: Scope, limit: u64) -> Status {
        Status::no_quota(resource, scope, limit, 0)
    }

    /// Whether nothing is on its way already that will be room.
    pub(crate) fn may_make_room(&self, blocked: Blocked) -> bool {
        !blocked.is_helped_by_eviction() || self.ledger[blocked.scope].coming == 0
    }

    /// Whether the closes of a domain's refused fds, and so many more, are too many that have not
    /// returned.
    pub(crate) fn too_many_refused(&self, domain: u32, more: u64) -> Option<Status> {
        let account = &self.ledger[self.clients.scope_of_domain(domain)].account;
        let most = u64::from(self.config.max_refused_per_domain);
        let is_beyond = account.now(Resource::RefusedFds) + more > most;
        is_beyond.then(|| Self::no_quota_limit(Resource::RefusedFds, Scope::Domain, most))
    }

    /// The error of an item whose owner is gone or silent; `None` while it may be waited for.
    pub(crate) fn owner_error(&self, owner: u32) -> Option<ErrorCode> {
        let client = self.clients.find(owner);
        match client {
            None => Some(ErrorCode::OwnerGone),
            Some(client) if client.gone => Some(ErrorCode::OwnerGone),
            Some(client) if client.silent => Some(ErrorCode::OwnerSilent),
            Some(_) => None,
        }
    }

    /// The account of a client that is above its cap of held bytes: a file of it has grown.
    pub(crate) fn above_held_bytes(&mut self, owner: u32) -> Option<Blocked> {
        self.ledger.above(self.scope_of(owner), Resource::HeldBytes)
    }

    /// Whether a client's caps admit an fd of this size when nothing else is held.
    pub(crate) fn fits_at_all(&mut self, owner: u32, size: u64) -> bool {
        let scope = self.scope_of(owner);
        self.ledger.path(scope).all(|of| size <= self.ledger.cap(of, Resource::HeldBytes))
    }

    /// Whether a client may hold so many bytes more, once others are evicted: no account of it is
    /// above its cap.
    pub(crate) fn may_be_held(&mut self, owner: u32, size: u64) -> bool {
        self.fits_at_all(owner, size) && self.above_held_bytes(owner).is_none()
    }

    /// Whether so many bytes more fit beside those that cannot be had back.
    pub(crate) fn fits_beside_resident(&self, owner: u32, size: u64) -> bool {
        let with_it = |of: ScopeId| self.ledger[of].resident_bytes + u128::from(size);
        let cap = |of: ScopeId| self.ledger.cap(of, Resource::HeldBytes).into();
        self.ledger.path(self.scope_of(owner)).all(|of| with_it(of) <= cap(of))
    }

    /// How much more of a resource a domain may have.
    pub(crate) fn share_of_objects(&self, domain: u32, resource: Resource) -> u64 {
        let most = self.ledger.caps().node[resource];
        self.share_after(domain, most, of_objects_in(resource), [0; 2])
    }

    pub(crate) fn may_log(&self, domain: u32, bytes: u64) -> bool {
        let charge = Charge(Resource::MetadataBytes, bytes);
        bytes <= self.share_of_objects(domain, Resource::MetadataBytes)
            && self.ledger.fits(self.clients.scope_of_domain(domain), None, charge).is_ok()
    }

    /// What is in the way of a recall for `client`, were it started now; nothing is evicted for it.
    pub(crate) fn recall_blocked(&self, slot: u32, client: u32) -> Option<Blocked> {
        let owner = self.allocations[slot].owner;
        let (payer, taker) = (self.scope_of(owner), self.scope_of(client));
        let bytes = Charge(Resource::HeldBytes, self.allocations[slot].size_bytes);
        self.share_blocked(client, 1).or_else(|| {
            self.ledger.blocked(&[(taker, PROMISED_LEASE), (payer, RECALLED_PLACE), (payer, bytes)])
        })
    }

    pub(crate) fn domain_or_nobodys(&self, number: u32) -> DomainKey {
        match number {
            NONE => DomainKey::NOBODYS,
            number => self.clients.domain_key(number),
        }
    }
}
