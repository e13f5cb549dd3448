//! What is told without being asked: messages for event sockets, and notes. Must never say the same
//! thing twice.

use crate::api::{ClientId, DrainedEvent, Events, NONE, Note, RecallEvent, RevokedEvent};
use crate::core::Core;
use fdbroker_protocol::ErrorCode;

impl Core {
    /// The next message for the client's event socket, at most 253 items; `None` when there is
    /// none. Recalls go first, then reclaims: others wait for them.
    pub fn take_events(&mut self, client: ClientId) -> Option<Events> {
        self.books.client(client)?;
        let recalls = self.books.allocations.take_events(client.0, false);
        some(recalls.into_iter().map(|it| self.recall_event(it)), Events::Recall)
            .or_else(|| some(self.books.take_reclaims(client.0), Events::Reclaim))
            .or_else(|| {
                let revoked = self.books.leases.take_events(client.0, true);
                some(revoked.into_iter().map(|it| self.revoked_event(it)), Events::Revoked)
            })
            .or_else(|| {
                let drained = self.books.allocations.take_events(client.0, true);
                some(drained.into_iter().map(|it| self.drained_event(it)), Events::Drained)
            })
            .or_else(|| some(self.books.objects.watches.take(client.0), Events::Objects))
    }

    fn recall_event(&self, slot: u32) -> RecallEvent {
        let allocation = &self.books.allocations[slot];
        RecallEvent {
            id: self.books.allocations.id_of(slot),
            facts: self.books.allocations.facts(slot),
            base: allocation.base,
        }
    }

    fn revoked_event(&self, slot: u32) -> RevokedEvent {
        let allocation = self.books.leases[slot].allocation;
        let code = self.books.allocations[allocation].ended().unwrap_or(ErrorCode::Stale);
        RevokedEvent {
            id: self.books.allocations.id_of(allocation),
            lease: self.books.leases.id_of(slot),
            code,
        }
    }

    fn drained_event(&mut self, slot: u32) -> DrainedEvent {
        let allocation = &self.books.allocations[slot];
        debug_assert!(allocation.owner != NONE);
        let event = DrainedEvent {
            id: self.books.allocations.id_of(slot),
            owner_allocation_id: allocation.owner_allocation_id,
            base: allocation.base,
        };
        // Told: nothing is left to say of it.
        self.books.free_allocation(slot);
        event
    }

    /// Whether to note what happens from now on. Off in the beginning.
    pub fn set_watched(&mut self, watched: bool) {
        self.books.notes.set_on(watched);
    }

    /// Whether something has been noted.
    pub fn has_notes(&self) -> bool {
        self.books.notes.has_some()
    }

    /// Moves what has been noted to `notes`, in order; how many were lost before or among them,
    /// because nobody took them.
    pub fn take_notes(&mut self, notes: &mut Vec<Note>) -> u64 {
        self.books.notes.take(notes)
    }
}

/// A message with these items, if there are any.
fn some<T>(items: impl IntoIterator<Item = T>, kind: fn(Vec<T>) -> Events) -> Option<Events> {
    let items: Vec<T> = items.into_iter().collect();
    (!items.is_empty()).then(|| kind(items))
}
