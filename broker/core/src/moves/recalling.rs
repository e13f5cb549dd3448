//! Recalls: asking owners for their fds again, what they answer, and what happens when they do not.
//! Must never ask before the place for the answer is reserved, nor ask twice at a time.

use crate::api::{ClientId, NONE, Now};
use crate::books::{
    Allocation, Blocked, Books, Fate, PROMISED_LEASE, RECALLED_PLACE, Recall, State, Timer,
};
use crate::moves::Step;
use fdbroker_protocol::admin::EventKind;
use fdbroker_protocol::{ErrorCode, Status};

impl Books {
    /// Reserves the fd's place and bytes on its owner's accounts, and the place of the lease to
    /// come on those of `promised_to`; then marks the allocation to be recalled. Or says which cap
    /// is in the way.
    pub(crate) fn start_recall(
        &mut self,
        slot: u32,
        promised_to: Option<u32>,
        step: &mut Step,
    ) -> Result<(), Blocked> {
        let Allocation { owner, size_bytes: size, .. } = self.allocations[slot];
        if let Some(client) = promised_to {
            self.charge_share(client, PROMISED_LEASE)?;
        }
        let place = self.charge(owner, RECALLED_PLACE);
        // Last, because evictions may be made for it.
        let all = place.and_then(|()| {
            let bytes = self.charge_bytes(owner, size, promised_to.is_some(), step);
            bytes.inspect_err(|_| self.undo_charge(owner, RECALLED_PLACE))
        });
        if let (Err(_), Some(client)) = (all, promised_to) {
            self.undo_charge(client, PROMISED_LEASE);
        }
        all?;
        let recall = Recall { promised_to, ..Recall::begun(step.now) };
        let number = self.recalls.begin(owner, recall);
        self.allocations.set_recall(slot, number);
        self.allocations.set_state(slot, State::Recalling);
        self.time_recall(slot, step.now);
        if self.allocations.ask_for(slot) {
            self.eventful.push(ClientId(owner));
        }
        self.counters.recalls += 1;
        self.note_of_allocation(EventKind::Recall, slot, Status::OK);
        Ok(())
    }

    pub(crate) fn set_recall_timer(&mut self, slot: u32, deadline: Option<Now>) {
        if let Some(at) = deadline {
            self.timers.set(at, Timer::Recall(slot, self.allocations.generation(slot)));
        }
    }

    pub(crate) fn stop_recall_timer(&mut self, slot: u32) {
        let recall = self.allocations[slot].recall;
        if let Some(at) = self.recalls.set_deadline(recall, None) {
            self.timers.cancel(at, Timer::Recall(slot, self.allocations.generation(slot)));
        }
    }

    /// A recall is given its time from now on.
    pub(crate) fn time_recall(&mut self, slot: u32, now: Now) {
        let deadline = Some(now.after(self.config.recall_timeout_us));
        self.recalls.set_deadline(self.allocations[slot].recall, deadline);
        self.set_recall_timer(slot, deadline);
    }

    /// The recall of an allocation has been answered, or has ended, or is given more time. Says
    /// whether its owner misses none any more.
    pub(crate) fn not_overdue(&mut self, slot: u32) -> bool {
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

    /// Its fd is here: those that have waited for room to ask for it need a lease alone.
    pub(crate) fn wake_interested(&mut self, slot: u32) {
        let interested = self.forget_interest(slot);
        self.decide(interested, Fate::InTurn);
    }

    /// A recall has not been answered in time: its owner is silent until it answers. The recall
    /// stays out, and its place reserved.
    pub(crate) fn recall_overdue(&mut self, slot: u32, generation: u32) {
        let found = self.allocations.get(slot, generation);
        if found.is_none_or(|allocation| allocation.state != State::Recalling) {
            return;
        }
        let (number, owner) = (self.allocations[slot].recall, self.allocations[slot].owner);
        self.recalls.miss(number, owner);
        self.counters.recalls_unanswered += 1;
        self.note_of_allocation(EventKind::Silent, slot, Status::OK);
        self.set_silent(owner, true);
        self.free_promise(number);
        let waiting = self.recalls.set_waiting(number, NONE);
        let fate = Fate::Answer(self.allocations.id_of(slot), ErrorCode::OwnerSilent.into());
        self.decide(waiting, fate);
    }
}
