//! Checks deposit credits: idle ones are taken back when another needs the place, and their clients
//! do not know it. Must never look into the core but at the number of credits that it shows.

use crate::judge::ensure;
use crate::model::{Check, Model};
use crate::step::Step;
use crate::sums::{Holder, Ledger};
use crate::waits::{credit_blockers, nobody_waits};
use fdbroker_core::{Core, Effect, Effects};
use fdbroker_protocol::{ErrorCode, Resource};

/// Resources of which a credit takes one.
const PLACE: [Resource; 3] = [Resource::Fds, Resource::HeldFds, Resource::TablePlaces];

impl Model {
    /// A message had more fds than credits: whether these got places all the same is told by its
    /// answer.
    pub fn settle_credits(&mut self, step: &mut Step, effects: &Effects) -> Check {
        let (true, Some(sender)) = (step.lacks_credits, step.sender) else { return Ok(()) };
        let sent = step.arrived.len() as u64;
        let answered = effects.list.iter().find_map(|effect| match effect {
            Effect::Registered { client, range, .. } if client.0 == sender => Some(range.clone()),
            _ => None,
        });
        let items = &effects.registered[answered.unwrap_or_default()];
        step.has_no_place = items.iter().all(|item| item.status.result() == Err(ErrorCode::Again));
        if step.has_no_place {
            step.uninvited = (0..step.arrived.len()).collect();
            step.due_end.clear();
            step.same.clear();
        }
        let may_wait = !nobody_waits(self);
        let short_of = sent - self.client(sender)?.credits;
        let ledger = self.ledger();
        let is_full = self.is_short(&ledger, sender, short_of)
            || !credit_blockers(self, &ledger, sender).is_empty();
        ensure!(
            !step.has_no_place || may_wait || is_full,
            "client {sender}: AGAIN, and there is room"
        );
        let has_no_place = step.has_no_place;
        let state = self.client_mut(sender)?;
        // The messages behind this one count on what it was told, less what it has sent.
        let gone = if has_no_place { sent } else { short_of };
        state.credits_taken = state.credits_taken.saturating_sub(gone);
        if !has_no_place {
            state.use_credits(sent);
        }
        Ok(())
    }

    /// Whether so many more places do not fit somewhere.
    fn is_short(&self, ledger: &Ledger, client: u32, need: u64) -> bool {
        self.accounts_of_client(client).into_iter().any(|account| {
            PLACE.into_iter().any(|resource| self.is_full(ledger, account, resource, need))
        })
    }

    /// Which clients have lost credits in this step. None that a client has waited for is taken
    /// back.
    pub fn sync_credits(&mut self, step: &mut Step, core: &Core) -> Check {
        let most = u64::from(self.config.max_credits);
        for view in core.clients(0) {
            let Some(client) = self.clients.get_mut(&view.id.0) else { continue };
            let taken = client.credits.saturating_sub(view.record.credits);
            ensure!(
                taken <= client.idle_credits(),
                "client {} has lost {taken} credits, and {} were idle",
                view.id.0,
                client.idle_credits()
            );
            client.credits -= taken;
            // Some may have been taken and given again within the step.
            let told = core.deposit_credits(view.id) - view.record.credits;
            ensure!(
                (most.min(client.credits_taken + taken)..=most).contains(&told),
                "client {} may have lost {told} credits unknown to it",
                view.id.0
            );
            client.credits_taken = told;
            step.robbed.extend((taken > 0).then_some(view.id.0));
        }
        Ok(())
    }

    /// Credits are taken back only where somebody has taken the place. (Only steps that let a
    /// client in are looked at: a request for an fd may find one place of the two that it needs.)
    pub fn check_credits(&self, step: &Step, after: &Ledger) -> Check {
        let let_in = step.let_in.len() == 1 && step.grants.is_empty() && step.evicted.is_empty();
        if !let_in || !nobody_waits(self) {
            return Ok(());
        }
        for client in &step.robbed {
            self.proofs.count(crate::tally::Promise::Shares, 1);
            let is_used = self.accounts_of_client(*client).into_iter().any(|account| {
                PLACE.into_iter().any(|resource| match (resource, account) {
                    (Resource::TablePlaces, Holder::Node) => {
                        self.table_fds(&after.node) >= self.config.table_fds
                    }
                    (Resource::TablePlaces, _) => false,
                    _ => after.of(account).usage(resource) >= self.cap(account, resource),
                })
            });
            ensure!(is_used, "client {client} has lost credits, and there is room");
        }
        Ok(())
    }
}
