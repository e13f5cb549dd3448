//! The allocations registered over one connection, by address and by number. Plain data, no lock.
//! Must never show an entry of another connection than the one asked about.

use super::spans::{Place, Spans};
use crate::deposit::Deposit;
use crate::limits::EXPORTS_SWEEP_LEAST;
use fdbroker_protocol::{AllocationId, Handle};
use std::collections::HashMap;

/// What is known of a registered allocation, apart from place and size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub handle: Handle,
    pub owner_allocation_id: u64,
}

/// A registration taken out of the table, to be ended at the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retired {
    pub id: AllocationId,
    pub epoch: u64,
}

/// The table. Every question names the connection, by its epoch, that it is asked for.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Of the connection whose registrations these are.
    epoch: u64,
    spans: Spans<Entry>,
    places: HashMap<AllocationId, Place>,
    /// As many entries as make a sweep due.
    sweep_at: usize,
}

impl Known {
    pub fn len(&self, epoch: u64) -> usize {
        self.of(epoch).map_or(0, Spans::len)
    }

    /// This very allocation.
    pub fn exact(&self, epoch: u64, place: Place, deposit: &Deposit) -> Option<&Entry> {
        let entry = self.of(epoch)?.exact(place, deposit.size_bytes)?;
        (entry.owner_allocation_id == deposit.owner_allocation_id).then_some(entry)
    }

    /// The one that an address lies in, and how far from its beginning, in bytes.
    pub fn containing(&self, epoch: u64, device: u32, address: u64) -> Option<(u64, &Entry)> {
        self.of(epoch)?.containing(device, address)
    }

    /// Puts in a registration of connection `epoch`; what is of an older one goes, and one of an older one than
    /// what is there is not put in. Nothing that it overlaps may be there.
    pub fn insert(&mut self, epoch: u64, place: Place, size_bytes: u64, entry: Entry) {
        if epoch < self.epoch {
            return;
        }
        if epoch > self.epoch {
            *self = Known { epoch, ..Known::default() };
        }
        self.places.insert(entry.handle.id(), place);
        self.spans.insert(place, size_bytes, entry);
    }

    pub fn remove(&mut self, epoch: u64, place: Place) -> Option<Entry> {
        if epoch != self.epoch {
            return None;
        }
        let entry = self.spans.remove(place)?;
        self.places.remove(&entry.handle.id());
        Some(entry)
    }

    pub fn remove_id(&mut self, epoch: u64, id: AllocationId) -> Option<Entry> {
        let place = self.places.get(&id).copied()?;
        self.remove(epoch, place)
    }

    /// Takes out all that overlap, of any connection.
    pub fn take_overlapping(&mut self, place: Place, size_bytes: u64) -> Vec<Retired> {
        let taken = self.spans.take_overlapping(place, size_bytes);
        self.forget(taken)
    }

    /// Takes out what is not current, when that is due: as often as the table doubles, so that it never has
    /// more than twice as many entries as were current, and a sweep costs each entry little.
    pub fn sweep(&mut self, is_current: impl Fn(AllocationId) -> bool) -> Vec<Retired> {
        if self.spans.len() < self.sweep_at.max(EXPORTS_SWEEP_LEAST) {
            return Vec::new();
        }
        let taken = self.spans.take_if(|entry| !is_current(entry.handle.id()));
        self.sweep_at = self.spans.len() * 2;
        self.forget(taken)
    }

    fn forget(&mut self, taken: Vec<Entry>) -> Vec<Retired> {
        let epoch = self.epoch;
        let retired = |entry: Entry| Retired { id: entry.handle.id(), epoch };
        let retired: Vec<Retired> = taken.into_iter().map(retired).collect();
        for one in &retired {
            self.places.remove(&one.id);
        }
        retired
    }

    fn of(&self, epoch: u64) -> Option<&Spans<Entry>> {
        (epoch == self.epoch).then_some(&self.spans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(slot: u32) -> Entry {
        let mut handle = Handle::from_bytes([0; 64]);
        handle.prefix.slot = slot.into();
        handle.prefix.generation = 1.into();
        Entry { handle, owner_allocation_id: slot.into() }
    }

    #[test]
    fn insert_when_of_a_newer_connection_then_the_older_ones_are_gone_and_older_is_refused() {
        let mut known = Known::default();
        known.insert(1, (0, 4096), 10, entry(1));
        known.insert(2, (0, 8192), 10, entry(2));
        assert_eq!((known.len(1), known.len(2)), (0, 1));
        assert!(known.remove_id(2, entry(1).handle.id()).is_none());
        known.insert(1, (0, 4096), 10, entry(3));
        assert!(known.containing(2, 0, 4096).is_none());
        assert!(known.remove(1, (0, 8192)).is_none());
        assert!(known.remove_id(2, entry(2).handle.id()).is_some());
        assert_eq!(known.len(2), 0);
    }

    #[test]
    fn sweep_when_most_have_ended_then_the_table_stays_bounded() {
        let mut known = Known::default();
        let mut most = 0;
        for slot in 0..20 * EXPORTS_SWEEP_LEAST as u32 {
            let swept = known.sweep(|id| id.slot.is_multiple_of(100));
            assert!(swept.iter().all(|one| !one.id.slot.is_multiple_of(100)));
            known.insert(1, (0, u64::from(slot + 1) * 16), 16, entry(slot));
            most = most.max(known.len(1));
        }
        assert!(most <= EXPORTS_SWEEP_LEAST + 1, "{most} entries");
        assert_eq!(known.places.len(), known.len(1));
        assert!(known.exact(1, (0, 16), &Deposit { base: 16, ..deposit(16) }).is_some());
    }

    fn deposit(size_bytes: u64) -> Deposit {
        Deposit::new(fdbroker_protocol::MemoryKind::Memfd, size_bytes)
    }
}
