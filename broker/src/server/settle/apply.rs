//! Applies what the core says, in its order, and hands back what could not be done. Must never call
//! the core in the middle of a list: what it has to hear waits until the list is done.

use crate::clients::connection::index;
use crate::messages::{objects, replies};
use crate::server::parts::Server;
use crate::server::parts::feedback::Unsent;
use fdbroker_core::{ClientId, Effect, Effects, Input};
use fdbroker_protocol::Status;

impl Server {
    /// Applies `effects`, then what follows from them, until nothing does. Takes the reused list
    /// and puts it back.
    pub(crate) fn settle(&mut self, mut effects: Effects) {
        loop {
            self.take_notes();
            // First: nobody is answered before what outlives this broker knows of it.
            self.kept.hear(&effects.kept, &self.core, &self.fds);
            for effect in &effects.list {
                self.apply(effect, &effects);
            }
            for us in &effects.recalled_us {
                self.waits.note_recall(*us);
            }
            effects = self.feedback.hand_back(&mut self.core, self.now, effects);
            if effects.list.is_empty() {
                self.take_notes();
                self.feedback.keep_list(effects);
                return;
            }
        }
    }

    /// Tells the core what it is to hear, if there is something, and applies what follows.
    pub(crate) fn settle_queues(&mut self) {
        if !self.feedback.is_empty() {
            let effects = self.feedback.take_list();
            self.settle(effects);
        }
    }

    fn apply(&mut self, effect: &Effect, all: &Effects) {
        match effect {
            Effect::Granted { client, request, range, deadline, seq } => {
                let (client, request) = (*client, *request);
                match self.send_granted(client, request, &all.granted[range.clone()]) {
                    Ok(fds) => {
                        let at = self.calls.last();
                        self.waits.end(client, request, fds, at, &mut self.connections);
                    }
                    Err(()) => {
                        let (range, deadline, seq) = (range.clone(), *deadline, *seq);
                        self.feedback.note_unsent(Unsent { client, request, range, deadline, seq });
                    }
                }
            }
            Effect::GrantedAhead { client, range } => {
                self.send_ahead(*client, &all.granted[range.clone()]);
            }
            Effect::Statuses { client, request, reply, range } => {
                let statuses = &all.statuses[range.clone()];
                replies::write_statuses(&mut self.writer, *request, *reply, statuses);
                self.send_written(*client);
            }
            Effect::StoreArrived { index, slot } => {
                // The kind of a deposit is what its producer said and the daemon has checked; a
                // supply is without one, and of what was registered.
                let deposit = self.scratch.deposit(*index);
                let facts = deposit.map(|deposit| deposit.facts).or(self.core.facts(*slot));
                // Not known where it has ended in the same step: its fd is closed at once.
                let kind = facts.map(|facts| facts.kind);
                let is_done = self.fds.store_arrived(*index, *slot, kind, deposit.is_none());
                expect(is_done, "store", *slot);
                self.note_file(*slot);
            }
            Effect::MeetArrived { index, slot } => {
                self.fds.meet_arrived(*index, *slot);
                self.note_file(*slot);
            }
            Effect::CloseArrived { index, ticket, lane } => {
                let is_done = self.fds.close_arrived(*index, *ticket, *lane);
                expect(is_done, "close on arrival", (*index).into());
            }
            Effect::CloseHeld { slot, ticket, uid } => {
                expect(self.fds.close_held(*slot, *uid, *ticket), "close", *slot);
            }
            Effect::Keep { slot } | Effect::KeptChanged { slot } => {
                self.kept.keep(*slot, &self.manager, &self.core, &self.fds);
            }
            Effect::Unkeep { slot } => self.kept.unkeep(*slot, &self.core),
            Effect::Declared { client, request, range } => {
                let declared = &all.granted[range.clone()];
                replies::write_declared(&mut self.writer, *request, declared);
                self.send_written(*client);
            }
            Effect::Publish { slot, generation } => {
                let is_done = self.node.page().publish(*slot, *generation, &self.core);
                expect(is_done, "publish", *slot);
            }
            Effect::Ended { index } => {
                if let Some(ended) = all.ended.get(*index) {
                    self.fds.remember(ended);
                }
            }
            Effect::Registered { client, request, range, deposit_credits } => {
                replies::write_registered(
                    &mut self.writer,
                    self.node.identity(),
                    *request,
                    &all.registered[range.clone()],
                    |index| self.scratch.deposit(index),
                    *deposit_credits,
                );
                self.send_written(*client);
            }
            Effect::Welcome { client, request, deposit_credits } => {
                self.welcome(*client, *request, *deposit_credits);
            }
            Effect::Failed { client, request, status } => {
                self.reply_failed(*client, *request, *status);
            }
            Effect::Events { client } => self.connections.note_events(*client),
            Effect::ObjectsCreated { client, request, group, deposit_credits } => {
                let ends_with_broker = !self.kept.is_there();
                let (group, credits, writer) = (*group, *deposit_credits, &mut self.writer);
                objects::write_created(writer, *request, group, credits, ends_with_broker);
                self.send_written(*client);
            }
            Effect::ObjectsSealed { client, request, version } => {
                objects::write_sealed(&mut self.writer, *request, *version);
                self.send_written(*client);
            }
            Effect::ObjectsGot { client, request, objects, grants } => {
                let (objects, grants) =
                    (&all.objects[objects.clone()], &all.granted[grants.clone()]);
                self.send_got(*client, *request, objects, grants);
            }
            Effect::Disconnect { client, status } => self.end_with(*client, *status),
            Effect::Forget { client } => self.forget(index(*client)),
        }
    }

    /// The next broker is to know the file of a slot's fd, too.
    fn note_file(&self, slot: u32) {
        self.node.page().note_file(slot, self.fds.files(slot).last());
    }

    /// Hands an input that borrows nothing from the buffers to the core, and applies what it says.
    pub fn step(&mut self, input: Input<'_>) {
        let mut effects = self.feedback.take_list();
        self.core.step(self.now, input, &mut effects);
        self.settle(effects);
    }

    /// The client's process or socket has ended, or it is to end at once.
    pub(crate) fn lose(&mut self, client: ClientId) {
        self.end_connection(client);
        self.settle_queues();
    }

    /// Ends a connection and says why, if the client has been told nothing yet.
    pub(crate) fn disconnect(&mut self, client: ClientId, status: Status) {
        self.end_with(client, status);
        self.settle_queues();
    }
}

fn expect(is_done: bool, what: &str, number: u32) {
    if !is_done {
        // The core and the table disagree: a bug, but no reason to take everybody's fds away.
        log::error!("internal: cannot {what} {number}");
        debug_assert!(is_done, "cannot {what} {number}");
    }
}
