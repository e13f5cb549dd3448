//! The administrator's acts: caps, evict, revoke, and draining the whole broker. Must never evict
//! what cannot be had again, nor end more in one step than a client's message may.

use crate::api::{Acted, CapsOfScopes, NONE, Now};
use crate::books::{Books, Chore, State};
use crate::core::Core;
use crate::moves::Step;
use fdbroker_protocol::AllocationId;
use fdbroker_protocol::admin::{ActOutcome, EventKind};
use fdbroker_protocol::limits::ENDS_PER_MESSAGE;

impl Core {
    /// What an evict of this allocation would come to now.
    pub fn evict_outcome(&self, id: AllocationId) -> ActOutcome {
        let Some(allocation) = self.books.allocations.find(id) else {
            return ActOutcome::NotFound;
        };
        match allocation.state {
            State::Held if allocation.recall != NONE => ActOutcome::Waited,
            State::Held if self.books.clients[allocation.owner].silent => ActOutcome::OwnerSilent,
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
        match self.books.allocations.find(id) {
            None => ActOutcome::NotFound,
            Some(allocation) if allocation.is_live() => ActOutcome::Done,
            Some(_) => ActOutcome::Ended,
        }
    }

    /// Does an act on these, as many as a message may end, where its outcome is that it is done.
    pub(crate) fn act(
        &mut self,
        ids: &[AllocationId],
        outcome_of: fn(&Core, AllocationId) -> ActOutcome,
        act: fn(&mut Books, u32, &mut Step),
        step: &mut Step,
    ) {
        for id in ids.iter().take(ENDS_PER_MESSAGE) {
            let outcome = outcome_of(self, *id);
            if outcome == ActOutcome::Done {
                act(&mut self.books, id.slot, step);
            }
            step.fx.acted.push(Acted { id: *id, outcome });
        }
    }

    pub(crate) fn set_draining(&mut self, draining: bool) {
        if draining == self.is_draining() {
            return;
        }
        self.books.draining = draining.then_some(self.books.clients.serials());
        self.books.timers.set_chore(Chore::GiveUp, draining.then_some(Now(0)));
        self.books.note_of_node(if draining { EventKind::Drain } else { EventKind::Undrain });
    }

    /// New caps, from now on, as far as [`Config::bound_caps`](crate::Config::bound_caps) lets them
    /// go.
    pub(crate) fn set_caps(&mut self, caps: &CapsOfScopes) {
        self.books.note_of_node(EventKind::Caps);
        self.books.caps_changed(self.books.config.bounded(*caps));
    }
}
