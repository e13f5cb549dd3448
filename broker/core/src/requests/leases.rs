//! Leases are imported and given back. Must never answer a one-way message.

use crate::api::{ClientId, Effect, LeaseId, RequestId, StatusReply};
use crate::books::Charge;
use crate::core::Core;
use crate::moves::Step;
use fdbroker_protocol::{ErrorCode, Resource, Status};

impl Core {
    pub(crate) fn mapped(
        &mut self,
        client: ClientId,
        request: Option<RequestId>,
        leases: &[LeaseId],
        step: &mut Step,
    ) {
        let begin = step.fx.statuses.len();
        for lease in leases {
            let status = match self.books.leases.find(client, *lease) {
                None => ErrorCode::BadHandle.into(),
                Some(slot) if self.books.leases[slot].mapped => Status::OK,
                Some(slot) => self.map_lease(client, slot, step),
            };
            step.fx.statuses.push(status);
        }
        Self::lease_reply(client, request, begin, step);
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

    pub(crate) fn release(
        &mut self,
        client: ClientId,
        request: Option<RequestId>,
        leases: &[LeaseId],
        step: &mut Step,
    ) {
        let begin = step.fx.statuses.len();
        let (mut open, mut mapped) = (0, 0);
        for lease in leases {
            let status = match self.books.leases.find(client, *lease) {
                None => ErrorCode::BadHandle.into(),
                Some(slot) => {
                    let count =
                        if self.books.leases[slot].mapped { &mut mapped } else { &mut open };
                    *count += 1;
                    self.books.remove_lease(slot, step);
                    Status::OK
                }
            };
            step.fx.statuses.push(status);
        }
        // In one go: one by one they cost as much as the rest.
        for (resource, count) in [(Resource::OpenLeases, open), (Resource::MappedLeases, mapped)] {
            if count > 0 {
                self.books.release_charge(client.0, Charge(resource, count));
            }
        }
        Self::lease_reply(client, request, begin, step);
    }

    fn lease_reply(client: ClientId, request: Option<RequestId>, begin: usize, step: &mut Step) {
        let range = begin..step.fx.statuses.len();
        match request {
            Some(request) => {
                let reply = StatusReply::Lease;
                step.fx.list.push(Effect::Statuses { client, request, reply, range });
            }
            // One-way: nobody reads them.
            None => step.fx.statuses.truncate(begin),
        }
    }
}
