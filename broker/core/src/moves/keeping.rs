//! Kept allocations, which outlive their owner for a time; and which clients may have an allocation
//! at all. Must never evict a kept one, nor let one live without an owner for ever.

use crate::api::{Effect, NONE};
use crate::books::{Allocation, Books, Charge, Client, Fate, Orphan, State, Timer};
use crate::moves::Step;
use fdbroker_protocol::{ErrorCode, Resource};

impl Books {
    /// The fd of a slot has just been stored.
    pub(crate) fn keep_stored(&mut self, slot: u32, step: &mut Step) {
        if self.allocations[slot].traits.is_to_be_kept() {
            step.fx.list.push(Effect::Keep { slot });
        }
    }

    /// A held allocation ends.
    pub(crate) fn unkeep(&mut self, slot: u32, step: &mut Step) {
        if self.allocations[slot].traits.is_to_be_kept() {
            step.fx.list.push(Effect::Unkeep { slot });
        }
        self.remove_orphan(slot);
    }

    /// The owner of a kept allocation has given its fd again, after a crash: from now on it stays.
    pub(crate) fn keep_supplied(&mut self, slot: u32, step: &mut Step) {
        let queues = self.end_recall(slot);
        self.allocations.set_state(slot, State::Resident);
        self.keep_stored(slot, step);
        queues.into_iter().for_each(|queue| self.decide(queue, Fate::First));
        self.wake_interested(slot);
    }

    /// The owner of a kept allocation is gone: its domain alone is charged for it from now on, and
    /// its job is that of its owner still.
    pub(crate) fn orphan(&mut self, slot: u32, step: &mut Step) {
        let Client { gid, job, .. } = self.clients[self.allocations[slot].owner];
        self.leave_owner(slot);
        let until = step.now.after(self.config.keep_ttl_us);
        self.add_orphan(slot, Orphan { until, gid, job });
    }

    pub(crate) fn add_orphan(&mut self, slot: u32, orphan: Orphan) {
        self.allocations.add_orphan(slot, orphan);
        let timer = Timer::Keep(slot, self.allocations.generation(slot));
        self.timers.set(orphan.until, timer);
        if let Some(job) = orphan.job {
            self.clients.add_orphan(job);
        }
    }

    /// An allocation has an owner again, or has ended; it may have been no orphan.
    pub(crate) fn remove_orphan(&mut self, slot: u32) {
        let Some(Orphan { until, job, .. }) = self.allocations.remove_orphan(slot) else { return };
        self.timers.cancel(until, Timer::Keep(slot, self.allocations.generation(slot)));
        if let Some(job) = job {
            self.clients.take_orphan(job);
            self.forget_job_if_unused(job);
        }
    }

    /// What is held lives on without its owner: its domain alone is charged for it from now on.
    pub(crate) fn leave_owner(&mut self, slot: u32) {
        let owner = self.allocations[slot].owner;
        for charge in self.charges_of_held(slot) {
            self.leave_to_domain(owner, charge);
        }
        self.move_pin(slot, NONE);
        self.move_interest(slot, NONE);
        self.allocations.take_from_owner(slot);
    }

    /// What has ended is its domain's alone, if it is an owner's.
    pub(crate) fn leave_owner_ended(&mut self, slot: u32) {
        let owner = self.allocations[slot].owner;
        if owner != NONE {
            self.allocations.take_from_owner(slot);
            self.leave_to_domain(owner, Charge(Resource::Allocations, 1));
        }
        self.drain_if_done(slot);
    }

    /// What an allocation with its fd is charged with, beside its file.
    pub(crate) fn charges_of_held(&self, slot: u32) -> [Charge; 4] {
        let Allocation { size_bytes, traits, .. } = self.allocations[slot];
        [
            Charge(Resource::HeldFds, 1),
            Charge(Resource::HeldBytes, if self.has_file(slot) { 0 } else { size_bytes }),
            Charge(Resource::Allocations, 1),
            Charge(Resource::KeptAllocations, traits.is_to_be_kept().into()),
        ]
    }

    /// Ends a kept allocation that no client has adopted in time.
    pub(crate) fn end_orphan(&mut self, slot: u32, generation: u32, step: &mut Step) {
        let found = self.allocations.get(slot, generation);
        if found.is_some() && self.allocations.orphan(slot).is_some() {
            self.end(slot, ErrorCode::OwnerGone, step);
            self.drain_if_done(slot);
        }
    }
}
