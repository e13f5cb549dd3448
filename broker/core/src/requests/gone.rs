//! The end of a client, and the teardown of what it leaves, in portions. Must never leave a charge behind.

use crate::Core;
use crate::api::effect::{Effect, Effects};
use crate::api::ids::ClientId;
use crate::books::charges::{CONNECTION, PLACES};
use crate::books::ledger::Charge;
use crate::books::parked::items_of;
use crate::limits::TEARDOWN_PER_STEP;
use fdbroker_protocol::ErrorCode;
use fdbroker_protocol::admin::EventKind;
use fdbroker_protocol::{Resource, Status};

impl Core {
    pub(crate) fn gone(&mut self, client: ClientId) {
        let Some(record) = self.client(client) else { return };
        let was_welcome = record.welcome;
        record.gone = true;
        let parked = record.parked.clone();
        let (own, credits) = (std::mem::take(&mut record.own_fds), record.credits);
        parked.into_iter().for_each(|seq| self.stand_down(seq));
        if was_welcome {
            self.note_of_client(EventKind::Gone, client.0, Status::OK);
        }
        self.release_charge(client.0, Charge(Resource::OwnFds, own));
        self.set_credits(client.0, 0, false);
        self.release_charge(client.0, Charge(Resource::ReservedPlaces, credits));
        self.ask_no_more(client.0);
        self.unwatch_all(client.0);
        self.clients.bury(client.0);
    }

    /// Ends what gone clients had, a bounded number of parked items, leases and allocations at a time.
    pub(crate) fn tear_down(&mut self, fx: &mut Effects) {
        let mut left = TEARDOWN_PER_STEP;
        while let Some(number) = self.clients.next_dying() {
            while left > 0
                && let Some(seq) = self.client_mut(number).parked.last().copied()
            {
                let items = self.unpark(seq).map_or(0, |parked| items_of(&parked.wish).1);
                left = left.saturating_sub(usize::try_from(items).unwrap_or(left).max(1));
            }
            while left > 0
                && let Some(lease) = self.leases.any_of(number)
            {
                self.end_lease(lease);
                left -= 1;
            }
            while left > 0
                && let Some(slot) = self.allocations.any_of(number)
            {
                self.disown(number, slot, fx);
                left -= 1;
            }
            if left == 0 {
                return;
            }
            self.clients.end_dying();
            self.forget(number, fx);
        }
    }

    /// Ends an allocation of a gone owner and takes it off the owner's record; a kept one lives on without it.
    fn disown(&mut self, owner: u32, slot: u32, fx: &mut Effects) {
        if self.allocations[slot].outlives_owner() {
            return self.orphan(slot);
        }
        if self.allocations[slot].is_live() {
            self.end(slot, ErrorCode::OwnerGone, fx);
        }
        self.allocations.take_from_owner(slot);
        self.leave_to_domain(owner, Charge(Resource::Allocations, 1));
        if self.allocations[slot].leases.is_empty() {
            self.free_allocation(slot);
        }
    }

    /// Forgets a gone client that has been torn down. Its fds in the closers are its domain's from now on:
    /// one of them may hang for ever.
    fn forget(&mut self, number: u32, fx: &mut Effects) {
        let closing = self.closings.forget_client(self.clients[number].serial);
        self.leave_to_domain(number, Charge(Resource::HeldFds, closing));
        self.release_charge(number, CONNECTION);
        if self.client_mut(number).welcome {
            self.release_charge(number, PLACES);
        }
        assert!(self.clients[number].parked.is_empty());
        self.allocations.forget_owner(number);
        self.leases.forget_holder(number);
        self.close_client(number);
        fx.list.push(Effect::Forget { client: ClientId(number) });
    }
}
