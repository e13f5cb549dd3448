//! Charging clients, their jobs, domains and the node together. Must never charge one account of a
//! list and not the others.

use crate::api::{CapsOfScopes, DomainKey, NONE, Now};
use crate::books::{Blocked, Books, Charge, Charged, Chore, Client, NAMED_GPU, lease_charge};
use crate::limits::GPUS_PER_DOMAIN;
use fdbroker_protocol::{Gpu, Resource, Scope, Status};

impl Books {
    /// Charges a client, its job, its domain and the node, or nobody. Idle credits are not in the
    /// way.
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

    /// Charges a client with all of these, or with none.
    pub(crate) fn charge_all<const N: usize>(
        &mut self,
        client: u32,
        charges: [Charge; N],
    ) -> Result<Charged<N>, Blocked> {
        for (done, charge) in charges.iter().enumerate() {
            if let Err(blocked) = self.charge(client, *charge) {
                charges[..done].iter().for_each(|charge| self.undo_charge(client, *charge));
                return Err(blocked);
            }
        }
        Ok(Charged::to(self.scope_of(client), charges))
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

    /// Moves a charge of a client to its domain alone. Not to its job, though what its clients have
    /// left is listed as its own: where a cap of a job is in the way its clients are asked for
    /// room, and these cannot give what they do not own. The domain's caps bound what is left.
    pub(crate) fn leave_to_domain(&mut self, client: u32, charge: Charge) {
        let scope = self.scope_of(client);
        self.ledger.release_below(Scope::Domain, scope, charge);
    }

    /// Takes a charge back from an owner, or from a domain alone.
    pub(crate) fn release_from(&mut self, owner: u32, domain: u32, charge: Charge) {
        match owner {
            NONE => self.release_domain_charge(domain, charge),
            owner => self.release_charge(owner, charge),
        }
    }

    /// Nothing of a client is left; maybe not of its job and its domain either.
    pub(crate) fn close_client(&mut self, number: u32) {
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

    /// The domain of a key, a new one if need be; `None`: there are as many as there may be.
    pub(crate) fn domain(&mut self, key: DomainKey) -> Option<u32> {
        let Books { clients, ledger, rooms, .. } = self;
        clients.domain_of(key, ledger, || rooms.last_turn())
    }

    /// The credits of a client change, and with them its idle ones; it is charged for them already.
    pub(crate) fn set_credits(&mut self, number: u32, credits: u64, is_waited_for: bool) {
        let place = self.clients.next_creditor();
        let record = self.client_mut(number);
        (record.credits, record.credit_waited_for) = (credits, is_waited_for);
        let (scope, idle) = (record.scope, credits - u64::from(is_waited_for));
        let more = idle > self.ledger[scope].idle_credits;
        self.ledger.set_idle_credits(scope, idle, place);
        if more {
            self.ledger.can_be_had(scope);
        }
    }

    /// A client uses credits up, from the one on that it has waited for.
    pub(crate) fn use_credits(&mut self, number: u32, count: u64) {
        let record = self.client_mut(number);
        let (left, waited) = (record.credits - count, record.credit_waited_for && count == 0);
        self.set_credits(number, left, waited);
    }

    /// Takes back idle credits in the scope in which a charge did not fit, those first that were
    /// given first. `false`: the charge would not fit all the same, and they stay.
    pub(crate) fn take_idle_credits(&mut self, blocked: Blocked, amount: u64) -> bool {
        let short_of = self.ledger.short_of_credits(blocked, amount);
        let Some(mut left) = short_of.filter(|left| *left > 0) else { return false };
        while left > 0
            && let Some((_, number)) = self.ledger[blocked.scope].creditors.first_key()
        {
            let most = u64::from(self.config.max_credits);
            let record = self.client_mut(number);
            let (credits, is_waited_for) = (record.credits, record.credit_waited_for);
            let taken = left.min(credits - u64::from(is_waited_for));
            record.note_taken(taken, most);
            self.undo_charge(number, places(taken));
            self.set_credits(number, credits - taken, is_waited_for);
            left -= taken;
        }
        true
    }

    /// What is above its cap stays until it is given back, and never grows.
    pub(crate) fn caps_changed(&mut self, caps: CapsOfScopes) {
        self.ledger.set_caps(caps);
        self.timers.set_chore(Chore::Drain, Some(Now(0)));
    }

    /// Something has grown; accounts that are above their caps now are brought down.
    pub(crate) fn drain_soon(&mut self, is_above: bool) {
        if is_above && self.timers.chore(Chore::Drain).is_none() {
            self.timers.set_chore(Chore::Drain, Some(Now(0)));
        }
    }

    /// Charges a client with a lease of before a crash, within the share of its domain. It has the
    /// fd or the memory already: beyond its caps, too, but no more than these can have allowed.
    pub(crate) fn charge_declared(&mut self, client: u32, mapped: bool) -> Result<(), Blocked> {
        let (charge, kind) = (lease_charge(mapped), usize::from(mapped));
        let scope = self.scope_of(client);
        let done =
            if mapped { self.charge(client, charge) } else { self.charge_share(client, charge) };
        match done {
            Err(blocked) if blocked.beyond_share().is_some() => return Err(blocked),
            Err(_) => {
                self.ledger.fits_declared(scope, charge, kind)?;
                let is_above = self.ledger.grow(scope, None, charge);
                self.drain_soon(is_above);
            }
            Ok(()) => {}
        }
        self.ledger.count_declared(scope, kind, true);
        Ok(())
    }

    /// Charges a client with leases or fds of its own, within the share of its domain.
    pub(crate) fn charge_share(&mut self, client: u32, charge: Charge) -> Result<(), Blocked> {
        match self.share_blocked(client, charge.1) {
            Some(share) => Err(share),
            None => self.charge(client, charge),
        }
    }

    /// Whether clients of a domain may name this GPU.
    pub(crate) fn may_name(&self, domain: u32, gpu: Gpu) -> Result<(), Status> {
        let most = GPUS_PER_DOMAIN as u64;
        let full = || Self::no_quota_limit(Resource::Gpus, Scope::Domain, most);
        self.allocations.gpus.fits(domain, gpu).then_some(()).ok_or_else(full)
    }

    /// An allocation is on that GPU from now on: where [`Books::may_name`] has said so.
    pub(crate) fn enter_gpu(&mut self, slot: u32, gpu: Gpu) {
        let domain = self.allocations[slot].domain;
        let (number, is_new) = self.allocations.gpus.add(domain, gpu);
        if is_new {
            let scope = self.clients.scope_of_domain(domain);
            self.ledger.add(scope, NAMED_GPU);
        }
        let former = self.allocations.set_gpu(slot, number);
        if self.allocations.gpus.remove(domain, former) {
            let scope = self.clients.scope_of_domain(domain);
            self.ledger.release(scope, NAMED_GPU);
        }
    }

    /// Frees the slot of an ended allocation without leases.
    pub(crate) fn free_allocation(&mut self, slot: u32) {
        self.enter_gpu(slot, Gpu::NONE);
        let (owner, domain) = self.allocations.free(slot);
        self.release_from(owner, domain, Charge(Resource::Allocations, 1));
    }
}

/// What a client is charged with for so many credits.
pub(crate) fn places(count: u64) -> Charge {
    Charge(Resource::ReservedPlaces, count)
}
