//! A client's live allocations by device and address, in 12 to 20 bytes each. Must never move more than a chunk at a time.

use crate::limits::ADDRESSES_PER_CHUNK;
use std::collections::BTreeMap;

/// Device ordinal and address.
pub type Place = (u32, u64);

/// Sorted entries: the upper and the lower half of the address, and the slot.
type Chunk = Vec<[u32; 3]>;

/// Slots by device and address.
#[derive(Debug, Default)]
pub struct Addresses {
    /// By a place that is not behind the first of the chunk, and behind the last of the chunk before. None is empty.
    chunks: BTreeMap<Place, Chunk>,
}

fn entry(address: u64, slot: u32) -> [u32; 3] {
    [(address >> 32) as u32, address as u32, slot]
}

/// How many entries of a chunk are before an address.
fn before(chunk: &Chunk, address: u64) -> usize {
    let [high, low, _] = entry(address, 0);
    chunk.partition_point(|at| (at[0], at[1]) < (high, low))
}

fn at(chunk: &Chunk, index: usize, address: u64) -> Option<u32> {
    let [high, low, slot] = *chunk.get(index)?;
    ((high, low) == (entry(address, 0)[0], address as u32)).then_some(slot)
}

impl Addresses {
    /// The key of the chunk in which an address is, or would be.
    fn key(&self, (device, address): Place) -> Option<Place> {
        self.chunks.range((device, 0)..=(device, address)).next_back().map(|(key, _)| *key)
    }

    /// The slot at an address.
    pub fn get(&self, place: Place) -> Option<u32> {
        let chunk = &self.chunks[&self.key(place)?];
        at(chunk, before(chunk, place.1), place.1)
    }

    /// The slot at the last address before this one, on the same device.
    pub fn last_before(&self, (device, end): Place) -> Option<u32> {
        // The first chunk may begin behind its key. Then all of the one before it are before `end`.
        let chunks = self.chunks.range((device, 0)..(device, end)).rev().take(2);
        chunks.filter_map(|(_, chunk)| Some(chunk[before(chunk, end).checked_sub(1)?][2])).next()
    }

    /// Adds a slot; `false`: there is one at this address.
    pub fn insert(&mut self, place: Place, slot: u32) -> bool {
        let (device, address) = place;
        let key = self.key(place).or_else(|| {
            // It becomes the first of the device.
            let key = self.chunks.range(place..=(device, u64::MAX)).next().map(|(key, _)| *key)?;
            let chunk = self.chunks.remove(&key)?;
            self.chunks.insert(place, chunk);
            Some(place)
        });
        let chunk = self.chunks.entry(key.unwrap_or(place)).or_default();
        let index = before(chunk, address);
        if at(chunk, index, address).is_some() {
            return false;
        }
        if chunk.len() < ADDRESSES_PER_CHUNK {
            chunk.insert(index, entry(address, slot));
            return true;
        }
        // In the order of addresses, up or down, chunks stay full.
        let middle = match index {
            0 => 0,
            index if index == chunk.len() => index,
            _ => chunk.len() / 2,
        };
        let mut upper = chunk.split_off(middle);
        if index < middle || middle == 0 {
            chunk.insert(index, entry(address, slot));
        } else {
            upper.insert(index - middle, entry(address, slot));
        }
        let [high, low, _] = upper[0];
        let first = u64::from(high) << 32 | u64::from(low);
        self.chunks.insert((device, first), upper);
        true
    }

    /// Takes the slot at an address out.
    pub fn remove(&mut self, place: Place) -> Option<u32> {
        let key = self.key(place)?;
        let chunk = self.chunks.get_mut(&key)?;
        let index = before(chunk, place.1);
        let slot = at(chunk, index, place.1)?;
        chunk.remove(index);
        if chunk.is_empty() {
            self.chunks.remove(&key);
        } else if chunk.len() < ADDRESSES_PER_CHUNK / 4 {
            self.merge(key);
        }
        Some(slot)
    }

    /// Joins a chunk of few entries with the one behind it, or the one before, if that has room to spare.
    fn merge(&mut self, key: Place) {
        let device = key.0;
        let behind = self.chunks.range(key..=(device, u64::MAX)).nth(1).map(|(key, _)| *key);
        let ahead = self.chunks.range((device, 0)..key).next_back().map(|(key, _)| *key);
        let pairs = [behind.map(|behind| (key, behind)), ahead.map(|ahead| (ahead, key))];
        for (lower, upper) in pairs.into_iter().flatten() {
            if self.chunks[&lower].len() + self.chunks[&upper].len() > ADDRESSES_PER_CHUNK / 2 {
                continue;
            }
            let moved = self.chunks.remove(&upper).unwrap_or_default();
            self.chunks.entry(lower).or_default().extend(moved);
            return;
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both answer the same, and no chunk is empty, full beyond its size, or out of order.
    fn assert_same(addresses: &Addresses, model: &BTreeMap<Place, u32>) {
        let mut all = Vec::new();
        for (key, chunk) in &addresses.chunks {
            assert!((1..=ADDRESSES_PER_CHUNK).contains(&chunk.len()));
            let place = |at: &[u32; 3]| (key.0, u64::from(at[0]) << 32 | u64::from(at[1]));
            assert!(*key <= place(&chunk[0]) && all.last().is_none_or(|(last, _)| last < key));
            all.extend(chunk.iter().map(|at| (place(at), at[2])));
        }
        assert!(all.iter().copied().eq(model.iter().map(|(place, slot)| (*place, *slot))));
    }

    #[test]
    fn addresses_when_changed_at_random_then_as_a_sorted_map() {
        let (mut addresses, mut model) = (Addresses::default(), BTreeMap::new());
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for round in 0..60_000u32 {
            // Fills, and then empties; the upper half of some addresses differs.
            let place = (random(2) as u32, (random(3_000) << 28) + 1);
            match random(10) < if round % 20_000 < 12_000 { 7 } else { 2 } {
                true => {
                    let is_new = addresses.insert(place, round);
                    assert_eq!(is_new, !model.contains_key(&place));
                    model.entry(place).or_insert(round);
                }
                false => assert_eq!(addresses.remove(place), model.remove(&place)),
            }
            assert_eq!(addresses.get(place), model.get(&place).copied());
            let end = (place.0, place.1 + random(1 << 30));
            let last = model.range((end.0, 0)..end).next_back().map(|(_, slot)| *slot);
            assert_eq!(addresses.last_before(end), last);
            if round % 500 == 0 {
                assert_same(&addresses, &model);
            }
        }
        while let Some((place, slot)) = model.pop_first() {
            assert_eq!(addresses.remove(place), Some(slot));
        }
        assert!(addresses.is_empty());
    }

    #[test]
    fn addresses_when_in_order_then_chunks_are_full_and_when_most_go_then_merged() {
        let count = 40 * ADDRESSES_PER_CHUNK as u64;
        for down in [false, true] {
            let mut addresses = Addresses::default();
            for number in 0..count {
                let address = if down { count - number } else { number + 1 };
                assert!(addresses.insert((0, address), 1));
            }
            assert_eq!(addresses.chunks.len(), 40);
            (1..=count).filter(|at| at % 64 != 0).for_each(|at| {
                assert!(addresses.remove((0, at)).is_some());
            });
            assert!(addresses.chunks.len() <= 4, "{}", addresses.chunks.len());
        }
    }
}
