//! Recalls: asking owners for their fds again, what they answer, and what happens when they do not. Must
//! never ask before the place for the answer is reserved, nor ask twice at a time.

use crate::Core;
use crate::allocation::State;
use crate::api::{ClientId, Effect, Effects, Lane, Now, Supply};
use crate::ledger::{Blocked, Charge};
use crate::queues::Fate;
use crate::recalls::Recall;
use crate::slots::NONE;
use crate::timers::Timer;
use fdbroker_protocol::admin::EventKind;
use fdbroker_protocol::{ErrorCode, Resource, Status};

/// The place of a recalled fd, charged to its owner until the fd has come.
pub(crate) const RECALLED_PLACE: Charge = Charge(Resource::ReservedPlaces, 1);
/// A lease for a request that waits for a recall.
pub(crate) const PROMISED_LEASE: Charge = Charge(Resource::PromisedLeases, 1);

impl Core {
    /// Reserves the fd's place and bytes on its owner's accounts, and the place of the lease to come on those of
    /// `promised_to`; then marks the allocation to be recalled. Or says which cap is in the way.
    pub(crate) fn start_recall(
        &mut self,
        slot: u32,
        promised_to: Option<u32>,
        fx: &mut Effects,
    ) -> Result<(), Blocked> {
        let (owner, size) = (self.allocations[slot].owner, self.bytes_to_recall(slot));
        self.charge_places(owner, promised_to)?;
        // Last, because evictions may be made for it.
        let may_evict = promised_to.is_some();
        if let Err(blocked) = self.charge_bytes(owner, size, may_evict, fx) {
            self.undo_charge(owner, RECALLED_PLACE);
            promised_to.into_iter().for_each(|client| self.undo_charge(client, PROMISED_LEASE));
            return Err(blocked);
        }
        let deadline = Some(self.now.after(self.config.recall_timeout_us));
        let recall = Recall { promised_to, deadline, ..Recall::begun(self.now) };
        let number = self.recalls.begin(owner, recall);
        self.allocations.set_recall(slot, number);
        self.allocations.set_state(slot, State::Recalling);
        self.set_recall_timer(slot, deadline);
        if self.allocations.ask_for(slot) {
            self.eventful.push(ClientId(owner));
        }
        self.counters.recalls += 1;
        self.note_of_allocation(EventKind::Recall, slot);
        Ok(())
    }

    fn charge_places(&mut self, owner: u32, promised_to: Option<u32>) -> Result<(), Blocked> {
        if let Some(client) = promised_to {
            self.charge_share(client, PROMISED_LEASE)?;
        }
        let charged = self.charge(owner, RECALLED_PLACE);
        if let (Err(_), Some(client)) = (charged, promised_to) {
            self.undo_charge(client, PROMISED_LEASE);
        }
        charged
    }

    /// What is in the way of a recall for `client`, were it started now; nothing is evicted for it.
    pub(crate) fn recall_blocked(&self, slot: u32, client: u32) -> Option<Blocked> {
        let owner = self.allocations[slot].owner;
        let (payer, taker) = (self.scope_of(owner), self.scope_of(client));
        let bytes = Charge(Resource::HeldBytes, self.bytes_to_recall(slot));
        self.share_blocked(client, 1).or_else(|| {
            self.ledger.blocked(&[(taker, PROMISED_LEASE), (payer, RECALLED_PLACE), (payer, bytes)])
        })
    }

    pub(crate) fn set_recall_timer(&mut self, slot: u32, deadline: Option<Now>) {
        if let Some(at) = deadline {
            self.timers.set(at, Timer::Recall(slot, self.allocations.generation(slot)));
        }
    }

    fn stop_recall_timer(&mut self, slot: u32) {
        let recall = self.allocations[slot].recall;
        if let Some(at) = self.recalls.set_deadline(recall, None) {
            self.timers.cancel(at, Timer::Recall(slot, self.allocations.generation(slot)));
        }
    }

    /// A recall that its owner missed is given the time again.
    pub(crate) fn recall_again(&mut self, now: Now, slot: u32) {
        let deadline = Some(now.after(self.config.recall_timeout_us));
        let number = self.allocations[slot].recall;
        self.recalls.set_deadline(number, deadline);
        self.set_recall_timer(slot, deadline);
        self.not_overdue(slot);
    }

    /// The recall of an allocation has been answered, or has ended, or is given more time. Says whether its
    /// owner misses none any more.
    fn not_overdue(&mut self, slot: u32) -> bool {
        let (number, owner) = (self.allocations[slot].recall, self.allocations[slot].owner);
        self.recalls.miss_no_more(number, owner)
    }

    pub(crate) fn free_promise(&mut self, number: u32) {
        if let Some(client) = self.recalls.take_promise(number) {
            self.release_charge(client, PROMISED_LEASE);
        }
    }

    /// The last waiter of a supplied fd has been served: it may be evicted again.
    pub(crate) fn unpin(&mut self, slot: u32) {
        let number = self.allocations.set_recall(slot, NONE);
        self.recalls.end(number);
        self.lru_insert(slot);
        let scope = self.scope_of(self.allocations[slot].owner);
        self.ledger.can_be_had(scope);
    }

    /// Takes the recall of an allocation away, and gives the queues of those who waited for it.
    pub(crate) fn end_recall(&mut self, slot: u32) -> [u32; 2] {
        if self.allocations[slot].recall == NONE {
            return [NONE; 2];
        }
        self.stop_recall_timer(slot);
        if self.not_overdue(slot) {
            // There is nothing left that it could answer.
            self.set_silent(self.allocations[slot].owner, false);
        }
        let number = self.allocations.set_recall(slot, NONE);
        self.free_promise(number);
        let recall = self.recalls.end(number);
        [recall.waiting, recall.pinned]
    }

    pub(crate) fn supply(&mut self, client: ClientId, supplies: &[Supply], fx: &mut Effects) {
        let welcome = self.welcome(client);
        if welcome {
            self.set_silent(client.0, false);
        }
        for supply in supplies {
            let found = self.allocations.find(supply.id);
            let awaited = found.is_some_and(|allocation| {
                allocation.owner == client.0 && allocation.state == State::Recalling
            });
            match welcome && awaited {
                true => self.supplied(client, supply, fx),
                false => self.not_awaited(client, supply, fx),
            }
        }
    }

    /// An fd nobody asked for (any more) has no place: it is closed.
    fn not_awaited(&mut self, client: ClientId, supply: &Supply, fx: &mut Effects) {
        if let Ok(index) = supply.fd {
            self.close_uninvited(client, index, Lane::Accepted, fx);
        }
        if let Some((index, lane)) = supply.refused_fd {
            self.close_uninvited(client, index, lane, fx);
        }
    }

    fn supplied(&mut self, client: ClientId, supply: &Supply, fx: &mut Effects) {
        let slot = supply.id.slot;
        self.allocations.ask_no_more_for(slot);
        let allocation = &self.allocations[slot];
        let same = allocation.owner_allocation_id == supply.owner_allocation_id
            && allocation.size_bytes == supply.size_bytes
            && supply.fd_offset.checked_add(supply.size_bytes).is_some();
        match (supply.fd, supply.refused_fd) {
            (Ok(index), _) if same => self.hold_supplied(slot, index, supply, fx),
            (Ok(index), _) => {
                self.close_supplied(client.0, slot, Some((index, Lane::Accepted)), fx);
                self.fail_recall(slot, ErrorCode::Stale, fx);
            }
            (Err(code), refused) => {
                self.close_supplied(client.0, slot, refused, fx);
                self.fail_recall(slot, code, fx);
            }
        }
    }

    /// The fd takes the place that was reserved for it; who waited is served before anyone else.
    fn hold_supplied(&mut self, slot: u32, index: u16, supply: &Supply, fx: &mut Effects) {
        fx.list.push(Effect::StoreArrived { index, slot });
        self.settle(self.allocations[slot].owner, RECALLED_PLACE);
        let since = self.recalls[self.allocations[slot].recall].since;
        fx.recalled_us.push(self.now.0.saturating_sub(since.0));
        self.allocations.supplied(slot, supply.fd_offset);
        let reserved = self.bytes_to_recall(slot);
        self.pin(slot, supply.file, reserved);
        if self.allocations[slot].traits.is_to_be_kept() {
            return self.keep_supplied(slot, fx);
        }
        self.stop_recall_timer(slot);
        self.not_overdue(slot);
        self.allocations.set_state(slot, State::Held);
        let number = self.allocations[slot].recall;
        self.free_promise(number);
        self.serve_recalled(slot);
        self.wake_interested(slot);
    }

    /// Its fd is here: those that have waited for room to ask for it need a lease alone.
    pub(crate) fn wake_interested(&mut self, slot: u32) {
        let interested = self.forget_interest(slot);
        self.decide(interested, Fate::InTurn);
    }

    /// The place of a recalled fd is given up, or becomes that of a closing one.
    fn close_supplied(&mut self, owner: u32, slot: u32, fd: Option<(u16, Lane)>, fx: &mut Effects) {
        let reserved = self.bytes_to_recall(slot);
        self.release_charge(owner, Charge(Resource::HeldBytes, reserved));
        self.allocations.set_state(slot, State::Evicted);
        match fd {
            Some((index, lane)) => {
                self.settle(owner, RECALLED_PLACE);
                self.close_arrived(owner, index, lane, fx);
            }
            None => self.release_charge(owner, RECALLED_PLACE),
        }
    }

    /// The owner refused: STALE ends the allocation, anything else is told to those who wait.
    fn fail_recall(&mut self, slot: u32, code: ErrorCode, fx: &mut Effects) {
        if code == ErrorCode::Stale {
            self.end(slot, ErrorCode::Stale, fx);
            self.drain_if_done(slot);
            return;
        }
        let status = Status::with_value(ErrorCode::OwnerSilent, code as u64);
        let fate = Fate::Answer(self.allocations.id_of(slot), status);
        self.end_recall(slot).into_iter().for_each(|queue| self.decide(queue, fate));
    }

    /// A recall has not been answered in time: its owner is silent until it answers. The recall stays out,
    /// and its place reserved.
    pub(crate) fn recall_overdue(&mut self, slot: u32, generation: u32) {
        let found = self.allocations.get(slot, generation);
        if found.is_none_or(|allocation| allocation.state != State::Recalling) {
            return;
        }
        let (number, owner) = (self.allocations[slot].recall, self.allocations[slot].owner);
        self.recalls.miss(number, owner);
        self.counters.recalls_unanswered += 1;
        self.note_of_allocation(EventKind::Silent, slot);
        self.set_silent(owner, true);
        self.free_promise(number);
        let waiting = self.recalls.set_waiting(number, NONE);
        let fate = Fate::Answer(self.allocations.id_of(slot), ErrorCode::OwnerSilent.into());
        self.decide(waiting, fate);
    }
}
