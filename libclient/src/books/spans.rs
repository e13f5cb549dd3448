//! Ranges of addresses that do not overlap, per device: found by any address inside, or by what
//! overlaps. Plain data; must never hold two ranges that overlap.

use crate::deposit::Deposit;
use std::collections::BTreeMap;

/// Where a range begins: the device and the address.
pub(crate) type Place = (u32, u64);

/// The place and size of a deposit that has one: with an address, and an end that can be told.
pub(crate) fn place_of(deposit: &Deposit) -> Option<Place> {
    let has_end = deposit.base.checked_add(deposit.facts.size_bytes).is_some();
    let is_placed = deposit.base != 0 && deposit.facts.size_bytes > 0 && has_end;
    is_placed.then_some((deposit.facts.device, deposit.base))
}

/// Ranges by their place.
#[derive(Debug)]
pub(crate) struct Spans<T> {
    by_place: BTreeMap<Place, Span<T>>,
}

#[derive(Debug)]
struct Span<T> {
    size_bytes: u64,
    value: T,
}

impl<T> Default for Spans<T> {
    fn default() -> Self {
        Spans { by_place: BTreeMap::new() }
    }
}

impl<T> Spans<T> {
    pub fn len(&self) -> usize {
        self.by_place.len()
    }

    /// Puts one in; nothing that it overlaps may be there.
    pub fn insert(&mut self, place: Place, size_bytes: u64, value: T) {
        debug_assert!(self.overlapping(place, size_bytes).is_empty());
        self.by_place.insert(place, Span { size_bytes, value });
    }

    pub fn remove(&mut self, place: Place) -> Option<T> {
        self.by_place.remove(&place).map(|span| span.value)
    }

    pub fn get(&self, place: Place) -> Option<&T> {
        self.by_place.get(&place).map(|span| &span.value)
    }

    pub fn get_mut(&mut self, place: Place) -> Option<&mut T> {
        self.by_place.get_mut(&place).map(|span| &mut span.value)
    }

    /// The one of this place and size.
    pub fn exact(&self, place: Place, size_bytes: u64) -> Option<&T> {
        let span = self.by_place.get(&place)?;
        (span.size_bytes == size_bytes).then_some(&span.value)
    }

    /// The one that an address lies in, and how far from its beginning, in bytes.
    pub fn containing(&self, device: u32, address: u64) -> Option<(u64, &T)> {
        let (place, span) = self.by_place.range((device, 0)..=(device, address)).next_back()?;
        let offset = address - place.1;
        (offset < span.size_bytes).then_some((offset, &span.value))
    }

    /// The places of all that overlap `size_bytes` from `place`, the last first. `size_bytes` is
    /// more than 0 and the end can be told.
    pub fn overlapping(&self, place: Place, size_bytes: u64) -> Vec<Place> {
        let (device, begin) = place;
        // They do not overlap each other: the first from the back that ends before `begin` is the
        // last to look at.
        let before = self.by_place.range((device, 0)..(device, begin + size_bytes));
        let reaches = |(other, span): &(&Place, &Span<T>)| other.1 + span.size_bytes > begin;
        before.rev().take_while(reaches).map(|(other, _)| *other).collect()
    }

    /// Takes out all that overlap.
    pub fn take_overlapping(&mut self, place: Place, size_bytes: u64) -> Vec<T> {
        let others = self.overlapping(place, size_bytes);
        others.into_iter().filter_map(|other| self.remove(other)).collect()
    }

    /// Takes out all for which `wanted` holds.
    pub fn take_if(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let taken = self.by_place.extract_if(.., |_, span| wanted(&span.value));
        taken.map(|(_, span)| span.value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_protocol::MemoryKind;

    fn spans() -> Spans<char> {
        let mut spans = Spans::default();
        spans.insert((0, 100), 10, 'a');
        spans.insert((0, 110), 10, 'b');
        spans.insert((1, 100), 50, 'c');
        spans
    }

    #[test]
    fn containing_when_inside_then_that_one_and_its_offset() {
        let spans = spans();
        assert_eq!(spans.containing(0, 100), Some((0, &'a')));
        assert_eq!(spans.containing(0, 109), Some((9, &'a')));
        assert_eq!(spans.containing(0, 110), Some((0, &'b')));
        assert_eq!(spans.containing(1, 149), Some((49, &'c')));
        for (device, address) in [(0, 99), (0, 120), (1, 99), (1, 150), (2, 100), (0, u64::MAX)] {
            assert_eq!(spans.containing(device, address), None, "{device} {address}");
        }
    }

    #[test]
    fn take_overlapping_when_touching_only_then_nothing_and_else_all_of_the_device() {
        let mut spans = spans();
        assert_eq!(spans.take_overlapping((0, 90), 10), []);
        assert_eq!(spans.take_overlapping((0, 120), 10), []);
        assert_eq!(spans.take_overlapping((2, 100), 10), []);
        assert_eq!(spans.take_overlapping((0, 109), 2), ['b', 'a']);
        assert_eq!(spans.take_overlapping((1, 120), 1), ['c']);
        assert_eq!(spans.len(), 0);
    }

    #[test]
    fn place_of_when_no_address_size_or_end_then_none() {
        let at = |base, size| place_of(&Deposit { base, ..Deposit::new(MemoryKind::Memfd, size) });
        assert_eq!(at(4096, 4096), Some((0, 4096)));
        assert_eq!(at(0, 4096), None);
        assert_eq!(at(4096, 0), None);
        assert_eq!(at(u64::MAX - 1, 2), None);
    }
}
