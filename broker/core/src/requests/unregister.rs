//! An owner ends registrations. Must never end what is registered once more.

use crate::api::{Asker, ClientId, StatusReply};
use crate::core::Core;
use crate::moves::Step;
use fdbroker_protocol::{AllocationId, ErrorCode, Status};

impl Core {
    pub(crate) fn unregister(&mut self, by: Asker, ids: &[AllocationId], step: &mut Step) {
        let begin = step.fx.statuses.len();
        for id in ids {
            let status = self.unregister_one(by.client, *id, step);
            step.fx.statuses.push(status);
        }
        step.answer(by, StatusReply::Unregister, begin);
    }

    fn unregister_one(&mut self, client: ClientId, id: AllocationId, step: &mut Step) -> Status {
        let found = self.books.allocations.find(id);
        let Some(allocation) = found.filter(|allocation| allocation.is_live()) else {
            return ErrorCode::Stale.into();
        };
        if allocation.owner != client.0 {
            return ErrorCode::NotPermitted.into();
        }
        if allocation.registrations > 1 {
            self.books.allocations.unregister(id.slot);
            return Status::OK;
        }
        if !step.allowances.ends.take() {
            return ErrorCode::Again.into();
        }
        self.books.end(id.slot, ErrorCode::Stale, step);
        if !self.books.allocations[id.slot].leases.is_empty() || self.books.lingers(id.slot) {
            return Status::OK;
        }
        self.books.free_allocation(id.slot);
        Status::DRAINED
    }
}
