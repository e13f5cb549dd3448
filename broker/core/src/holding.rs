//! What clients hold: leases are granted, mapped, given back. Must never let one be given back twice, or by another.

use crate::allocation::State;
use crate::api::{ClientId, Effect, Effects, LeaseId, RequestId, StatusReply};
use crate::leases::Lease;
use crate::ledger::{Blocked, Charge};
use crate::{Core, ErrorCode};
use fdbroker_protocol::{Resource, Status};

/// What a lease is charged with.
pub(crate) fn lease_charge(mapped: bool) -> Charge {
    Charge(if mapped { Resource::MappedLeases } else { Resource::OpenLeases }, 1)
}

impl Core {
    /// Makes a lease of an allocation, open and charged; or says which cap is in the way.
    pub(crate) fn lease(&mut self, client: u32, slot: u32) -> Result<LeaseId, Blocked> {
        self.charge_share(client, Charge(Resource::OpenLeases, 1))?;
        Ok(self.charged_lease(client, slot))
    }

    /// Makes a lease of an allocation, open or mapped; or says which cap is in the way.
    pub(crate) fn lease_as(
        &mut self,
        client: u32,
        slot: u32,
        mapped: bool,
    ) -> Result<LeaseId, Blocked> {
        self.charge(client, lease_charge(mapped))?;
        Ok(self.enter_lease(client, slot, mapped))
    }

    /// Makes a lease that is granted, and for which an open one has been charged.
    pub(crate) fn charged_lease(&mut self, client: u32, slot: u32) -> LeaseId {
        self.counters.grants += 1;
        self.enter_lease(client, slot, false)
    }

    fn enter_lease(&mut self, client: u32, slot: u32, mapped: bool) -> LeaseId {
        let lease = self.leases.insert(client, slot, self.now, mapped);
        self.may_be_asked_for(lease);
        self.allocations.add_lease(slot, &mut self.leases, lease);
        if self.allocations[slot].leases.len() == 1 {
            self.lease_of_group(slot);
        }
        self.leases.id_of(lease)
    }

    pub(crate) fn mapped(
        &mut self,
        client: ClientId,
        request: Option<RequestId>,
        leases: &[LeaseId],
        fx: &mut Effects,
    ) {
        let begin = fx.statuses.len();
        for lease in leases {
            let status = match self.leases.find(client, *lease) {
                None => ErrorCode::BadHandle.into(),
                Some(slot) if self.leases[slot].mapped => Status::OK,
                Some(slot) => self.map_lease(client, slot),
            };
            fx.statuses.push(status);
        }
        Self::lease_reply(client, request, begin, fx);
    }

    fn map_lease(&mut self, client: ClientId, slot: u32) -> Status {
        if let Err(blocked) = self.charge(client.0, Charge(Resource::MappedLeases, 1)) {
            self.reclaim(blocked, 1);
            return self.as_told(client.0, self.no_quota(blocked));
        }
        self.import_lease(slot);
        let allocation = self.leases[slot].allocation;
        self.allocations.map_lease(allocation);
        self.release_charge(client.0, Charge(Resource::OpenLeases, 1));
        Status::OK
    }

    pub(crate) fn release(
        &mut self,
        client: ClientId,
        request: Option<RequestId>,
        leases: &[LeaseId],
        fx: &mut Effects,
    ) {
        let begin = fx.statuses.len();
        let (mut open, mut mapped) = (0, 0);
        for lease in leases {
            let status = match self.leases.find(client, *lease) {
                None => ErrorCode::BadHandle.into(),
                Some(slot) => {
                    let count = if self.leases[slot].mapped { &mut mapped } else { &mut open };
                    *count += 1;
                    self.remove_lease(slot);
                    Status::OK
                }
            };
            fx.statuses.push(status);
        }
        // In one go: one by one they cost as much as the rest.
        for (resource, count) in [(Resource::OpenLeases, open), (Resource::MappedLeases, mapped)] {
            if count > 0 {
                self.release_charge(client.0, Charge(resource, count));
            }
        }
        Self::lease_reply(client, request, begin, fx);
    }

    fn lease_reply(client: ClientId, request: Option<RequestId>, begin: usize, fx: &mut Effects) {
        let range = begin..fx.statuses.len();
        match request {
            Some(request) => {
                let reply = StatusReply::Lease;
                fx.list.push(Effect::Statuses { client, request, reply, range });
            }
            // One-way: nobody reads them.
            None => fx.statuses.truncate(begin),
        }
    }

    /// Takes a lease out of the ledger, and with the last of an ended allocation what was left of that.
    pub(crate) fn end_lease(&mut self, slot: u32) {
        let Lease { client, mapped, .. } = self.leases[slot];
        self.remove_lease(slot);
        self.release_charge(client, lease_charge(mapped));
    }

    /// The same, but for its charge: the caller takes that back.
    fn remove_lease(&mut self, slot: u32) {
        let Lease { allocation, client, ended, .. } = self.leases[slot];
        self.unask(slot);
        self.allocations.take_lease(allocation, &mut self.leases, slot);
        self.leases.remove(slot);
        if self.allocations[allocation].leases.is_empty() {
            self.lease_of_group(allocation);
        }
        if let State::Ended(_) = self.allocations[allocation].state {
            match ended {
                true => self.unpin_of_holder(client, allocation),
                false => self.leases.take_unswept(),
            }
            if self.allocations[allocation].leases.is_empty() {
                self.unpinned(allocation);
            }
        }
    }
}
