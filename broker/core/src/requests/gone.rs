//! The end of a client, and the teardown of what it leaves, in portions. Must never leave a charge
//! behind.

use crate::api::{ClientId, Effect};
use crate::books::{CONNECTION, Charge, LEASE_KINDS, PLACES};
use crate::core::Core;
use crate::limits::TEARDOWN_PER_STEP;
use crate::moves::Step;
use fdbroker_protocol::admin::EventKind;
use fdbroker_protocol::{ErrorCode, Resource, Status};

impl Core {
    pub(crate) fn gone(&mut self, client: ClientId, step: &mut Step) {
        let Some(record) = self.books.client(client) else { return };
        let was_welcome = record.welcome;
        record.gone = true;
        let parked = record.parked.clone();
        let (own, credits) = (std::mem::take(&mut record.own_fds), record.credits);
        parked.into_iter().for_each(|seq| self.books.stand_down(seq, step));
        if was_welcome {
            self.books.note_of_client(EventKind::Gone, client.0, Status::OK);
        }
        self.books.release_charge(client.0, Charge(Resource::OwnFds, own));
        self.books.set_credits(client.0, 0, false);
        self.books.release_charge(client.0, Charge(Resource::ReservedPlaces, credits));
        (0..LEASE_KINDS).for_each(|kind| self.books.set_ask_key(client.0, kind, None));
        self.books.unwatch_all(client.0);
        self.books.clients.bury(client.0);
    }

    /// Ends what gone clients had, a bounded number of parked items, leases and allocations at a
    /// time.
    pub(crate) fn tear_down(&mut self, step: &mut Step) {
        let mut left = TEARDOWN_PER_STEP;
        while let Some(number) = self.books.clients.next_dying() {
            while left > 0
                && let Some(seq) = self.books.client_mut(number).parked.last().copied()
            {
                let items = self.books.unpark(seq, step).map_or(0, |parked| parked.wish.items());
                left = left.saturating_sub(items.max(1));
            }
            while left > 0
                && let Some(lease) = self.books.leases.any_of(number)
            {
                self.books.end_lease(lease, step);
                left -= 1;
            }
            while left > 0
                && let Some(slot) = self.books.allocations.any_of(number)
            {
                self.disown(slot, step);
                left -= 1;
            }
            if left == 0 {
                return;
            }
            self.books.clients.end_dying();
            self.forget(number, step);
        }
    }

    /// Ends an allocation of a gone owner and takes it off the owner's record; a kept one lives on
    /// without it.
    fn disown(&mut self, slot: u32, step: &mut Step) {
        if self.books.allocations[slot].outlives_owner() {
            return self.books.orphan(slot, step);
        }
        if self.books.allocations[slot].is_live() {
            self.books.end(slot, ErrorCode::OwnerGone, step);
        }
        self.books.leave_owner_ended(slot);
    }

    /// Forgets a gone client that has been torn down. Its fds in the closers are its domain's from
    /// now on: one of them may hang for ever.
    fn forget(&mut self, number: u32, step: &mut Step) {
        let closing = self.books.closings.forget_client(self.books.clients[number].serial);
        self.books.leave_to_domain(number, Charge(Resource::HeldFds, closing));
        self.books.release_charge(number, CONNECTION);
        if self.books.client_mut(number).welcome {
            self.books.release_charge(number, PLACES);
        }
        assert!(self.books.clients[number].parked.is_empty());
        self.books.allocations.forget_owner(number);
        self.books.leases.forget_holder(number);
        self.books.close_client(number);
        step.fx.list.push(Effect::Forget { client: ClientId(number) });
    }
}
