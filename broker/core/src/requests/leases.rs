//! Leases are imported and given back. Must never answer a one-way message.

use crate::api::{Asker, ClientId, LeaseId, StatusReply};
use crate::books::Charge;
use crate::core::Core;
use crate::moves::Step;
use fdbroker_protocol::{ErrorCode, Resource, Status};

impl Core {
    pub(crate) fn mapped(&mut self, by: Asker, leases: &[LeaseId], step: &mut Step) {
        self.for_each_lease(by, leases, step, |core, slot, step| {
            if core.books.leases[slot].mapped {
                Status::OK
            } else {
                core.map_lease(by.client, slot, step)
            }
        });
    }

    fn map_lease(&mut self, client: ClientId, slot: u32, step: &mut Step) -> Status {
        if let Err(blocked) = self.books.charge(client.0, Charge(Resource::MappedLeases, 1)) {
            self.books.reclaim(blocked, 1, step);
            return self.books.as_told(client.0, self.books.no_quota(blocked));
        }
        self.books.import_lease(slot);
        let allocation = self.books.leases[slot].allocation;
        self.books.allocations.map_lease(allocation);
        self.books.release_charge(client.0, Charge(Resource::OpenLeases, 1));
        Status::OK
    }

    pub(crate) fn release(&mut self, by: Asker, leases: &[LeaseId], step: &mut Step) {
        let (mut open, mut mapped) = (0, 0);
        self.for_each_lease(by, leases, step, |core, slot, step| {
            *(if core.books.leases[slot].mapped { &mut mapped } else { &mut open }) += 1;
            core.books.remove_lease(slot, step);
            Status::OK
        });
        // In one go: one by one they cost as much as the rest.
        for (resource, count) in [(Resource::OpenLeases, open), (Resource::MappedLeases, mapped)] {
            if count > 0 {
                self.books.release_charge(by.client.0, Charge(resource, count));
            }
        }
    }

    /// Deals with each of a client's leases, and answers with the statuses.
    fn for_each_lease(
        &mut self,
        by: Asker,
        leases: &[LeaseId],
        step: &mut Step,
        mut deal: impl FnMut(&mut Core, u32, &mut Step) -> Status,
    ) {
        let begin = step.fx.statuses.len();
        for lease in leases {
            let found = self.books.leases.find(by.client, *lease);
            let status = found.map_or(ErrorCode::BadHandle.into(), |slot| deal(self, slot, step));
            step.fx.statuses.push(status);
        }
        step.answer(by, StatusReply::Lease, begin);
    }
}
