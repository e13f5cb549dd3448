//! Coming back after a crash: owners name allocations of before it again, or adopt kept ones, and
//! holders say which leases they still have. Must never give an allocation to a client that may not
//! own it, nor bring back what has ended; nor make a lease of what was born later, or of what its
//! holder may not have.

use crate::api::{
    Asker, ClientId, Comeback, Declared, Deposit, Effect, Granted, Item, NONE, OwnerKey, Redeposit,
    Registered,
};
use crate::books::continuity::FormerOwner;
use crate::books::{Allocation, Charge, Fate, State};
use crate::core::Core;
use crate::moves::Step;
use crate::requests::register::NOTHING;
use fdbroker_protocol::{AllocationId, ErrorCode, Resource, Scope, Share, Status};

impl Core {
    pub(crate) fn redeposit(&mut self, by: Asker, items: &[Redeposit], step: &mut Step) {
        let begin = step.fx.registered.len();
        for (index, item) in (0..).zip(items) {
            let (Ok(status) | Err(status)) = self.redeposit_one(by.client.0, item, step);
            let id = item.id.unwrap_or(NOTHING);
            step.fx.registered.push(Registered { status, id, index });
        }
        self.books.counters.deposits += items.len() as u64;
        self.answer_registered(by, begin, step);
    }

    /// What was drained before the crash is so still.
    fn redeposit_one(
        &mut self,
        client: u32,
        item: &Redeposit,
        step: &mut Step,
    ) -> Result<Status, Status> {
        let (id, is_named_as_ended) = (item.id?, item.ended);
        let Some(allocation) = self.books.allocations.find(id) else {
            let drained = is_named_as_ended && self.books.was_drained(id);
            return drained.then_some(Status::DRAINED).ok_or(self.books.end_of_former(id).into());
        };
        let (owner, ended) = (allocation.owner, allocation.ended());
        let waits = owner == NONE && (ended.is_none() || self.books.continuity.has(id.slot));
        let is_dying = owner != NONE && self.books.client(ClientId(owner)).is_none();
        match ended {
            // Its owner has just died: it is about to end, or to be without one.
            None if is_dying => Err(ErrorCode::Again.into()),
            _ if is_named_as_ended && !waits => Err(ErrorCode::Stale.into()),
            Some(code) if !is_named_as_ended => Err(code.into()),
            _ if waits => self.take_back(client, id, item, step).map(|()| Status::OK),
            _ if owner != client => Err(ErrorCode::NotPermitted.into()),
            _ if id.generation >= self.books.config.first_generation => {
                Err(ErrorCode::Stale.into())
            }
            // Registered several times, it is named as many times.
            _ if self.books.allocations.register_again(id.slot, item.deposit.virtual_fd) => {
                Ok(Status::OK)
            }
            _ => Err(ErrorCode::Protocol.into()),
        }
    }

    /// An allocation without an owner gets one: of its domain, with its handle and token. The
    /// address is the new owner's, and so is the job.
    fn take_back(
        &mut self,
        client: u32,
        id: AllocationId,
        item: &Redeposit,
        step: &mut Step,
    ) -> Result<(), Status> {
        let (slot, deposit) = (id.slot, &item.deposit);
        if let Some(code) = self.books.continuity.lost(slot).filter(|_| !item.ended) {
            return Err(code.into());
        }
        if !self.may_own(client, slot) {
            return Err(ErrorCode::NotPermitted.into());
        }
        let allocation = &self.books.allocations[slot];
        let is_held = allocation.is_held();
        // It stays on the GPU that was named first.
        let is_there = self.books.allocations.facts(slot).gpu.may_be(&deposit.facts.gpu);
        let is_same = is_there && deposit.facts.size_bytes == allocation.size_bytes;
        if !deposit.has_sound_range() || !(is_same || item.ended) {
            return Err(ErrorCode::Protocol.into());
        }
        if item.ended {
            return self.take_back_ended(client, slot, deposit, step);
        }
        // Without its fd it is gone; so is what stood at an address that holds something else now,
        // as it is when an address is used again in life.
        let lost = match self.books.allocations.overlapping(client, deposit.range()) {
            _ if !is_held && !deposit.recallable => Some(ErrorCode::Lost),
            Some(_) => Some(ErrorCode::Stale),
            None => None,
        };
        if let Some(code) = lost {
            self.books.continuity.leave(slot);
            self.books.end(slot, code, step);
            self.books.drain_if_done(slot);
            return Err(code.into());
        }
        if is_held {
            self.adopt(client, slot, deposit, step)?
        } else {
            self.own_again(client, slot, deposit, step)?
        }
        self.books.continuity.leave(slot);
        if !is_held {
            self.books.continuity.comeback.named += 1;
            self.books.counters.named_again += 1;
        }
        step.fx.list.push(Effect::Publish { slot, generation: id.generation });
        Ok(())
    }

    /// Its owner has ended it meanwhile, reserved or kept, or before the crash: it gets it back as
    /// an ended one, and hears when it is drained.
    fn take_back_ended(
        &mut self,
        client: u32,
        slot: u32,
        deposit: &Deposit,
        step: &mut Step,
    ) -> Result<(), Status> {
        self.take_over_charges(client, &[Charge(Resource::Allocations, 1)], false)?;
        if self.books.allocations[slot].is_live() {
            self.books.end(slot, ErrorCode::Stale, step);
        }
        self.books.allocations.give(slot, client, deposit);
        self.books.continuity.leave(slot);
        if self.books.lingers(slot) {
            self.books.continuity.linger(slot);
        }
        self.books.drain_if_done(slot);
        Ok(())
    }

    /// A kept allocation is here, and may have been left long ago.
    fn adopt(
        &mut self,
        client: u32,
        slot: u32,
        deposit: &Deposit,
        step: &mut Step,
    ) -> Result<(), Status> {
        self.take_over_charges(client, &self.books.charges_of_held(slot), false)?;
        self.books.move_pin(slot, client);
        self.books.remove_orphan(slot);
        self.books.move_interest(slot, client);
        self.books.allocations.give(slot, client, deposit);
        step.fx.list.push(Effect::KeptChanged { slot });
        Ok(())
    }

    /// A reserved slot has its owner again: evicted, and requests that waited for it go on.
    fn own_again(
        &mut self,
        client: u32,
        slot: u32,
        deposit: &Deposit,
        step: &mut Step,
    ) -> Result<(), Status> {
        self.take_over_charges(client, &[Charge(Resource::Allocations, 1)], deposit.keep)?;
        self.books.decide_all(slot, Fate::InTurn);
        let former = &self.books.allocations[slot];
        let (domain, open, leases) = (former.domain, former.open, former.leases);
        // Its domain and share stay as they were.
        let deposit = &Deposit { share: former.traits.share(), ..*deposit };
        let allocation = Allocation::new(deposit, client, domain, State::Evicted, step.now);
        let allocation = Allocation { open, leases, ..allocation };
        self.books.allocations.replace(slot, allocation, deposit.driver_data);
        Ok(())
    }

    /// Whether a client may become the owner of an allocation that has none. Clients that have the
    /// allocation must not find it shared with others than before.
    fn may_own(&mut self, client: u32, slot: u32) -> bool {
        let (domain, share) =
            (self.books.allocations[slot].domain, self.books.allocations[slot].traits.share());
        let (gid, former_gid) = (self.books.client_mut(client).gid, self.books.gid_of(slot));
        self.books.client_mut(client).domain == domain
            && (share != Share::Gid || former_gid == Some(gid))
    }

    /// Moves charges of an allocation without an owner from its domain alone to a client, and makes
    /// that of one that is to be kept from now on; all of them or none.
    fn take_over_charges(
        &mut self,
        client: u32,
        charges: &[Charge],
        keep: bool,
    ) -> Result<(), Status> {
        let scope = self.books.scope_of(client);
        let kept = Charge(Resource::KeptAllocations, keep.into());
        let fits = |charge: &Charge| self.books.ledger.fits(scope, Some(Scope::Domain), *charge);
        let all_fit = charges.iter().try_for_each(fits);
        if let Err(blocked) = all_fit.and_then(|()| self.books.ledger.fits(scope, None, kept)) {
            return Err(self.books.refusal(client, blocked));
        }
        for charge in charges {
            self.books.ledger.add_below(Scope::Domain, scope, *charge);
        }
        self.books.ledger.add(scope, kept);
        Ok(())
    }

    pub(crate) fn declare(&mut self, by: Asker, items: &[Declared], step: &mut Step) {
        let Asker { client, request } = by;
        let begin = step.fx.granted.len();
        for item in items {
            let declared = self.declare_one(client, item, step);
            let refused = |status| Granted::refused(item.wanted, status);
            step.fx.granted.push(declared.unwrap_or_else(refused));
        }
        let range = begin..step.fx.granted.len();
        step.fx.list.push(Effect::Declared { client, request, range });
    }

    fn declare_one(
        &mut self,
        client: ClientId,
        declared: &Declared,
        step: &mut Step,
    ) -> Result<Granted, Status> {
        let id = declared.wanted.map_err(Status::from)?;
        if id.generation >= self.books.config.first_generation {
            // Nobody can have held it before the crash.
            return Err(ErrorCode::Stale.into());
        }
        let has_ended = self.is_ended_here(id);
        match self.books.item(client, declared.wanted) {
            // That its owner does not answer is no reason to give up what one has.
            Item::Final(ErrorCode::OwnerSilent) => {}
            Item::Final(code) if code == ErrorCode::NotPermitted => return Err(code.into()),
            // Objects need no owner.
            Item::Final(_) if self.is_live_object(id) => {}
            // Nor that it has ended, as long as its owner waits for its holders.
            Item::Final(_) if has_ended && self.books.lingers(id.slot) => {}
            Item::Final(code) => return Err(code.into()),
            Item::Ready(_) | Item::Evicted(_) | Item::Recalling(_) | Item::Reserved(_) => {}
        }
        let mapped = !declared.open;
        if let Err(blocked) = self.books.charge_declared(client.0, mapped) {
            return Err(self.books.refusal(client.0, blocked));
        }
        let lease = self.books.enter_lease(client.0, id.slot, mapped, step);
        self.books.leases.declare(lease.0 as u32);
        if has_ended {
            self.books.pin_declared(id.slot, lease.0 as u32);
        }
        self.books.allocations.mark_used(id.slot, step.now);
        let granted = self.books.allocations.granted(id.slot, declared.wanted, lease);
        let value = self.books.allocations[id.slot].ended().map_or(0, |code| code as u64);
        Ok(Granted { status: Status { value, ..Status::OK }, ..granted })
    }

    /// What has become of the allocations of before a crash, when the time for their owners is
    /// over: once.
    pub fn take_comeback(&mut self) -> Option<Comeback> {
        self.books.continuity.take_comeback()
    }

    fn is_live_object(&self, id: AllocationId) -> bool {
        let is_live = self.books.allocations.find(id).is_some_and(|it| it.is_live());
        is_live && self.books.objects.groups.number_in(id.slot).is_some()
    }

    /// An owner has named all that is alive of what it had before the crash: the rest ends.
    pub(crate) fn complete(&mut self, client: ClientId) {
        let record = self.books.client_mut(client.0);
        let (domain, gid, key) = (record.domain, record.gid, record.key);
        let domain = self.books.clients.domain_key(domain);
        if key != OwnerKey::default() {
            self.books.continuity.complete(FormerOwner { domain, gid, key });
        }
    }
}
