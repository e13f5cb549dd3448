//! A client's live allocations by device and address, in 12 to 20 bytes each. Must never move more
//! than a chunk at a time.

use std::collections::BTreeMap;

use crate::limits::ADDRESSES_PER_CHUNK;

/// Device ordinal and address.
pub type Place = (u32, u64);

/// Sorted entries: the upper and the lower half of the address, and the slot.
type Chunk = Vec<[u32; 3]>;

/// Slots by device and address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// By a place that is not behind the first of the chunk, and behind the last of the chunk
    /// before. None is empty.
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

    /// Joins a chunk of few entries with the one behind it, or the one before, if that has room to
    /// spare.
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.chunks.values().map(Vec::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

#[cfg(test)]
#[path = "../../tests/unit/addresses.rs"]
mod tests;
