//! Clients come and go: connect, hello, death, and the teardown of what they leave, in portions. Must
//! never leave a charge behind.

use crate::api::{ClientId, DomainKey, Effect, Effects, JobKey, Now, Peer};
use crate::job_name::JobName;
use crate::ledger::{Charge, ScopeId};
use crate::limits::{FDS_PER_CONNECTION, TEARDOWN_PER_STEP};
use crate::rooms::items_of;
use crate::slots::NONE;
use crate::state::{AllocationList, Client, Domain, Job};
use crate::{Core, ErrorCode};
use fdbroker_protocol::admin::EventKind;
use fdbroker_protocol::{Resource, Scope, Status};

/// What the node is charged with for each domain in use.
pub(crate) const DOMAIN: Charge = Charge(Resource::Domains, 1);

/// What each client is charged with until nothing of it is left.
pub(crate) const CONNECTION: Charge = Charge(Resource::Connections, 1);

/// And from when it is let in.
pub(crate) const PLACES: Charge = Charge(Resource::TablePlaces, FDS_PER_CONNECTION);

impl Core {
    pub(crate) fn connect(&mut self, client: ClientId, peer: &Peer<'_>, fx: &mut Effects) {
        let key = peer.domain;
        let status = if client.0 >= self.config.max_clients {
            let most = u64::from(self.config.max_clients);
            Self::no_quota_limit(Resource::Connections, Scope::Node, most)
        } else if self.is_refusing(key) {
            let most = self.config.max_refused_per_domain.into();
            Self::no_quota_limit(Resource::RefusedFds, Scope::Domain, most)
        } else if let Some(status) = self.is_beyond_share(key) {
            status
        } else if let Some(domain) = self.domain(key) {
            match self.take_in(client, peer, domain) {
                Ok(()) => return,
                Err(blocked) => blocked,
            }
        } else {
            let most = u64::from(self.config.max_domains);
            Self::no_quota_limit(Resource::Domains, Scope::Node, most)
        };
        self.count_refused_connection(peer.pid, key.uid, peer.job.map(|(job, _)| job), status);
        fx.list.push(Effect::Disconnect { client, status });
        // Nothing of it was ever kept.
        fx.list.push(Effect::Forget { client });
    }

    /// Makes a client of a domain, or says which cap is in the way; then nothing of it is left.
    fn take_in(&mut self, client: ClientId, peer: &Peer<'_>, domain: u32) -> Result<(), Status> {
        let number = client.0 as usize;
        if self.clients.len() <= number {
            self.clients.resize_with(number + 1, || None);
        }
        assert!(self.clients[number].is_none(), "client {number} is connected already");
        self.serials += 1;
        let job = peer.job.map(|(job, name)| self.job((peer.domain, job), name));
        let mut record = Client::new(self.serials, domain, job, peer.pid);
        record.gid = peer.gid;
        record.groups = peer.groups.into();
        record.groups.sort_unstable();
        self.clients[number] = Some(Box::new(record));
        self.open_client(client.0);
        if let Err(blocked) = self.charge(client.0, CONNECTION) {
            let status = self.no_quota(blocked);
            self.close_client(client.0);
            return Err(status);
        }
        Ok(())
    }

    /// Opens the account of a client, and counts it with its domain and its job.
    pub(crate) fn open_client(&mut self, number: u32) {
        let Client { domain, job, most_held, .. } = *self.client_mut(number);
        let domain = &mut self.domains[domain];
        domain.clients += 1;
        let job = job.map(|job| &mut self.jobs[job]);
        let parent = job.map_or(domain.scope, |job| {
            job.clients += 1;
            job.scope
        });
        let scope = self.ledger.open(Scope::Client, number, parent);
        self.client_mut(number).scope = scope;
        if let Some(fds) = most_held {
            self.ledger.bound_held(scope, fds.into());
        }
    }

    /// Closes the account of a client, and counts it no longer with its domain and its job.
    fn close_client(&mut self, number: u32) {
        let client = self.clients[number as usize].take().expect("looked at just now");
        self.ledger.leave_coming(client.scope);
        self.ledger.close(client.scope);
        self.forget_full(client.scope);
        self.domains[client.domain].clients -= 1;
        if let Some(job) = client.job {
            self.jobs[job].clients -= 1;
            self.forget_job_if_unused(job);
        }
        self.forget_domain_if_unused(client.domain);
    }

    /// Why the domain may not have another connection, though there is room: that is for others.
    fn is_beyond_share(&self, key: DomainKey) -> Option<Status> {
        let domain = *self.domain_by_key.get(&key)?;
        let scope = self.domains[domain].scope;
        let now = self.ledger[scope].account.now(Resource::Connections);
        let is_beyond = self.share_of_connections(domain) == 0
            && self.ledger[ScopeId::NODE].account.now(Resource::Connections)
                < self.ledger.caps().node.connections;
        is_beyond.then(|| Self::no_quota_limit(Resource::Connections, Scope::Domain, now))
    }

    /// Whether too many refused fds of the domain are still to be closed.
    fn is_refusing(&self, key: DomainKey) -> bool {
        let most = u64::from(self.config.max_refused_per_domain);
        let number = self.domain_by_key.get(&key);
        number.is_some_and(|number| self.refused_fds(*number) > most)
    }

    pub(crate) fn domain(&mut self, key: DomainKey) -> Option<u32> {
        if let Some(number) = self.domain_by_key.get(&key) {
            return Some(*number);
        }
        let mut domain = Domain::new(key);
        domain.turn = self.rooms.last_turn();
        let (number, _) = self.domains.insert(domain)?;
        self.open_domain(number);
        self.ledger.add(ScopeId::NODE, DOMAIN);
        Some(number)
    }

    /// Opens the account of a domain, and has it found by its key; `false`: another one is found by it.
    pub(crate) fn open_domain(&mut self, number: u32) -> bool {
        let domain = &mut self.domains[number];
        domain.scope = self.ledger.open(Scope::Domain, number, ScopeId::NODE);
        self.domain_by_key.insert(domain.key, number).is_none()
    }

    pub(crate) fn job(&mut self, key: (DomainKey, JobKey), name: JobName) -> u32 {
        if let Some(number) = self.job_by_key.get(&key) {
            return *number;
        }
        let (number, _) = self.jobs.insert(Job::new(key, name)).expect("jobs are fewer than slots");
        self.open_job(number);
        number
    }

    /// Opens the account of a job whose domain has one, and has it found by its key; `false`: another one is found by it.
    pub(crate) fn open_job(&mut self, number: u32) -> bool {
        let job = &mut self.jobs[number];
        let domain = self.domains[self.domain_by_key[&job.key.0]].scope;
        job.scope = self.ledger.open(Scope::Job, number, domain);
        self.job_by_key.insert(job.key, number).is_none()
    }

    pub(crate) fn sendable(&mut self, client: ClientId, sendable: bool) {
        let Some(record) = self.client(client) else { return };
        record.sendable = sendable;
        let parked = record.parked.clone();
        if sendable {
            self.room_appeared |= !self.rooms.is_empty() && !parked.is_empty();
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
        self.dying.push_back(client.0);
    }

    /// Ends what gone clients had, a bounded number of parked items, leases and allocations at a time.
    pub(crate) fn tear_down(&mut self, now: Now, fx: &mut Effects) {
        let mut left = TEARDOWN_PER_STEP;
        while let Some(number) = self.dying.front().copied() {
            while left > 0
                && let Some(seq) = self.client_mut(number).parked.last().copied()
            {
                let items = self.unpark(seq).map_or(0, |parked| items_of(&parked.wish).1);
                left = left.saturating_sub(usize::try_from(items).unwrap_or(left).max(1));
            }
            while left > 0
                && let Some(lease) = self.any_lease(number)
            {
                self.end_lease(lease);
                left -= 1;
            }
            while left > 0
                && let Some(slot) = self.client_mut(number).owned.first()
            {
                self.disown(now, number, slot, fx);
                left -= 1;
            }
            if left == 0 {
                return;
            }
            self.dying.pop_front();
            self.forget(number, fx);
        }
    }

    /// Ends an allocation of a gone owner and takes it off the owner's record; a kept one lives on without it.
    fn disown(&mut self, now: Now, owner: u32, slot: u32, fx: &mut Effects) {
        if self.outlives_owner(slot) {
            return self.orphan(now, slot);
        }
        if self.allocations[slot].is_live() {
            self.end(slot, ErrorCode::OwnerGone, fx);
        } else if self.allocations[slot].drained {
            self.unlink(slot, AllocationList::Event);
        }
        self.unlink(slot, AllocationList::Owned);
        self.leave_to_domain(owner, Charge(Resource::Allocations, 1));
        self.allocations[slot].owner = NONE;
        if self.allocations[slot].leases.is_empty() {
            self.free_allocation(slot);
        }
    }

    /// Forgets a gone client that has been torn down. Its fds in the closers are its domain's from now on:
    /// one of them may hang for ever.
    fn forget(&mut self, number: u32, fx: &mut Effects) {
        let closing = std::mem::take(&mut self.client_mut(number).closing);
        self.leave_to_domain(number, Charge(Resource::HeldFds, closing));
        self.release_charge(number, CONNECTION);
        if self.client_mut(number).welcome {
            self.release_charge(number, PLACES);
        }
        let client = self.client_mut(number);
        assert!(client.lru.is_empty() && client.recalls.is_empty() && client.drained.is_empty());
        assert!(client.revoked.is_empty() && client.reclaims.is_empty());
        assert!(client.by_base.is_empty() && client.parked.is_empty());
        assert!(client.interests.is_empty());
        self.room_appeared |= !self.rooms.is_empty();
        self.close_client(number);
        fx.list.push(Effect::Forget { client: ClientId(number) });
    }
}
