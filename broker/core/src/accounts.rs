//! Charging clients, their jobs, domains and the node together, and the fds on their way through the closers.
//! Must never charge one account of a list and not the others.

use crate::api::{ClientId, DomainKey, Effect, Effects, Lane, Ticket};
use crate::clients::DOMAIN;
use crate::ledger::{Accounts, Blocked, Charge, Holder};
use crate::limits::{FDS_PER_CONNECTION, TABLE_RESERVE};
use crate::slots::NONE;
use crate::state::{Closing, Queued};
use crate::{Core, ErrorCode};
use fdbroker_protocol::{Caps, Resource, Scope, Status};

/// An fd of a type that cannot be shared, charged to its domain until its close has returned.
const REFUSED_FD: Charge = Charge(Resource::RefusedFds, 1);

impl Core {
    pub(crate) fn accounts(&mut self, client: Option<u32>, domain: u32) -> Accounts<'_> {
        let table_room = self.table_room();
        let client = client.map(|number| {
            let client = self.clients[number as usize].as_deref_mut();
            let client = client.expect("a charged client exists");
            (number, client.job, &mut client.account)
        });
        let job = client.as_ref().and_then(|(_, job, _)| *job);
        Accounts {
            client: client.map(|(number, _, account)| (number, account)),
            job: job.map(|number| (number, &mut self.jobs[number].account)),
            domain: (domain, &mut self.domains[domain].account),
            node: &mut self.node,
            caps: [&self.config.client, &self.config.job, &self.config.domain, &self.config.node],
            table_room,
        }
    }

    /// Charges a client, its job, its domain and the node, or nobody.
    pub(crate) fn charge(&mut self, client: u32, charge: Charge) -> Result<(), Blocked> {
        let domain = self.client_mut(client).domain;
        self.accounts(Some(client), domain).charge(charge)?;
        self.table.peak = self.table.peak.max(self.table_now());
        Ok(())
    }

    /// Takes a client's charge back. Room in fds or bytes may let parked requests go on.
    pub(crate) fn release_charge(&mut self, client: u32, charge: Charge) {
        let domain = self.client_mut(client).domain;
        self.accounts(Some(client), domain).release(charge);
        self.room_appeared |= charge.0 != Resource::PinnedBytes && !self.rooms.is_empty();
    }

    /// Takes a charge back that was made just now, on trial: no room has appeared.
    pub(crate) fn undo_charge(&mut self, client: u32, charge: Charge) {
        let domain = self.client_mut(client).domain;
        self.accounts(Some(client), domain).release(charge);
    }

    /// Takes a charge back of which only the domain is left, because its client is gone.
    pub(crate) fn release_domain_charge(&mut self, domain: u32, charge: Charge) {
        self.accounts(None, domain).release(charge);
        self.room_appeared |= !self.rooms.is_empty();
        self.forget_domain_if_unused(domain);
    }

    /// Moves a charge of a gone client to its domain alone.
    pub(crate) fn leave_to_domain(&mut self, client: u32, charge: Charge) {
        let domain = self.client_mut(client).domain;
        self.accounts(Some(client), domain).leave_to_domain(charge);
    }

    /// Takes back a charge of an allocation: from its owner, from its domain alone when it has none, from nobody
    /// when it has no domain either.
    pub(crate) fn release_allocation_charge(&mut self, slot: u32, charge: Charge) {
        let (owner, domain) = (self.allocations[slot].owner, self.allocations[slot].domain);
        match (owner, domain) {
            (NONE, NONE) => {}
            (NONE, domain) => self.release_domain_charge(domain, charge),
            (owner, _) => self.release_charge(owner, charge),
        }
    }

    /// Makes a charge that has no cap.
    pub(crate) fn charge_uncapped(&mut self, client: u32, charge: Charge) {
        let domain = self.client_mut(client).domain;
        self.accounts(Some(client), domain).add(charge);
    }

    /// The broker's fd table in use: held places, connections, refused fds, the reserve.
    pub(crate) fn table_now(&self) -> u64 {
        let held = self.node.now(Resource::HeldFds);
        held + self.table.connections + self.table.refused + TABLE_RESERVE
    }

    /// Held places that still fit the table.
    pub(crate) fn table_room(&self) -> u64 {
        self.config.table_fds.saturating_sub(self.table_now())
    }

    /// Whether another connection fits the table.
    pub(crate) fn connection_fits(&self) -> bool {
        self.table_room() >= FDS_PER_CONNECTION
    }

    /// Free room for held places of a client: the least of all its accounts'.
    pub(crate) fn held_room(&mut self, client: u32) -> u64 {
        let domain = self.client_mut(client).domain;
        let share = self.share_of_table(domain);
        let accounts = self.accounts(Some(client), domain);
        let mut room = accounts.table_room.min(share);
        for (_, account, caps) in accounts.levels().into_iter().flatten() {
            for resource in [Resource::Fds, Resource::HeldFds] {
                room = room.min(caps[resource].saturating_sub(account.now(resource)));
            }
        }
        room
    }

    /// NO_QUOTA for a cap: its value, and the pid of the client that holds most of it. No pid when each client holds as
    /// much as the others: then no cap of a client bounds it.
    pub(crate) fn no_quota(&self, blocked: Blocked) -> Status {
        let Blocked { resource, account } = blocked;
        let cap = match (resource, account) {
            // The share of a domain, in what it has of the resource.
            (Resource::OwnFds, Holder::Domain(number)) => {
                let now = self.domains[number].account.now(resource);
                now.saturating_add(self.share_of_own_fds(number))
            }
            (Resource::TableFds, Holder::Domain(number)) => {
                let now = self.domains[number].account.now(Resource::HeldFds);
                now.saturating_add(self.share_of_table(number))
            }
            (Resource::TableFds, _) => self.config.table_fds,
            (resource, account) => self.caps_of(account)[resource],
        };
        let counted = match resource {
            Resource::TableFds => Resource::HeldFds,
            resource => resource,
        };
        let largest = self
            .all_clients()
            .filter(|(number, client)| client.is_of(*number, account))
            .filter(|_| counted.is_capped_in(Scope::Client))
            .max_by_key(|(_, client)| client.account.now(counted));
        let pid = largest.map_or(0, |(_, client)| client.pid);
        Status::no_quota(resource, account.scope(), cap, pid)
    }

    /// The caps of an account.
    pub(crate) fn caps_of(&self, account: Holder) -> &Caps {
        match account {
            Holder::Client(_) => &self.config.client,
            Holder::Job(_) => &self.config.job,
            Holder::Domain(_) => &self.config.domain,
            Holder::Node => &self.config.node,
        }
    }

    /// NO_QUOTA for a limit of the configuration that is no account's.
    pub(crate) fn no_quota_limit(resource: Resource, scope: Scope, limit: u64) -> Status {
        Status::no_quota(resource, scope, limit, 0)
    }

    // --- closers --------------------------------------------------------------------------------

    /// The place of an fd of `client` becomes that of one in the closers; the charge stays until
    /// [`Core::closed`].
    pub(crate) fn closing(&mut self, client: u32, lane: Lane) -> Ticket {
        let record = self.client_mut(client);
        record.closing += 1;
        let (domain, job, serial) = (record.domain, record.job, record.serial);
        let refused = lane == Lane::Refused;
        let coming = u64::from(!refused);
        record.coming += coming;
        if let Some(job) = job {
            self.jobs[job].coming += coming;
        }
        self.add_coming(domain, coming);
        self.domains[domain].closing += 1;
        if refused {
            self.accounts(None, domain).add(REFUSED_FD);
        }
        self.ticket(Closing { domain, client: Some((client, serial)), refused })
    }

    /// The same for an fd that its domain alone is charged for.
    pub(crate) fn closing_of_domain(&mut self, domain: u32) -> Ticket {
        self.add_coming(domain, 1);
        self.domains[domain].closing += 1;
        self.ticket(Closing { domain, client: Some((NONE, 0)), refused: false })
    }

    fn add_coming(&mut self, domain: u32, coming: u64) {
        self.domains[domain].coming += coming;
        self.coming += if self.domains[domain].slow { 0 } else { coming };
    }

    /// Closes of a domain's fds take long, or do so no more.
    pub(crate) fn set_slow(&mut self, key: DomainKey, slow: bool) {
        let Some(number) = self.domain_by_key.get(&key).copied() else { return };
        let domain = &mut self.domains[number];
        if std::mem::replace(&mut domain.slow, slow) == slow {
            return;
        }
        match slow {
            true => self.coming -= domain.coming,
            false => self.coming += domain.coming,
        }
        // Whoever waited for these closes may have others evicted.
        self.room_appeared |= slow && !self.rooms.is_empty();
    }

    fn ticket(&mut self, closing: Closing) -> Ticket {
        let (slot, _) = self.closings.insert(closing).expect("fds are fewer than slots");
        Ticket(slot)
    }

    /// The arrived fd at `index`, whose place `client` is charged for, goes to a closer.
    pub(crate) fn close_arrived(&mut self, client: u32, index: u16, lane: Lane, fx: &mut Effects) {
        let ticket = self.closing(client, lane);
        fx.list.push(Effect::CloseArrived { index, ticket, lane });
        if lane == Lane::Refused {
            self.end_if_refused_pile_up(ClientId(client), fx);
        }
    }

    /// An arrived fd that has no place goes to a closer: it is counted as refused, in the table only.
    /// A domain with too many of them loses the client.
    pub(crate) fn close_unreserved(
        &mut self,
        client: ClientId,
        index: u16,
        lane: Lane,
        fx: &mut Effects,
    ) {
        let record = self.clients.get(client.0 as usize).and_then(Option::as_deref);
        let Some(domain) = record.map(|client| client.domain) else {
            // Nobody to count it for: the daemon closes what no effect claims.
            return;
        };
        self.table.refused += 1;
        self.table.peak = self.table.peak.max(self.table_now());
        self.accounts(None, domain).add(REFUSED_FD);
        let ticket = self.ticket(Closing { domain, client: None, refused: true });
        fx.list.push(Effect::CloseArrived { index, ticket, lane });
        self.end_if_refused_pile_up(client, fx);
    }

    /// Ends the connection that sent one refused fd too many for its domain.
    fn end_if_refused_pile_up(&mut self, client: ClientId, fx: &mut Effects) {
        let most = u64::from(self.config.max_refused_per_domain);
        let Some(domain) = self.client(client).map(|record| record.domain) else { return };
        if self.domains[domain].account.now(Resource::RefusedFds) > most {
            let status = Self::no_quota_limit(Resource::RefusedFds, Scope::Domain, most);
            fx.list.push(Effect::Disconnect { client, status });
        }
    }

    /// A closer has closed it: the charge ends.
    pub(crate) fn closed(&mut self, ticket: Ticket) {
        if ticket.0 >= self.closings.slots()
            || self.closings.get(ticket.0, self.closings.generation(ticket.0)).is_none()
        {
            return;
        }
        let Closing { domain, client, refused } = self.closings.remove(ticket.0);
        if refused {
            self.accounts(None, domain).release(REFUSED_FD);
        }
        let Some((number, serial)) = client else {
            self.table.refused -= 1;
            self.room_appeared |= !self.rooms.is_empty();
            return self.forget_domain_if_unused(domain);
        };
        let coming = u64::from(!refused);
        self.domains[domain].coming -= coming;
        self.coming -= if self.domains[domain].slow { 0 } else { coming };
        self.domains[domain].closing -= 1;
        match self.clients.get_mut(number as usize).and_then(Option::as_deref_mut) {
            Some(record) if record.serial == serial => {
                record.closing -= 1;
                record.coming -= coming;
                if let Some(job) = record.job {
                    self.jobs[job].coming -= coming;
                }
                self.release_charge(number, Charge(Resource::HeldFds, 1));
            }
            _ => self.release_domain_charge(domain, Charge(Resource::HeldFds, 1)),
        }
    }

    /// Fds in the closers that will soon free a place in this account: not those whose close may hang.
    pub(crate) fn closing_in(&self, account: Holder) -> u64 {
        match account {
            Holder::Client(number) => {
                self.clients[number as usize].as_deref().map_or(0, |client| client.coming)
            }
            Holder::Job(number) => self.jobs[number].coming,
            Holder::Domain(number) => self.domains[number].coming,
            Holder::Node => self.coming,
        }
    }

    /// Whether nothing is on its way already that will be room.
    pub(crate) fn may_make_room(&self, blocked: Blocked) -> bool {
        let by_leases_alone =
            matches!(blocked.resource, Resource::OpenLeases | Resource::MappedLeases);
        by_leases_alone || self.closing_in(blocked.account) == 0
    }

    /// The requests that wait for room in an account, by resource; not kept for a client's: who waits for that
    /// stands before nobody else.
    pub(crate) fn queued(&mut self, account: Holder) -> Option<&mut Queued> {
        match account {
            Holder::Client(_) => None,
            Holder::Job(number) => Some(&mut self.jobs[number].blocked),
            Holder::Domain(number) => Some(&mut self.domains[number].blocked),
            Holder::Node => Some(&mut self.node_blocked),
        }
    }

    /// Drops a job that nothing is left of, requests of others that wait for its room included.
    pub(crate) fn forget_job_if_unused(&mut self, number: u32) {
        let job = &self.jobs[number];
        if job.clients > 0 || job.orphans > 0 || !job.blocked.is_empty() {
            return;
        }
        assert!(job.account.is_zero(), "invariant 3: a job without clients has zero: {job:?}");
        assert!(job.lru.is_empty() && job.coming == 0);
        self.job_by_key.remove(&job.key);
        self.jobs.remove(number);
        self.forget_full(Holder::Job(number));
    }

    /// Drops a domain that nothing is left of, requests of other domains that wait for its room included.
    pub(crate) fn forget_domain_if_unused(&mut self, number: u32) {
        let domain = &self.domains[number];
        let unused = domain.clients == 0 && domain.blocked.is_empty();
        if unused && domain.account.is_zero() {
            assert!(domain.lru.is_empty() && domain.closing == 0 && domain.coming == 0);
            assert!(domain.waiting.is_empty());
            self.domain_by_key.remove(&domain.key);
            self.node.take(DOMAIN);
            self.domains.remove(number);
            self.forget_full(Holder::Domain(number));
        }
    }

    /// The error of an item whose owner is gone or silent; `None` while it may be waited for.
    pub(crate) fn owner_error(&self, owner: u32) -> Option<ErrorCode> {
        let client = self.clients.get(owner as usize).and_then(Option::as_deref);
        match client {
            None => Some(ErrorCode::OwnerGone),
            Some(client) if client.gone => Some(ErrorCode::OwnerGone),
            Some(client) if client.silent => Some(ErrorCode::OwnerSilent),
            Some(_) => None,
        }
    }
}
