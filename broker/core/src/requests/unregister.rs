//! An owner ends registrations. Must never end what is registered once more.

use crate::api::{ClientId, Effect, Effects, RequestId, StatusReply};
use crate::core::Core;
use fdbroker_protocol::{AllocationId, ErrorCode, Status};

impl Core {
    pub(crate) fn unregister(
        &mut self,
        client: ClientId,
        request: RequestId,
        ids: &[AllocationId],
        fx: &mut Effects,
    ) {
        let begin = fx.statuses.len();
        for id in ids {
            let status = self.unregister_one(client, *id, fx);
            fx.statuses.push(status);
        }
        let (reply, range) = (StatusReply::Unregister, begin..fx.statuses.len());
        fx.list.push(Effect::Statuses { client, request, reply, range });
    }

    fn unregister_one(&mut self, client: ClientId, id: AllocationId, fx: &mut Effects) -> Status {
        let found = self.books.allocations.find(id);
        let Some(allocation) = found.filter(|allocation| allocation.is_live()) else {
            return ErrorCode::Stale.into();
        };
        if allocation.owner != client.0 {
            return ErrorCode::NotPermitted.into();
        }
        let is_last = allocation.registrations == 1;
        if is_last && !self.books.allowances.ends.take() {
            return ErrorCode::Again.into();
        }
        if !is_last {
            self.books.allocations.unregister(id.slot);
            return Status::OK;
        }
        self.books.end(id.slot, ErrorCode::Stale, fx);
        if !self.books.allocations[id.slot].leases.is_empty() || self.books.lingers(id.slot) {
            return Status::OK;
        }
        self.books.free_allocation(id.slot);
        Status::DRAINED
    }
}
