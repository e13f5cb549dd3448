//! The administrator's acts: draws them for the world, and judges their outcomes. The judge must
//! never look into the core: only at the core's answers and the model.

use crate::action::Action;
use crate::judge::ensure;
use crate::model::{Check, Model, Phase};
use crate::step::Step;
use crate::tally::{Fault, Promise};
use crate::world::World;
use fdbroker_core::Acted;
use fdbroker_protocol::admin::ActOutcome;
use fdbroker_protocol::limits::ENDS_PER_MESSAGE;
use fdbroker_protocol::{AllocationId, ErrorCode};
use std::collections::BTreeSet;

/// Most allocations of one act here: a few more than one message may name.
const MOST_NAMED: u64 = ENDS_PER_MESSAGE as u64 + 6;

/// A broker that is being drained, as the model knows it.
#[derive(Debug, Default)]
pub struct Draining {
    pub is_on: bool,
    /// Clients that connected after the drain began, each with the order of its connection.
    late: BTreeSet<(u32, u64)>,
}

impl World {
    /// An act of the administrator.
    pub fn administer(&mut self) -> Check {
        self.stats.fault(Fault::Administered);
        match self.rng.below(10) {
            0..4 => {
                let ids = self.draw_ids(MOST_NAMED);
                self.feed(Action::Evict { ids })
            }
            4..7 => {
                let ids = self.draw_ids(4);
                self.feed(Action::Revoke { ids })
            }
            _ => {
                let draining = !self.model.draining.is_on || self.rng.chance(200);
                self.feed(Action::SetDraining { draining })
            }
        }
    }

    /// Mostly live allocations; some have ended, some stand twice. None has an owner that is being
    /// torn down: its outcome would depend on how far the teardown is.
    fn draw_ids(&mut self, most: u64) -> Vec<AllocationId> {
        let model = &self.model;
        let gone = |client: &u32| {
            model.clients.get(client).is_some_and(|state| state.phase == Phase::Gone)
        };
        let known = model.allocations.iter();
        let all: Vec<AllocationId> =
            known.filter(|(_, one)| !gone(&one.owner)).map(|(id, _)| *id).collect();
        let count = 1 + self.rng.below(most);
        let forged = AllocationId { slot: self.model.slots.len() as u32, generation: 1 };
        (0..count).map(|_| self.rng.pick(&all).unwrap_or(forged)).collect()
    }
}

impl Model {
    /// A revoke ends these allocations.
    pub fn begin_revoke(&self, step: &mut Step, ids: &[AllocationId]) {
        for id in ids.iter().take(ENDS_PER_MESSAGE) {
            if self.live(*id).is_some() {
                step.due_end.insert(*id, ErrorCode::Stale);
            }
        }
    }

    /// Begins a drain, in which new clients count as late; or ends it.
    pub fn set_draining(&mut self, is_on: bool) {
        if is_on != self.draining.is_on {
            self.draining = Draining { is_on, late: BTreeSet::new() };
        }
    }

    pub fn note_late(&mut self, client: u32) {
        let order = self.client_orders.get(&client).copied().unwrap_or(0);
        if self.draining.is_on {
            self.draining.late.insert((client, order));
        }
    }

    /// Whether the client connected during the drain, and so may deposit nothing.
    pub fn is_late(&self, client: u32) -> bool {
        let order = self.client_orders.get(&client).copied().unwrap_or(0);
        self.draining.late.contains(&(client, order))
    }

    /// Judges the outcome of each allocation by the state before the step's effects, as `step` and
    /// the slots show it.
    pub fn acted(&self, step: &Step, action: &Action, acted: &[Acted]) -> Check {
        let (ids, is_evict) = match action {
            Action::Evict { ids } => (ids, true),
            Action::Revoke { ids } => (ids, false),
            _ => {
                ensure!(
                    acted.is_empty(),
                    "the core acted on allocations that the act does not name"
                );
                return Ok(());
            }
        };
        let ids = &ids[..ids.len().min(ENDS_PER_MESSAGE)];
        let answered = acted.iter().map(|acted| acted.id);
        ensure!(
            answered.eq(ids.iter().copied()),
            "the answer names other allocations than the act"
        );
        self.proofs.count(Promise::Eviction, ids.len());
        let mut seen = BTreeSet::new();
        for Acted { id, outcome } in acted {
            let is_first = seen.insert(*id);
            let is_done = *outcome == ActOutcome::Done;
            ensure!(!is_done || is_first, "{id} is done twice");
            if is_evict {
                self.evicted(step, *id, *outcome)?
            } else {
                let ended = step.due_end.contains_key(id);
                ensure!(is_done == (ended && is_first), "revoke of {id}: {outcome}");
            }
        }
        Ok(())
    }

    fn evicted(&self, step: &Step, id: AllocationId, outcome: ActOutcome) -> Check {
        let Some(known) = self.live(id) else {
            let right = matches!(outcome, ActOutcome::Ended | ActOutcome::NotFound);
            ensure!(right, "evict of {id}, which has ended: {outcome}");
            return Ok(());
        };
        let was_evicted = step.evicted.contains(&id);
        let can_be = known.deposit.is_evictable();
        match outcome {
            ActOutcome::Done => ensure!(was_evicted && can_be, "{id} is said to be evicted"),
            // A kept allocation that was named again after a crash has not been recalled since,
            // either.
            ActOutcome::Evicted => ensure!(!self.is_held(id), "{id} is held, and {outcome}"),
            ActOutcome::Resident | ActOutcome::Kept => {
                ensure!(!can_be && self.is_held(id), "{id} is {outcome}");
                let is_kept = outcome == ActOutcome::Kept;
                ensure!(known.deposit.keep == is_kept, "{id} is {outcome}");
            }
            ActOutcome::Recalling => ensure!(!self.is_held(id), "{id} is held, and {outcome}"),
            ActOutcome::Waited => ensure!(self.is_held(id), "{id} is not held, and {outcome}"),
            ActOutcome::OwnerSilent => {
                // A model that does not look at every step cannot know it of this one.
                let is_silent = !self.exact || step.silent_before.contains(&known.owner);
                ensure!(is_silent, "{id}: its owner answers");
            }
            ActOutcome::Reserved => ensure!(known.reserved, "{id} is {outcome}"),
            ActOutcome::Ended | ActOutcome::NotFound => {
                return Err(format!("evict of {id}, which lives: {outcome}"));
            }
        }
        Ok(())
    }
}
