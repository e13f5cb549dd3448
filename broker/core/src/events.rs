//! Messages for a client's event socket, made from marks on its own leases and allocations when the
//! socket has room: nothing queues up. Must never make a message for a client that is gone.

use crate::Core;
use crate::api::{ClientId, DrainedEvent, Events, LeaseId, RecallEvent, RevokedEvent};
use crate::slots::NONE;
use crate::state::{AllocationLinks, AllocationList, State};
use fdbroker_protocol::{AllocationId, ErrorCode, MAX_BATCH};

impl Core {
    /// The next message for the client's event socket, at most 253 items; `None` when there is none. Recalls
    /// go first, then reclaims: others wait for them.
    pub fn take_events(&mut self, client: ClientId) -> Option<Events> {
        if !self.client(client)?.recalls.is_empty() {
            return Some(Events::Recall(self.take_recalls(client.0)));
        }
        let reclaims = self.take_reclaims(client.0);
        if !reclaims.is_empty() {
            return Some(Events::Reclaim(reclaims));
        }
        let record = self.client(client)?;
        if !record.revoked.is_empty() {
            return Some(Events::Revoked(self.take_revoked(client.0)));
        }
        (!record.drained.is_empty()).then(|| Events::Drained(self.take_drained(client.0)))
    }

    fn take_recalls(&mut self, client: u32) -> Vec<RecallEvent> {
        let mut list = self.client_mut(client).recalls;
        let mut links = AllocationLinks(&mut self.allocations, AllocationList::Event);
        let slots: Vec<u32> = std::iter::from_fn(|| list.pop(&mut links)).take(MAX_BATCH).collect();
        self.client_mut(client).recalls = list;
        slots.into_iter().map(|slot| self.recall_event(slot)).collect()
    }

    fn recall_event(&self, slot: u32) -> RecallEvent {
        let allocation = &self.allocations[slot];
        RecallEvent {
            id: self.id_of(slot),
            owner_allocation_id: allocation.owner_allocation_id,
            base: allocation.base,
            size_bytes: allocation.size_bytes,
            fd_offset: allocation.fd_offset,
            device: allocation.device,
        }
    }

    fn take_revoked(&mut self, client: u32) -> Vec<RevokedEvent> {
        let mut slots = Vec::new();
        self.with_event_list(client, false, |list, links| {
            slots.extend(std::iter::from_fn(|| list.pop(links)).take(MAX_BATCH));
        });
        slots.into_iter().map(|slot| self.revoked_event(slot)).collect()
    }

    fn revoked_event(&self, slot: u32) -> RevokedEvent {
        let allocation = self.leases[slot].allocation;
        let code = match self.allocations[allocation].state {
            State::Ended(code) => code,
            _ => ErrorCode::Stale,
        };
        RevokedEvent { id: self.id_of(allocation), lease: self.lease_id(slot), code }
    }

    fn take_drained(&mut self, client: u32) -> Vec<DrainedEvent> {
        let mut list = self.client_mut(client).drained;
        let mut links = AllocationLinks(&mut self.allocations, AllocationList::Event);
        let slots: Vec<u32> = std::iter::from_fn(|| list.pop(&mut links)).take(MAX_BATCH).collect();
        self.client_mut(client).drained = list;
        slots.into_iter().map(|slot| self.drained_event(slot)).collect()
    }

    fn drained_event(&mut self, slot: u32) -> DrainedEvent {
        let allocation = &self.allocations[slot];
        debug_assert!(allocation.owner != NONE);
        let event = DrainedEvent {
            id: self.id_of(slot),
            owner_allocation_id: allocation.owner_allocation_id,
            base: allocation.base,
        };
        // Told: nothing is left to say of it.
        self.free_allocation(slot);
        event
    }

    /// The id of an allocation in use.
    pub(crate) fn id_of(&self, slot: u32) -> AllocationId {
        AllocationId { slot, generation: self.allocations.generation(slot) }
    }

    /// The number of a lease in use.
    pub(crate) fn lease_id(&self, slot: u32) -> LeaseId {
        LeaseId(u64::from(self.leases.generation(slot)) << 32 | u64::from(slot))
    }
}
