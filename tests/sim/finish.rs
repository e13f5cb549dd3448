//! Judges what must have happened by the end of a step. Must never look into the core: only at
//! inputs, effects and the model.

use crate::action::Action;
use crate::judge::ensure;
use crate::model::{Check, Drain, Model, Phase};
use crate::step::{Fate, Step};
use crate::tally::Promise;
use fdbroker_core::limits;

impl Model {
    /// Checks what must have happened by the end of the step.
    pub fn finish(&mut self, step: &mut Step, action: &Action) -> Check {
        self.proofs.count(Promise::Fds, step.arrived.len());
        for (index, fate) in step.arrived.iter().enumerate() {
            ensure!(
                *fate != Fate::Waiting,
                "fd {index} of the message is neither stored nor closed"
            );
            if let Some(id) = step.must_store.get(&index) {
                ensure!(*fate == Fate::Stored(id.slot), "the fd supplied for {id} is {fate:?}");
            }
        }
        ensure!(step.published.is_empty(), "published without a deposit: {:?}", step.published);
        self.finish_pages(step)?;
        if matches!(action, Action::Gone { .. }) {
            let (ends, most) = (step.unpublished.len(), limits::TEARDOWN_PER_STEP);
            self.proofs.count(Promise::Bounds, 1);
            ensure!(ends <= most, "a death ends {ends} allocations in one step, bound {most}");
        }
        ensure!(step.cancelled.is_none(), "a cancelled request is not answered");
        ensure!(step.must_fail.is_none() || action.is_one_way(), "a bad request is not refused");
        if let Some((client, true)) = step.disconnect {
            ensure!(step.disconnected.contains(&client), "client {client} is not disconnected");
        }
        self.finish_ended(step)?;
        self.finish_evicted(step)?;
        self.finish_refused(step)?;
        self.finish_requests(action)
    }

    fn finish_pages(&mut self, step: &mut Step) -> Check {
        self.to_unpublish.extend(step.orphaned.iter());
        self.proofs.count(Promise::Eviction, step.unpublished.len());
        for id in &step.unpublished {
            let due = self.to_unpublish.remove(id) || step.ended.contains(id);
            ensure!(due, "{id} is taken off the page without a cause");
        }
        if let Some(id) = step.due_end.keys().find(|id| !step.unpublished.contains(id)) {
            return Err(format!("{id} has ended and is still on the page"));
        }
        Ok(())
    }

    fn finish_ended(&mut self, step: &Step) -> Check {
        for id in &step.unpublished {
            let slot = self.slots.get(id.slot as usize).copied().unwrap_or_default();
            ensure!(
                !slot.full || slot.published != 0,
                "{id} has ended and the broker keeps its fd"
            );
            let Some(allocation) = self.allocations.get(id) else { continue };
            if allocation.leases.is_empty() && allocation.drain == Drain::No {
                self.unleased(*id);
            }
            self.sweep(*id);
        }
        step.orphaned.iter().for_each(|id| self.sweep(*id));
        Ok(())
    }

    fn finish_evicted(&mut self, step: &mut Step) -> Check {
        step.evicted.retain(|id| !step.ended.contains(id) && !step.unpublished.contains(id));
        for id in &step.evicted {
            let Some(allocation) = self.live(*id) else { continue };
            let evictable = allocation.deposit.is_evictable();
            ensure!(evictable, "{id} is evicted and cannot be recalled, or is kept");
        }
        Ok(())
    }

    /// Fds whose close may hang pile up to a bound; a client that goes beyond it is disconnected.
    fn finish_refused(&self, step: &Step) -> Check {
        let Some(sender) = step.sender.filter(|_| !step.has_no_place) else { return Ok(()) };
        let added = step.arrived_tickets.iter().filter_map(|ticket| self.tickets.get(ticket));
        let refused = added.filter(|closing| closing.refused || closing.uninvited).count();
        let state = self.client(sender)?;
        let most = u64::from(self.config.max_refused_per_domain);
        let now = self.refused_of(state.domain);
        ensure!(
            refused == 0 || now <= most || step.disconnected.contains(&sender),
            "{now} refused fds of a domain are closing (bound {most}), and client {sender} may go on"
        );
        Ok(())
    }

    fn finish_requests(&self, action: &Action) -> Check {
        let (client, asked) = match action {
            Action::Hello { client, request, .. } => (*client, Some(*request)),
            other => match other.request() {
                Some(request) => request,
                None => return Ok(()),
            },
        };
        let Some(state) = self.clients.get(&client) else { return Ok(()) };
        if state.phase == Phase::Dropped {
            return Ok(());
        }
        for (number, request) in &state.requests {
            let deadline = request.may_wait_until().ok_or_else(|| {
                format!("request {number} of client {client} is not answered: {:?}", request.ask)
            })?;
            let new = asked == Some(*number);
            ensure!(
                !new || deadline > self.now,
                "request {number} of client {client} may not wait and is not answered"
            );
        }
        let most = self.config.max_parked_per_client as usize;
        self.proofs.count(Promise::Bounds, 1);
        ensure!(state.requests.len() <= most, "client {client} has more than {most} parked");
        Ok(())
    }
}
