//! What clients hold: leases are granted, mapped, given back. Must never let one be given back
//! twice, or by another.

use crate::api::LeaseId;
use crate::books::{Blocked, Books, Charge, Lease, State, lease_charge};
use crate::moves::Step;
use fdbroker_protocol::Resource;

impl Books {
    /// Makes a lease of an allocation, open and charged; or says which cap is in the way.
    pub(crate) fn lease(
        &mut self,
        client: u32,
        slot: u32,
        step: &mut Step,
    ) -> Result<LeaseId, Blocked> {
        self.charge_share(client, Charge(Resource::OpenLeases, 1))?;
        Ok(self.charged_lease(client, slot, step))
    }

    /// Makes a lease that is granted, and for which an open one has been charged.
    pub(crate) fn charged_lease(&mut self, client: u32, slot: u32, step: &mut Step) -> LeaseId {
        self.counters.grants += 1;
        self.enter_lease(client, slot, false, step)
    }

    /// Makes a lease that has been charged.
    pub(crate) fn enter_lease(
        &mut self,
        client: u32,
        slot: u32,
        mapped: bool,
        step: &mut Step,
    ) -> LeaseId {
        let lease = self.leases.insert(client, slot, step.now, mapped);
        self.may_be_asked_for(lease);
        self.allocations.add_lease(slot, &mut self.leases, lease);
        if self.allocations[slot].leases.len() == 1 {
            self.lease_of_group(slot, step);
        }
        self.leases.id_of(lease)
    }

    /// Takes a lease out of the ledger, and with the last of an ended allocation what was left of
    /// that.
    pub(crate) fn end_lease(&mut self, slot: u32, step: &mut Step) {
        let Lease { client, mapped, .. } = self.leases[slot];
        self.remove_lease(slot, step);
        self.release_charge(client, lease_charge(mapped));
    }

    /// The same, but for its charge: the caller takes that back.
    pub(crate) fn remove_lease(&mut self, slot: u32, step: &mut Step) {
        let Lease { allocation, client, ended, mapped, declared, .. } = self.leases[slot];
        self.unask(slot);
        if declared {
            self.ledger.count_declared(self.scope_of(client), usize::from(mapped), false);
        }
        self.allocations.take_lease(allocation, &mut self.leases, slot);
        self.leases.remove(slot);
        if self.allocations[allocation].leases.is_empty() {
            self.lease_of_group(allocation, step);
        }
        if let State::Ended(_) = self.allocations[allocation].state {
            if ended {
                self.unpin_of_holder(client, allocation)
            } else {
                self.leases.take_unswept()
            }
            if self.allocations[allocation].leases.is_empty() {
                self.unpinned(allocation);
            }
        }
    }

    /// The lease is imported now: what was asked for was its fd.
    pub(crate) fn import_lease(&mut self, lease: u32) {
        if !self.leases[lease].ended {
            // That it has ended is to be told all the same.
            self.unask(lease);
        }
        if self.leases[lease].declared {
            let scope = self.scope_of(self.leases[lease].client);
            self.ledger.count_declared(scope, 0, false);
            self.ledger.count_declared(scope, 1, true);
        }
        self.leases.set_mapped(lease);
        self.may_be_asked_for(lease);
    }
}
