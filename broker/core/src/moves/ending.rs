//! The end of an allocation, whatever its cause. Must never let an ended one be granted again, nor
//! free its slot while leases are out.

use crate::api::{ClientId, Effect, Ended, NONE};
use crate::books::{Books, Charge, Fate, Lease, RECALLED_PLACE, ScopeId, State};
use crate::moves::Step;
use fdbroker_protocol::admin::EventKind;
use fdbroker_protocol::{ErrorCode, Resource, Scope};

impl Books {
    /// Ends a live allocation: nobody gets it any more, the broker's fd is closed, holders and
    /// waiters are told: [`Core::sweep_ended`] comes to the holders. The caller then frees the slot
    /// or calls [`Core::drain_if_done`].
    pub(crate) fn end(&mut self, slot: u32, code: ErrorCode, step: &mut Step) {
        let allocation = &self.allocations[slot];
        let owner = allocation.owner;
        let (size, file) = (allocation.size_bytes, self.pinned_file_of(slot));
        self.note_of_allocation(EventKind::End, slot, code.into());
        step.fx.list.push(Effect::Publish { slot, generation: 0 });
        self.remember_end(slot, code, step);
        match self.allocations[slot].state {
            State::Held | State::Resident => {
                self.lru_remove(slot);
                self.unkeep(slot, step);
                self.close_held(slot, step);
            }
            State::Recalling => {
                self.allocations.ask_no_more_for(slot);
                self.release_charge(owner, RECALLED_PLACE);
                self.release_charge(owner, Charge(Resource::HeldBytes, size));
            }
            State::Reserved | State::Evicted => {}
            State::Ended(_) => unreachable!("an allocation ends once"),
        }
        if self.allocations[slot].traits.is_to_be_kept() {
            let domain = self.allocations[slot].domain;
            self.release_from(owner, domain, Charge(Resource::KeptAllocations, 1));
        }
        self.continuity.end(slot);
        self.allocations.end(slot, code);
        if owner != NONE && self.lingers(slot) {
            self.continuity.linger(slot);
        }
        self.decide_all(slot, Fate::Answer(self.allocations.id_of(slot), code.into()));
        self.memory_ended(slot);
        self.leases.add_unswept(self.allocations[slot].leases.len() as u64);
        if !self.allocations[slot].leases.is_empty() {
            self.pin_ended(slot, file);
            self.allocations.enter_ending(slot);
        }
    }

    /// Ends an allocation as if its owner had.
    pub(crate) fn revoke(&mut self, slot: u32, step: &mut Step) {
        self.end(slot, ErrorCode::Stale, step);
        self.drain_if_done(slot);
    }

    /// Has the daemon remember the end, for `fdbroker audit`.
    fn remember_end(&self, slot: u32, code: ErrorCode, step: &mut Step) {
        let allocation = &self.allocations[slot];
        if allocation.domain == NONE {
            return;
        }
        let job = self.job_of_slot(slot);
        let ended = Ended {
            id: self.allocations.id_of(slot),
            kind: allocation.traits.kind(),
            size_bytes: allocation.size_bytes,
            domain: self.clients.domain_key(allocation.domain),
            pid: self.clients.find(allocation.owner).map_or(0, |owner| owner.pid),
            job: job.map(|job| (self.clients.job_key(job), self.clients.job(job).name)),
            code,
            is_leased: !allocation.leases.is_empty(),
        };
        step.fx.list.push(Effect::Ended { index: step.fx.ended.len() });
        step.fx.ended.push(ended);
    }

    /// Charges the holder of one lease of an ended allocation, and has it told.
    pub(crate) fn sweep_lease(&mut self, lease: u32) {
        let Lease { client: holder, allocation: slot, .. } = self.leases[lease];
        self.allocations.put_lease_last(slot, &mut self.leases, lease);
        let charge = Charge(Resource::PinnedBytes, self.allocations[slot].size_bytes);
        let scope = self.scope_of(holder);
        self.ledger.add_below(Scope::Node, scope, charge);
        self.end_of_lease(lease);
    }

    /// A lease of an allocation that has ended already was declared: its holder is charged for the
    /// memory, and told.
    pub(crate) fn pin_declared(&mut self, slot: u32, lease: u32) {
        if self.allocations[slot].leases.len() == 1 {
            self.pin_ended(slot, None);
        }
        self.leases.add_unswept(1);
        self.sweep_lease(lease);
    }

    /// A lease of an ended allocation is given back whose holder has been charged for the memory.
    pub(crate) fn unpin_of_holder(&mut self, holder: u32, slot: u32) {
        let charge = Charge(Resource::PinnedBytes, self.allocations[slot].size_bytes);
        let scope = self.scope_of(holder);
        self.ledger.release_below(Scope::Node, scope, charge);
    }

    /// The last lease of an ended allocation is gone: nothing pins the memory any more. Its owner
    /// is told, or the slot is free when there is none.
    pub(crate) fn unpinned(&mut self, slot: u32) {
        self.allocations.leave_ending(slot);
        let bytes = self.files.end_is_over(slot, self.allocations[slot].size_bytes);
        self.ledger.take(ScopeId::NODE, Charge(Resource::PinnedBytes, bytes));
        self.drain_if_done(slot);
    }

    /// When no lease of an ended allocation is left, nor can be declared: its owner is told, or the
    /// slot is free when there is none.
    pub(crate) fn drain_if_done(&mut self, slot: u32) {
        let allocation = &self.allocations[slot];
        if allocation.is_live() || !allocation.leases.is_empty() || self.lingers(slot) {
            return;
        }
        let owner = allocation.owner;
        if owner == NONE {
            return self.free_allocation(slot);
        }
        if self.client_mut(owner).gone {
            // Its teardown comes to this allocation and frees it.
            return;
        }
        if self.allocations.drained(slot) {
            self.eventful.push(ClientId(owner));
        }
    }
}
