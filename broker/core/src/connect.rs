//! Clients come and go: connect, hello, death, and the teardown of what they leave, in portions. Must
//! never leave a charge behind.

use crate::api::{ClientId, DomainKey, Effect, Effects, Peer};
use crate::clients::Client;
use crate::ledger::{Charge, ScopeId};
use crate::limits::{DOMAINS_PER_USER, FDS_PER_CONNECTION, TEARDOWN_PER_STEP};
use crate::parked::Wait;
use crate::rooms::items_of;
use crate::{Core, ErrorCode};
use fdbroker_protocol::admin::EventKind;
use fdbroker_protocol::{Resource, Scope, Status};

/// What each client is charged with until nothing of it is left.
pub(crate) const CONNECTION: Charge = Charge(Resource::Connections, 1);

/// And from when it is let in.
pub(crate) const PLACES: Charge = Charge(Resource::TablePlaces, FDS_PER_CONNECTION);

impl Core {
    pub(crate) fn connect(&mut self, client: ClientId, peer: &Peer<'_>, fx: &mut Effects) {
        let key = peer.domain;
        let known = self.clients.find_domain(key);
        let refused = known.and_then(|domain| self.too_many_refused(domain, 0));
        let status = if client.0 >= self.config.max_clients {
            let most = u64::from(self.config.max_clients);
            Self::no_quota_limit(Resource::Connections, Scope::Node, most)
        } else if let Some(status) = refused.or_else(|| self.is_beyond_share(key)) {
            status
        } else if let Some(domain) = self.domain_of_client(key) {
            match self.take_in(client, peer, domain) {
                Ok(()) => return,
                Err(blocked) => blocked,
            }
        } else {
            let of_user = self.clients.of_user(key).len();
            let (scope, most) = match of_user < DOMAINS_PER_USER {
                true => (Scope::Node, self.config.max_domains.into()),
                false => (Scope::Domain, of_user as u64),
            };
            Self::no_quota_limit(Resource::Domains, scope, most)
        };
        self.count_refused_connection(peer.pid, key, peer.job.map(|(job, _)| job), status);
        fx.list.push(Effect::Disconnect { client, status });
        // Nothing of it was ever kept.
        fx.list.push(Effect::Forget { client });
    }

    /// Makes a client of a domain, or says which cap is in the way; then nothing of it is left.
    fn take_in(&mut self, client: ClientId, peer: &Peer<'_>, domain: u32) -> Result<(), Status> {
        let Core { clients, ledger, .. } = self;
        let job = peer.job.map(|(job, name)| clients.job_of((peer.domain, job), name, ledger));
        let mut groups: Box<[u32]> = peer.groups.into();
        groups.sort_unstable();
        let new = Client::new(0, domain, job, peer.pid);
        clients.insert(client.0, Client { gid: peer.gid, groups, ..new });
        clients.open(client.0, ledger);
        if let Err(blocked) = self.charge(client.0, CONNECTION) {
            let status = self.as_told(client.0, self.no_quota(blocked));
            self.close_client(client.0);
            return Err(status);
        }
        Ok(())
    }

    /// Nothing of a client is left; maybe not of its job and its domain either.
    fn close_client(&mut self, number: u32) {
        let Client { job, domain, .. } = self.clients.close(number, &mut self.ledger);
        if let Some(job) = job {
            self.forget_job_if_unused(job);
        }
        self.forget_domain_if_unused(domain);
    }

    /// Drops a job that nothing is left of.
    pub(crate) fn forget_job_if_unused(&mut self, number: u32) {
        self.clients.forget_job_if_unused(number, &mut self.ledger);
    }

    /// Drops a domain that nothing is left of.
    pub(crate) fn forget_domain_if_unused(&mut self, number: u32) {
        self.clients.forget_domain_if_unused(number, &mut self.ledger);
    }

    /// A request waits no longer for room in a scope: drops what stayed for that alone.
    pub(crate) fn forget_scope_if_unused(&mut self, scope: Option<(Scope, u32)>) {
        match scope {
            Some((Scope::Domain, number)) => self.forget_domain_if_unused(number),
            Some((Scope::Job, number)) => self.forget_job_if_unused(number),
            Some((Scope::Client | Scope::Node, _)) | None => {}
        }
    }

    /// Why the domain may not have another connection, though there is room: that is for others.
    fn is_beyond_share(&self, key: DomainKey) -> Option<Status> {
        let of_user = || self.clients.of_user(key).first().copied();
        let domain = self.clients.find_domain(key).or_else(of_user)?;
        let scope = self.clients.scope_of_domain(domain);
        let now = self.ledger[scope].account.now(Resource::Connections);
        let is_beyond = self.share_of_connections(domain) == 0
            && self.ledger[ScopeId::NODE].account.now(Resource::Connections)
                < self.ledger.caps().node.connections;
        is_beyond
            .then(|| Self::no_quota_limit(Resource::Connections, Scope::Domain, now).of_share())
    }

    /// The domain of a key for another client; `None`: as many as there may be have clients, and it has none.
    fn domain_of_client(&mut self, key: DomainKey) -> Option<u32> {
        let known = self.clients.find_domain(key);
        if known.is_none_or(|domain| self.clients.domain(domain).clients == 0)
            && self.now_in_node(Resource::Domains) >= self.config.max_domains.into()
        {
            return None;
        }
        self.domain(key)
    }

    /// The domain of a key, a new one if need be; `None`: there are as many as there may be.
    pub(crate) fn domain(&mut self, key: DomainKey) -> Option<u32> {
        let Core { clients, ledger, rooms, .. } = self;
        clients.domain_of(key, ledger, || rooms.last_turn())
    }

    pub(crate) fn sendable(&mut self, client: ClientId, sendable: bool) {
        let Some(record) = self.client(client) else { return };
        record.sendable = sendable;
        let parked = record.parked.clone();
        if sendable {
            let waits = |seq: &u64| self.parked[seq].wait == Wait::Reader;
            let waiting: Vec<u64> = parked.into_iter().filter(waits).collect();
            waiting.into_iter().for_each(|seq| self.look_soon(seq));
        } else {
            // Its turn may not come for long: it must not stand before others.
            parked.into_iter().for_each(|seq| self.wait_for_reader(seq));
        }
    }

    pub(crate) fn gone(&mut self, client: ClientId) {
        let Some(record) = self.client(client) else { return };
        let was_welcome = record.welcome;
        record.gone = true;
        let parked = record.parked.clone();
        let (own, credits) = (std::mem::take(&mut record.own_fds), record.credits);
        parked.into_iter().for_each(|seq| self.stand_down(seq));
        if was_welcome {
            self.note_of_client(EventKind::Gone, client.0, Status::OK);
        }
        self.release_charge(client.0, Charge(Resource::OwnFds, own));
        self.set_credits(client.0, 0, false);
        self.release_charge(client.0, Charge(Resource::ReservedPlaces, credits));
        self.ask_no_more(client.0);
        self.unwatch_all(client.0);
        self.clients.bury(client.0);
    }

    /// Ends what gone clients had, a bounded number of parked items, leases and allocations at a time.
    pub(crate) fn tear_down(&mut self, fx: &mut Effects) {
        let mut left = TEARDOWN_PER_STEP;
        while let Some(number) = self.clients.next_dying() {
            while left > 0
                && let Some(seq) = self.client_mut(number).parked.last().copied()
            {
                let items = self.unpark(seq).map_or(0, |parked| items_of(&parked.wish).1);
                left = left.saturating_sub(usize::try_from(items).unwrap_or(left).max(1));
            }
            while left > 0
                && let Some(lease) = self.leases.any_of(number)
            {
                self.end_lease(lease);
                left -= 1;
            }
            while left > 0
                && let Some(slot) = self.allocations.any_of(number)
            {
                self.disown(number, slot, fx);
                left -= 1;
            }
            if left == 0 {
                return;
            }
            self.clients.end_dying();
            self.forget(number, fx);
        }
    }

    /// Ends an allocation of a gone owner and takes it off the owner's record; a kept one lives on without it.
    fn disown(&mut self, owner: u32, slot: u32, fx: &mut Effects) {
        if self.allocations[slot].outlives_owner() {
            return self.orphan(slot);
        }
        if self.allocations[slot].is_live() {
            self.end(slot, ErrorCode::OwnerGone, fx);
        }
        self.allocations.take_from_owner(slot);
        self.leave_to_domain(owner, Charge(Resource::Allocations, 1));
        if self.allocations[slot].leases.is_empty() {
            self.free_allocation(slot);
        }
    }

    /// Forgets a gone client that has been torn down. Its fds in the closers are its domain's from now on:
    /// one of them may hang for ever.
    fn forget(&mut self, number: u32, fx: &mut Effects) {
        let closing = self.closings.forget_client(self.clients[number].serial);
        self.leave_to_domain(number, Charge(Resource::HeldFds, closing));
        self.release_charge(number, CONNECTION);
        if self.client_mut(number).welcome {
            self.release_charge(number, PLACES);
        }
        assert!(self.clients[number].parked.is_empty());
        self.allocations.forget_owner(number);
        self.leases.forget_holder(number);
        self.close_client(number);
        fx.list.push(Effect::Forget { client: ClientId(number) });
    }
}
