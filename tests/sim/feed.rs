//! Hands inputs to the core, has each step judged, and applies its effects as the daemon would.
//! Must never correct what the core does.

use crate::action::{Action, show_action, show_effect};
use crate::judge::ensure;
use crate::model::Check;
use crate::step::Step;
use crate::tally::{Fault, Promise};
use crate::world::{Reply, Todo, World};
use crate::{checks, faults, waits};
use fdbroker_core::{Effect, Effects, Lane, Now, Ticket, work};
use fdbroker_protocol::{ErrorCode, Status};

impl World {
    /// Hands an input to the core, applies the effects, and hands the grants that could not be sent
    /// back to the core.
    pub fn feed(&mut self, action: Action) -> Check {
        let mut stack = vec![action];
        while let Some(mut action) = stack.pop() {
            self.model.files.look(&mut action);
            self.step(&action)?;
            let unsent = self.apply(&action);
            if self.model.exact {
                self.everybody_is_told()?;
            }
            stack.extend(unsent.into_iter().rev());
        }
        Ok(())
    }

    /// One step of the core, judged.
    fn step(&mut self, action: &Action) -> Check {
        self.stats.steps += 1;
        self.trace.step(|| format!("{} {}", self.now, show_action(action)));
        let full = self.stats.steps.is_multiple_of(self.setup.check_every);
        let exact = self.model.exact;
        faults::of_action(&mut self.stats, &self.model, action);
        let mut step = self.model.begin(self.now, action)?;
        self.model.is_poll_due = self.core.poll_timeout().is_some_and(|due| due.0 <= self.now);
        self.effects.clear();
        self.reclaims.note(action);
        let refusals = self.core.totals().counters.refusals;
        match action.input() {
            Some(input) => self.core.step(Now(self.now), input, &mut self.effects),
            None if matches!(action, Action::Settle) => {
                self.core.settle_parked(Now(self.now), &mut self.effects)
            }
            None => self.core.poll(Now(self.now), &mut self.effects),
        }
        self.stats.longest = self.stats.longest.max(work::last());
        self.model.proofs.count(Promise::Work, 1);
        for effect in &self.effects.list {
            self.trace.note(|| show_effect(effect, &self.effects));
        }
        // A refusal is judged by the sums before the effects change them.
        let refuses = exact && refuses_for_quota(&self.effects);
        let ahead = match action {
            Action::AcquireAhead { client, .. } if exact => Some(*client),
            _ => None,
        };
        let before = (refuses || ahead.is_some()).then(|| self.model.ledger());
        self.model.settle_credits(&mut step, &self.effects)?;
        for effect in &self.effects.list {
            self.model.effect(&mut step, effect, &self.effects)?;
        }
        if let (Some(client), Some(before)) = (ahead, &before) {
            let more = (self.model.is_poll_due, &self.effects);
            self.model.check_ahead(&step, client, before, more)?;
        }
        self.model.finish(&mut step, action)?;
        self.model.sync_credits(&mut step, &self.core)?;
        let counted = self.core.totals().counters.refusals - refusals;
        ensure!(
            counted >= step.turned_away,
            "{} are turned away, and {counted} refusals counted",
            step.turned_away
        );
        self.model.acted(&step, action, &self.effects.acted)?;
        self.check_driver_data()?;
        self.count(action, &step);
        faults::of_step(&mut self.stats, &self.model, &step, action, &self.effects.list);
        if !full {
            return Ok(());
        }
        self.core.check_invariants();
        let silent = self.model.silent.len();
        checks::sync(&mut self.model, &self.core, &step, action)?;
        let silences = self.model.silent.len().saturating_sub(silent);
        self.stats.silences += silences as u64;
        self.stats.faults(Fault::Silence, silences);
        let after = self.model.ledger();
        checks::sums(&self.model, &self.core, &after)?;
        if let Some(before) = before {
            for quotas in &step.quotas {
                self.model.check_quotas(&step, quotas, &[&before, &after, &self.ledger])?;
            }
        } else {
            ensure!(!exact || step.quotas.is_empty(), "a NO_QUOTA that no effect shows");
        }
        if exact {
            waits::order(&self.model, &step, &after, action)?;
            waits::hello_helps(&self.model, &step, &after, action)?;
            self.model.check_shares(&step, &self.ledger, &after)?;
            self.model.check_credits(&step, &after)?;
            self.model.check_share_of_bytes(action, &self.ledger, &after)?;
            self.model.check_share_of_leases(&step, action, &self.ledger, &after)?;
            let all = waits::everybody(&self.model, &after);
            waits::nothing_left_waiting(&self.model, &self.core, &after, &all, self.now)?;
            self.turns.check(&self.model, &step, &after, &all, action)?;
            self.reclaims.check(&self.model, &self.core, [&self.ledger, &after], &all)?;
            self.slot_watch.look(&self.model, &self.core, &step.used_slots)?;
        }
        self.model.drain(&after);
        self.ledger = after;
        Ok(())
    }

    /// The driver data of a grant must be what was deposited.
    fn check_driver_data(&self) -> Check {
        for grant in self.effects.granted.iter().filter(|grant| grant.has_driver_data) {
            let Ok(id) = grant.wanted else { continue };
            let told = self.core.driver_data(id).copied();
            let known = self.model.allocations.get(&id);
            let right = known.and_then(|known| known.deposit.driver_data);
            ensure!(told == right, "{id} is granted with other driver data");
        }
        Ok(())
    }

    fn count(&mut self, action: &Action, step: &Step) {
        let stats = &mut self.stats;
        stats.polls += u64::from(matches!(action, Action::Poll));
        stats.supplies += match action {
            Action::Supply { supplies, .. } => supplies.len() as u64,
            _ => 0,
        };
        stats.evictions += step.evicted.len() as u64;
        stats.registrations += step.new_allocations;
        stats.no_quota += step.quotas.len() as u64;
        stats.parked += match action {
            Action::Acquire { client, request, .. } | Action::Register { client, request, .. } => {
                let parked = self.model.clients.get(client);
                u64::from(parked.is_some_and(|c| c.requests.contains_key(request)))
            }
            _ => 0,
        };
        for grant in &step.grants {
            stats.grants += grant.granted.len() as u64;
        }
    }

    /// Applies the effects as the daemon would; the inputs that follow from them at once.
    fn apply(&mut self, action: &Action) -> Vec<Action> {
        let effects = std::mem::take(&mut self.effects);
        let mut follow = Vec::new();
        for effect in &effects.list {
            match effect {
                Effect::CloseArrived { ticket, lane, .. } => self.start_close(*ticket, *lane),
                Effect::CloseHeld { ticket, .. } => self.start_close(*ticket, Lane::Accepted),
                Effect::Events { client } => self.events_are_due(client.0),
                Effect::Welcome { client, .. } => self.welcomed(client.0),
                Effect::Registered { client, request, range, .. } => {
                    let items = &effects.registered[range.clone()];
                    self.known.extend(items.iter().filter(|i| i.status.is_ok()).map(|i| i.id));
                    self.keep(client.0, request.0, || Reply::Registered(items.to_vec()));
                }
                Effect::Failed { client, request, status } => {
                    self.keep(client.0, request.0, || Reply::Failed(*status));
                }
                Effect::Granted { client, request, range, deadline, seq } => {
                    let grants = &effects.granted[range.clone()];
                    self.last_seq = *seq;
                    if self.send_fails(client.0, grants) {
                        self.stats.unsent += 1;
                        let unsent = Action::Unsent {
                            client: client.0,
                            request: request.0,
                            grants: grants.to_vec(),
                            deadline: deadline.0,
                            seq: *seq,
                        };
                        self.send_failed(client.0, unsent, &mut follow);
                    } else {
                        self.keep(client.0, request.0, || Reply::Granted(grants.to_vec()));
                        self.sent(client.0, grants, &mut follow);
                    }
                }
                Effect::Disconnect { client, .. } => self.dropped(client.0),
                Effect::Forget { client } => {
                    self.agents.remove(&client.0);
                }
                Effect::Publish { slot, generation } => self.remember_slot(*slot, *generation),
                Effect::StoreArrived { .. }
                | Effect::MeetArrived { .. }
                | Effect::Statuses { .. }
                | Effect::Ended { .. } => {}
                Effect::Keep { slot } | Effect::KeptChanged { slot } => {
                    self.stored.extend(self.core.kept(*slot).map(|kept| (*slot, kept)));
                }
                Effect::Unkeep { slot } => drop(self.stored.remove(slot)),
                Effect::Declared { .. } | Effect::GrantedAhead { .. } => {}
                // Worlds of their own have objects.
                Effect::ObjectsCreated { .. }
                | Effect::ObjectsSealed { .. }
                | Effect::ObjectsGot { .. } => {}
            }
        }
        if let Action::Gone { client } = action {
            self.gone(*client);
        }
        self.effects = effects;
        follow
    }

    fn keep(&mut self, client: u32, request: u64, reply: impl FnOnce() -> Reply) {
        if let Some(replies) = &mut self.replies {
            replies.insert((client, request), reply());
        }
    }

    fn gone(&mut self, client: u32) {
        if let Some(agent) = self.agents.get_mut(&client) {
            agent.recalls.clear();
        }
    }

    fn start_close(&mut self, ticket: Ticket, lane: Lane) {
        self.todo_count += 1;
        let token = self.todo_count;
        self.closing.insert(ticket.0, token);
        if self.replies.is_some() {
            return;
        }
        let wait = match self.rng.below(1000) {
            // It hangs until the next rest: for the clients that is for ever.
            0 => {
                self.stats.fault(Fault::HungClose);
                return;
            }
            1..=4 => self.rng.between(50_000, 1_000_000),
            5..=60 => {
                self.stats.fault(Fault::SlowClose);
                self.rng.between(1_000, 20_000)
            }
            _ if lane == Lane::Refused => self.rng.skewed(5, 200_000),
            _ => self.rng.between(5, 500),
        };
        self.schedule(wait, Todo::Close { ticket: ticket.0, token });
    }

    fn welcomed(&mut self, client: u32) {
        let Some(order) = self.agents.get(&client).map(|agent| agent.order) else { return };
        if self.replies.is_some() {
            return;
        }
        let wait = self.rng.between(1, 500);
        self.schedule(wait, Todo::Act { client, order });
    }

    fn dropped(&mut self, client: u32) {
        let Some(order) = self.agents.get(&client).map(|agent| agent.order) else { return };
        let wait = self.rng.skewed(0, 100);
        self.schedule(wait, Todo::Gone { client, order });
    }
}

/// Whether a cap refuses any request.
fn refuses_for_quota(all: &Effects) -> bool {
    let no_quota = |status: &Status| status.result() == Err(ErrorCode::NoQuota);
    all.granted.iter().any(|item| no_quota(&item.status))
        || all.registered.iter().any(|item| no_quota(&item.status))
        || all.statuses.iter().any(no_quota)
        || all.list.iter().any(|effect| match effect {
            Effect::Failed { status, .. } => no_quota(status),
            _ => false,
        })
}
