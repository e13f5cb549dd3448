//! The administrator's acts: evict, revoke, and draining the whole broker. Must never evict what cannot be had again,
//! nor end more in one step than a client's message may.

use crate::Core;
use crate::allocation::State;
use crate::api::{Acted, Effects, Now};
use crate::ledger::{Blocked, ScopeId};
use crate::limits::{DRAIN_PAUSE_US, DRAINED_PER_STEP, RECLAIM_PAUSE_US};
use crate::slots::NONE;
use crate::timers::Chore;
use fdbroker_protocol::admin::{ActOutcome, EventKind};
use fdbroker_protocol::{AllocationId, ErrorCode, MAX_BATCH, Resource};

impl Core {
    /// Whether the broker is being drained.
    pub fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    /// What an evict of this allocation would come to now.
    pub fn evict_outcome(&self, id: AllocationId) -> ActOutcome {
        let Some(allocation) = self.allocations.find(id) else {
            return ActOutcome::NotFound;
        };
        match allocation.state {
            State::Held if allocation.recall != NONE => ActOutcome::Waited,
            State::Held if self.clients[allocation.owner].silent => ActOutcome::OwnerSilent,
            State::Held => ActOutcome::Done,
            State::Resident if allocation.traits.is_to_be_kept() => ActOutcome::Kept,
            State::Resident => ActOutcome::Resident,
            State::Evicted => ActOutcome::Evicted,
            State::Recalling => ActOutcome::Recalling,
            State::Reserved => ActOutcome::Reserved,
            State::Ended(_) => ActOutcome::Ended,
        }
    }

    /// What a revoke of this allocation would come to now.
    pub fn revoke_outcome(&self, id: AllocationId) -> ActOutcome {
        match self.allocations.find(id) {
            None => ActOutcome::NotFound,
            Some(allocation) if allocation.is_live() => ActOutcome::Done,
            Some(_) => ActOutcome::Ended,
        }
    }

    /// Closes the fds of those that can be had again and that nobody waits for.
    pub(crate) fn evict_these(&mut self, ids: &[AllocationId], fx: &mut Effects) {
        self.act(ids, fx, Core::evict_outcome, Core::evict);
    }

    /// Ends these for everybody.
    pub(crate) fn revoke_these(&mut self, ids: &[AllocationId], fx: &mut Effects) {
        self.act(ids, fx, Core::revoke_outcome, |core, slot, fx| {
            core.end(slot, ErrorCode::Stale, fx);
            core.drain_if_done(slot);
        });
    }

    fn act(
        &mut self,
        ids: &[AllocationId],
        fx: &mut Effects,
        outcome_of: impl Fn(&Core, AllocationId) -> ActOutcome,
        act: impl Fn(&mut Core, u32, &mut Effects),
    ) {
        for id in ids {
            let outcome = outcome_of(self, *id);
            if outcome == ActOutcome::Done {
                act(self, id.slot, fx);
            }
            fx.acted.push(Acted { id: *id, outcome });
        }
    }

    pub(crate) fn set_draining(&mut self, draining: bool) {
        if draining == self.is_draining() {
            return;
        }
        self.draining = draining.then_some(self.clients.serials());
        self.timers.set_chore(Chore::GiveUp, draining.then_some(Now(0)));
        self.note_of_node(if draining { EventKind::Drain } else { EventKind::Undrain });
    }

    /// Whether the client has come too late to deposit anything.
    pub(crate) fn is_turned_away(&mut self, client: u32) -> bool {
        self.draining.is_some_and(|serials| self.clients[client].serial > serials)
    }

    /// While the broker is being drained: evicts what can be had again, and asks for leases; a portion at a time.
    pub(crate) fn give_up(&mut self, fx: &mut Effects) {
        if !self.timers.begin_chore(Chore::GiveUp, self.now) {
            return;
        }
        let mut evicted = 0;
        while evicted < DRAINED_PER_STEP
            && let Some(slot) = self.victim(ScopeId::NODE, false)
        {
            self.evict(slot, fx);
            evicted += 1;
        }
        let asked_before = self.counters.reclaims;
        for resource in [Resource::OpenLeases, Resource::MappedLeases] {
            if self.ledger[ScopeId::NODE].account.now(resource) > 0 {
                self.reclaim(Blocked { resource, scope: ScopeId::NODE }, MAX_BATCH);
            }
        }
        let pause = match (evicted, self.counters.reclaims - asked_before) {
            (0, 0) => DRAIN_PAUSE_US,
            (DRAINED_PER_STEP, _) => 0,
            _ => RECLAIM_PAUSE_US,
        };
        self.timers.set_chore(Chore::GiveUp, Some(self.now.after(pause)));
    }
}
