//! What owners answer to recalls. Must never keep an fd that nobody asked for.

use crate::api::{ClientId, Effect, Lane, Supply};
use crate::books::{Charge, Fate, RECALLED_PLACE, State};
use crate::core::Core;
use crate::moves::Step;
use fdbroker_protocol::{ErrorCode, Facts, Resource, Status};

impl Core {
    pub(crate) fn supply(&mut self, client: ClientId, supplies: &[Supply], step: &mut Step) {
        let welcome = self.books.welcome(client);
        if welcome {
            self.books.set_silent(client.0, false);
        }
        for supply in supplies {
            if welcome && self.is_awaited_from(client, supply.id) {
                self.supplied(client, supply, step)
            } else {
                self.not_awaited(client, supply, step)
            }
        }
    }

    /// An fd nobody asked for (any more) has no place: it is closed.
    fn not_awaited(&mut self, client: ClientId, supply: &Supply, step: &mut Step) {
        let accepted = supply.fd.ok().map(|index| (index, Lane::Accepted));
        for fd in accepted.into_iter().chain(supply.refused_fd) {
            self.books.close_uninvited(client, fd, step);
        }
    }

    pub(crate) fn supplied(&mut self, client: ClientId, supply: &Supply, step: &mut Step) {
        let slot = supply.id.slot;
        self.books.allocations.ask_no_more_for(slot);
        let Facts { fd_offset, size_bytes, .. } = supply.facts;
        let same = supply.facts == self.books.allocations.facts(slot).fd_offset(fd_offset)
            && fd_offset.checked_add(size_bytes).is_some();
        let (fd, code) = match supply.fd {
            Ok(index) if same => return self.hold_supplied(slot, index, supply, step),
            Ok(index) => (Some((index, Lane::Accepted)), ErrorCode::Stale),
            Err(code) => (supply.refused_fd, code),
        };
        self.close_supplied(client.0, slot, fd, step);
        self.fail_recall(slot, code, step);
    }

    /// The fd takes the place that was reserved for it; who waited is served before anyone else.
    fn hold_supplied(&mut self, slot: u32, index: u16, supply: &Supply, step: &mut Step) {
        step.fx.list.push(Effect::StoreArrived { index, slot });
        self.books.settle(self.books.allocations[slot].owner, RECALLED_PLACE);
        let since = self.books.recalls[self.books.allocations[slot].recall].since;
        step.fx.recalled_us.push(step.now.0.saturating_sub(since.0));
        self.books.allocations.supplied(slot, supply.facts.fd_offset);
        let reserved = self.books.allocations[slot].size_bytes;
        self.books.pin(slot, supply.file, reserved);
        if self.books.allocations[slot].traits.is_to_be_kept() {
            return self.books.keep_supplied(slot, step);
        }
        self.books.stop_recall_timer(slot);
        self.books.not_overdue(slot);
        self.books.allocations.set_state(slot, State::Held);
        let number = self.books.allocations[slot].recall;
        self.books.free_promise(number);
        self.books.serve_recalled(slot);
        self.books.wake_interested(slot);
    }

    /// The place of a recalled fd is given up, or becomes that of a closing one.
    fn close_supplied(&mut self, owner: u32, slot: u32, fd: Option<(u16, Lane)>, step: &mut Step) {
        let reserved = self.books.allocations[slot].size_bytes;
        self.books.release_charge(owner, Charge(Resource::HeldBytes, reserved));
        self.books.allocations.set_state(slot, State::Evicted);
        match fd {
            Some((index, lane)) => {
                self.books.settle(owner, RECALLED_PLACE);
                self.books.close_arrived(owner, index, lane, step);
            }
            None => self.books.release_charge(owner, RECALLED_PLACE),
        }
    }

    /// The owner refused: STALE ends the allocation, anything else is told to those who wait.
    fn fail_recall(&mut self, slot: u32, code: ErrorCode, step: &mut Step) {
        if code == ErrorCode::Stale {
            return self.books.revoke(slot, step);
        }
        let status = Status::with_value(ErrorCode::OwnerSilent, code as u64);
        let fate = Fate::Answer(self.books.allocations.id_of(slot), status);
        self.books.end_recall(slot).into_iter().for_each(|queue| self.books.decide(queue, fate));
    }
}
