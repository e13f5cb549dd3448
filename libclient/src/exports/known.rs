//! The allocations registered, by address and by number. Plain data, no lock.
//! Must never hold two of one range.

use crate::books::spans::{Place, Spans};
use crate::deposit::Deposit;
use crate::limits::EXPORTS_SWEEP_LEAST;
use fdbroker_protocol::{AllocationId, Handle};
use std::collections::HashMap;

/// What is known of a registered allocation, apart from place and size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub handle: Handle,
    pub owner_allocation_id: u64,
    /// The connection it was registered over.
    pub birth: u64,
}

/// What is registered, by where it lies.
#[derive(Debug, Default)]
pub(crate) struct Known {
    spans: Spans<Entry>,
    places: HashMap<AllocationId, Place>,
    /// As many entries as make a sweep due.
    sweep_at: usize,
}

impl Known {
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn exact(&self, place: Place, deposit: &Deposit) -> Option<&Entry> {
        let entry = self.spans.exact(place, deposit.facts.size_bytes)?;
        (entry.owner_allocation_id == deposit.facts.owner_allocation_id).then_some(entry)
    }

    /// The one that an address lies in, and how far from its beginning, in bytes.
    pub fn containing(&self, device: u32, address: u64) -> Option<(u64, &Entry)> {
        self.spans.containing(device, address)
    }

    /// Puts in a registration. Nothing that it overlaps may be there.
    pub fn insert(&mut self, place: Place, size_bytes: u64, entry: Entry) {
        self.places.insert(entry.handle.id(), place);
        self.spans.insert(place, size_bytes, entry);
    }

    pub fn remove(&mut self, place: Place) -> Option<Entry> {
        let entry = self.spans.remove(place)?;
        self.places.remove(&entry.handle.id());
        Some(entry)
    }

    pub fn remove_id(&mut self, id: AllocationId) -> Option<Entry> {
        let place = self.places.get(&id).copied()?;
        self.remove(place)
    }

    /// Takes out a registration that has ended with its broker.
    pub fn remove_lost(&mut self, id: AllocationId, birth: u64) {
        let place = self.places.get(&id).copied();
        if let Some(place) = place
            && self.spans.get(place).is_some_and(|entry| entry.birth == birth)
        {
            self.remove(place);
        }
    }

    /// Takes out all that overlap but this very allocation.
    pub fn take_others(&mut self, place: Place, deposit: &Deposit) -> Vec<Entry> {
        match self.exact(place, deposit) {
            Some(_) => Vec::new(),
            None => self.take_overlapping(place, deposit.facts.size_bytes),
        }
    }

    /// Takes out all that overlap.
    pub fn take_overlapping(&mut self, place: Place, size_bytes: u64) -> Vec<Entry> {
        let taken = self.spans.take_overlapping(place, size_bytes);
        self.forget(taken)
    }

    /// Takes out what has ended, when that is due: as often as the table doubles, so that it never
    /// has more than twice as many entries as lived, and a sweep costs each entry little.
    pub fn sweep(&mut self, has_ended: impl Fn(AllocationId) -> bool) -> Vec<Entry> {
        if self.spans.len() < self.sweep_at.max(EXPORTS_SWEEP_LEAST) {
            return Vec::new();
        }
        let taken = self.spans.take_if(|entry| has_ended(entry.handle.id()));
        self.sweep_at = self.spans.len() * 2;
        self.forget(taken)
    }

    fn forget(&mut self, taken: Vec<Entry>) -> Vec<Entry> {
        for one in &taken {
            self.places.remove(&one.handle.id());
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(slot: u32) -> Entry {
        let mut handle = Handle::from_bytes([0; 64]);
        handle.prefix.slot = slot;
        handle.prefix.generation = 1;
        Entry { handle, owner_allocation_id: slot.into(), birth: 1 }
    }

    #[test]
    fn remove_lost_when_registered_anew_under_the_same_number_then_that_one_stays() {
        let mut known = Known::default();
        known.insert((0, 4096), 10, entry(1));
        known.remove_lost(entry(1).handle.id(), 2);
        assert_eq!(known.len(), 1);
        known.remove_lost(entry(1).handle.id(), 1);
        assert_eq!((known.len(), known.places.len()), (0, 0));
    }

    #[test]
    fn take_others_when_it_is_there_itself_then_nothing_goes() {
        let mut known = Known::default();
        let (same, other) =
            (Deposit { base: 16, ..deposit(16) }, Deposit { base: 8, ..deposit(16) });
        known.insert((0, 16), 16, entry(0));
        assert!(known.take_others((0, 16), &same).is_empty());
        assert_eq!(known.take_others((0, 8), &other).len(), 1);
        assert_eq!((known.len(), known.places.len()), (0, 0));
    }

    #[test]
    fn sweep_when_most_have_ended_then_the_table_stays_bounded() {
        let mut known = Known::default();
        let mut most = 0;
        for slot in 0..20 * u32::try_from(EXPORTS_SWEEP_LEAST).unwrap() {
            let swept = known.sweep(|id| !id.slot.is_multiple_of(100));
            assert!(swept.iter().all(|one| !one.handle.id().slot.is_multiple_of(100)));
            known.insert((0, u64::from(slot + 1) * 16), 16, entry(slot));
            most = most.max(known.len());
        }
        assert!(most <= EXPORTS_SWEEP_LEAST + 1, "{most} entries");
        assert_eq!(known.places.len(), known.len());
        assert!(known.exact((0, 16), &Deposit { base: 16, ..deposit(16) }).is_some());
    }

    fn deposit(size_bytes: u64) -> Deposit {
        Deposit::new(fdbroker_protocol::MemoryKind::Memfd, size_bytes)
    }
}
