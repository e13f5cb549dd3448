//! Re-deposit: owners name allocations of before a crash again, or adopt kept ones. Must never give one to who is
//! not its owner, nor bring back what has ended.

use crate::Core;
use crate::acquire::Turn;
use crate::api::{ClientId, Deposit, Effect, Effects, Redeposit, Registered, RequestId};
use crate::ledger::Charge;
use crate::slots::NONE;
use crate::state::{Allocation, State};
use crate::waiting::Fate;
use fdbroker_protocol::{AllocationId, ErrorCode, Resource, Status};

impl Core {
    pub(crate) fn redeposit(
        &mut self,
        client: ClientId,
        request: RequestId,
        items: &[Redeposit],
        fx: &mut Effects,
    ) {
        let begin = fx.registered.len();
        for (index, item) in (0..).zip(items) {
            let (status, id) = match self.redeposit_one(client.0, item, fx) {
                Ok(id) => (Status::OK, id),
                Err(status) => (status, AllocationId { slot: NONE, generation: 0 }),
            };
            fx.registered.push(Registered { status, id, index });
        }
        self.counters.deposits += items.len() as u64;
        let credits = self.client_mut(client.0).credits;
        let deposit_credits = u32::try_from(credits).expect("at most max_credits");
        let range = begin..fx.registered.len();
        fx.list.push(Effect::Registered { client, request, range, deposit_credits });
    }

    fn redeposit_one(
        &mut self,
        client: u32,
        item: &Redeposit,
        fx: &mut Effects,
    ) -> Result<AllocationId, Status> {
        let id = item.id.map_err(Status::from)?;
        let Some(allocation) = self.allocations.get(id.slot, id.generation) else {
            return Err(self.end_of(id).unwrap_or(ErrorCode::Stale).into());
        };
        let (state, owner) = (allocation.state, allocation.owner);
        if let Some(code) = self.continuity.lost(id.slot) {
            return Err(code.into());
        }
        match state {
            State::Ended(code) => Err(code.into()),
            State::Reserved => self.take_back(client, id, &item.deposit, fx),
            _ if owner == NONE => self.adopt(client, id.slot, &item.deposit, fx).map(|()| id),
            _ if owner != client && self.client(ClientId(owner)).is_none() => {
                // Its owner has just died, and it is about to be without one.
                Err(ErrorCode::Again.into())
            }
            _ if owner != client => Err(ErrorCode::NotPermitted.into()),
            _ if id.generation >= self.config.first_generation => Err(ErrorCode::Stale.into()),
            _ => self.count_again(id),
        }
    }

    /// Registered several times, it is named as many times.
    fn count_again(&mut self, id: AllocationId) -> Result<AllocationId, Status> {
        let registrations = &mut self.allocations[id.slot].registrations;
        match registrations.checked_add(1) {
            Some(more) => *registrations = more,
            None => return Err(ErrorCode::Protocol.into()),
        }
        Ok(id)
    }

    /// A reserved slot has its owner again: evicted, under its old id. Who waited for it goes on.
    fn take_back(
        &mut self,
        client: u32,
        id: AllocationId,
        deposit: &Deposit,
        fx: &mut Effects,
    ) -> Result<AllocationId, Status> {
        let slot = id.slot;
        let (domain, share) =
            (self.allocations[slot].domain, self.allocations[slot].traits.share());
        if !self.may_own(client, slot) {
            return Err(ErrorCode::NotPermitted.into());
        }
        if !deposit.has_sound_range() {
            return Err(ErrorCode::Protocol.into());
        }
        // Who may have it stays as it was.
        let deposit = &Deposit { share, ..*deposit };
        // Without its fd it is gone; so is what stood at an address that holds something else now.
        let lost = match self.overlapping(client, deposit.range()) {
            _ if !deposit.recallable => Some(ErrorCode::OwnerGone),
            Some(_) => Some(ErrorCode::Stale),
            None => None,
        };
        if let Some(code) = lost {
            self.end(slot, code, fx);
            self.drain_if_done(slot);
            self.stop_grace_if_done();
            return Err(code.into());
        }
        let kept = Charge(Resource::KeptAllocations, deposit.keep.into());
        self.take_over_charges(client, &[Charge(Resource::Allocations, 1)], kept)?;
        self.decide_all(slot, Fate::Retry(Turn::Last));
        let former = &self.allocations[slot];
        let (open, leases) = (former.open, former.leases);
        let allocation = Allocation::new(deposit, client, domain, State::Evicted);
        self.allocations[slot] = Allocation { open, leases, ..allocation };
        self.own(slot, deposit.driver_data);
        self.continuity.leave(slot);
        self.stop_grace_if_done();
        fx.list.push(Effect::Publish { slot, generation: id.generation });
        // One that had to go to the room queue is looked at there.
        self.room_appeared |= !self.rooms.is_empty();
        Ok(id)
    }
}
