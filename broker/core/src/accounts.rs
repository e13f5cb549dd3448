//! Charging clients, their jobs, domains and the node together, and the fds on their way through the closers.
//! Must never charge one account of a list and not the others.

use crate::allocation::Allocation;
use crate::api::{ClientId, Deposit, DomainKey, Effect, Effects, Lane, Ticket};
use crate::clients::Client;
use crate::closings::Closing;
use crate::ledger::{Blocked, Charge, SHARE_OF_FDS, ScopeId, ScopeRecord};
use crate::slots::NONE;
use crate::{Core, ErrorCode};
use fdbroker_protocol::{Resource, Scope, Status};

/// An fd of a type that cannot be shared, charged to its domain until its close has returned.
const REFUSED_FD: Charge = Charge(Resource::RefusedFds, 1);

impl Core {
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

    /// Charges a client, its job, its domain and the node, or nobody. Idle credits are not in the way.
    pub(crate) fn charge(&mut self, client: u32, charge: Charge) -> Result<(), Blocked> {
        let scope = self.scope_of(client);
        while let Err(blocked) = self.ledger.charge(scope, charge) {
            // Each time one cap less is in the way.
            if !self.take_idle_credits(blocked, charge.1) {
                return Err(blocked);
            }
        }
        Ok(())
    }

    /// What is in the way of a charge of a client. Idle credits are not.
    pub(crate) fn blocked(&self, client: u32, charge: Charge) -> Option<Blocked> {
        self.ledger.blocked(&[(self.scope_of(client), charge)])
    }

    /// What a client was charged for in advance has come.
    pub(crate) fn settle(&mut self, client: u32, charge: Charge) {
        let scope = self.scope_of(client);
        self.ledger.settle(scope, charge);
    }

    /// Takes a client's charge back, for whoever waits for it.
    pub(crate) fn release_charge(&mut self, client: u32, charge: Charge) {
        let scope = self.scope_of(client);
        self.ledger.release(scope, charge);
    }

    /// Takes a charge back that leaves everything as it was before.
    pub(crate) fn undo_charge(&mut self, client: u32, charge: Charge) {
        let scope = self.scope_of(client);
        self.ledger.take(scope, charge);
    }

    /// Takes a charge back of which only the domain is left, because its client is gone.
    pub(crate) fn release_domain_charge(&mut self, domain: u32, charge: Charge) {
        self.ledger.release(self.clients.scope_of_domain(domain), charge);
        self.forget_domain_if_unused(domain);
    }

    /// Moves a charge of a client to its domain alone. Not to its job, though what its clients have left is listed as its
    /// own: where a cap of a job is in the way its clients are asked for room, and these cannot give what they do not own.
    /// The domain's caps bound what is left.
    pub(crate) fn leave_to_domain(&mut self, client: u32, charge: Charge) {
        let scope = self.scope_of(client);
        self.ledger.release_below(Scope::Domain, scope, charge);
    }

    /// Takes back a charge of an allocation: from its owner, or from its domain alone when it has none.
    pub(crate) fn release_allocation_charge(&mut self, slot: u32, charge: Charge) {
        let Allocation { owner, domain, .. } = self.allocations[slot];
        self.release_from(owner, domain, charge);
    }

    /// Takes a charge back from an owner, or from a domain alone.
    pub(crate) fn release_from(&mut self, owner: u32, domain: u32, charge: Charge) {
        match owner {
            NONE => self.release_domain_charge(domain, charge),
            owner => self.release_charge(owner, charge),
        }
    }

    /// Makes a charge that has no cap.
    pub(crate) fn charge_uncapped(&mut self, client: u32, charge: Charge) {
        let scope = self.scope_of(client);
        self.ledger.add(scope, charge);
    }

    /// Free room for held places of a client: the least of all its scopes', and of its domain's share.
    pub(crate) fn held_room(&mut self, client: u32) -> u64 {
        let record = self.client_mut(client);
        let (scope, domain) = (record.scope, record.domain);
        let share = self.share_of_table(domain).min(self.share_of_fds(domain));
        self.ledger.held_room(scope).min(share)
    }

    /// NO_QUOTA for a cap: its value, and the pid of the client that holds most of it, whoever is told. No pid when what belongs to no
    /// client is more, nor for what no cap of a client bounds.
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
        if !counted.is_capped_in(Scope::Client) {
            return full;
        }
        let its =
            self.clients.iter().filter(|(_, it)| self.ledger.path(it.scope).any(|of| of == scope));
        let (mut largest, mut of_nobody) = ((0, 0), account.counted(counted));
        for (_, client) in its {
            let held = self.ledger[client.scope].account.counted(counted);
            of_nobody = of_nobody.saturating_sub(held);
            if held >= largest.0 {
                largest = (held, client.pid);
            }
        }
        match largest {
            (held, _) if of_nobody > held => full.of_no_process(),
            (_, pid) => Status { pid: pid.into(), ..full },
        }
    }

    /// A NO_QUOTA as a client is told it: pids of its own domain's processes alone.
    pub(crate) fn as_told(&self, client: u32, status: Status) -> Status {
        let pid = status.pid.get();
        let own = self.clients.find(client).map(|client| client.domain);
        let is_own = |client: &Client| client.pid == pid && Some(client.domain) == own;
        let is_cap = status.result() == Err(ErrorCode::NoQuota) && pid != 0;
        match is_cap && !self.clients.iter().any(|(_, client)| is_own(client)) {
            true => status.of_another_user(),
            false => status,
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
        let Client { domain, scope, serial, .. } = self.clients[client];
        self.ticket(domain, scope, (client, serial), lane == Lane::Refused)
    }

    /// The same for an fd that its domain alone is charged for.
    pub(crate) fn closing_of_domain(&mut self, domain: u32) -> Ticket {
        self.ticket(domain, self.clients.scope_of_domain(domain), (NONE, 0), false)
    }

    fn ticket(&mut self, number: u32, payer: ScopeId, client: (u32, u64), refused: bool) -> Ticket {
        let domain = self.clients.domain(number);
        match refused {
            true => self.ledger.add(domain.scope, REFUSED_FD),
            false => self.ledger.add_coming(payer, domain.slow, 1),
        }
        self.closings.begin(Closing { domain: number, client: Some(client), refused })
    }

    /// Closes of a domain's fds take long, or do so no more.
    pub(crate) fn set_slow(&mut self, key: DomainKey, slow: bool) {
        let Some(number) = self.clients.find_domain(key) else { return };
        let domain = self.clients.domain_mut(number);
        if std::mem::replace(&mut domain.slow, slow) == slow {
            return;
        }
        self.ledger.set_slow(domain.scope, slow);
    }

    /// The arrived fd at `index`, whose place `client` is charged for, goes to a closer.
    pub(crate) fn close_arrived(&mut self, client: u32, index: u16, lane: Lane, fx: &mut Effects) {
        let ticket = self.closing(client, lane);
        fx.list.push(Effect::CloseArrived { index, ticket, lane });
        if lane == Lane::Refused {
            self.end_if_refused_pile_up(ClientId(client), fx);
        }
    }

    /// An arrived fd that should not have come goes to a closer. A domain with too many of them loses the client.
    pub(crate) fn close_uninvited(
        &mut self,
        client: ClientId,
        index: u16,
        lane: Lane,
        fx: &mut Effects,
    ) {
        self.close_unreserved(client, index, lane, fx);
        self.end_if_refused_pile_up(client, fx);
    }

    /// The same for all fds of a message.
    pub(crate) fn close_all_uninvited(
        &mut self,
        client: ClientId,
        deposits: &[Deposit],
        fx: &mut Effects,
    ) {
        for (index, deposit) in (0..).zip(deposits) {
            self.close_uninvited(client, index, deposit.lane, fx);
        }
    }

    /// An arrived fd that has no place goes to a closer: it is counted as refused, in the table only.
    pub(crate) fn close_unreserved(
        &mut self,
        client: ClientId,
        index: u16,
        lane: Lane,
        fx: &mut Effects,
    ) {
        let record = self.clients.find(client.0);
        let Some(domain) = record.map(|client| client.domain) else {
            // Nobody to count it for: the daemon closes what no effect claims.
            return;
        };
        self.ledger.set_unplaced(self.ledger.unplaced() + 1);
        self.ledger.add(self.clients.scope_of_domain(domain), REFUSED_FD);
        let ticket = self.closings.begin(Closing { domain, client: None, refused: true });
        fx.list.push(Effect::CloseArrived { index, ticket, lane });
    }

    /// Ends the connection that sent one refused fd too many for its domain.
    fn end_if_refused_pile_up(&mut self, client: ClientId, fx: &mut Effects) {
        let Some(domain) = self.client(client).map(|record| record.domain) else { return };
        if let Some(status) = self.too_many_refused(domain, 0) {
            fx.list.push(Effect::Disconnect { client, status });
        }
    }

    /// A closer has closed it: the charge ends.
    pub(crate) fn closed(&mut self, ticket: Ticket) {
        let Some(closing) = self.closings.end(ticket) else { return };
        let Closing { domain, client, refused } = closing;
        let of_domain = self.clients.scope_of_domain(domain);
        if refused {
            self.ledger.take(of_domain, REFUSED_FD);
        }
        let Some((number, serial)) = client else {
            self.ledger.set_unplaced(self.ledger.unplaced() - 1);
            return self.forget_domain_if_unused(domain);
        };
        let is_slow = self.clients.domain(domain).slow;
        let owner = self.clients.find(number).filter(|owner| owner.serial == serial);
        let scope = owner.map_or(of_domain, |owner| owner.scope);
        let is_here = owner.is_some();
        self.ledger.take_coming(scope, is_slow, u64::from(!refused));
        match is_here {
            true => {
                self.release_charge(number, Charge(Resource::HeldFds, 1));
            }
            false => self.release_domain_charge(domain, Charge(Resource::HeldFds, 1)),
        }
    }

    /// Whether nothing is on its way already that will be room.
    pub(crate) fn may_make_room(&self, blocked: Blocked) -> bool {
        !blocked.is_helped_by_eviction() || self.ledger[blocked.scope].coming == 0
    }

    /// Whether the closes of a domain's refused fds, and so many more, are too many that have not returned.
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
}
