//! Which files are of one memory: those of an allocation are, and so are those of allocations that
//! have one in common. Must never judge.

use super::ledger::MemoryKey;
use std::collections::BTreeMap;

/// Which files are of one memory: a union-find forest, the smallest key on top.
#[derive(Debug, Default)]
pub struct SameMemory(BTreeMap<MemoryKey, MemoryKey>);

impl SameMemory {
    /// The file that stands for the memory of this one; `None`: no allocation's.
    pub fn top(&self, mut key: MemoryKey) -> Option<MemoryKey> {
        // Ends: every step goes to a smaller key, but the last.
        loop {
            let above = *self.0.get(&key)?;
            if above == key {
                return Some(key);
            }
            key = above;
        }
    }

    /// These are all of one memory.
    pub fn join(&mut self, keys: impl Iterator<Item = MemoryKey>) {
        let mut joined: Option<MemoryKey> = None;
        for key in keys {
            let top = self.top(key).unwrap_or(key);
            let low = joined.map_or(top, |joined| joined.min(top));
            let high = joined.map_or(top, |joined| joined.max(top));
            self.0.insert(high, low);
            self.0.insert(low, low);
            joined = Some(low);
        }
    }

    /// One step to the top from everywhere.
    pub fn flatten(&mut self) {
        let keys: Vec<MemoryKey> = self.0.keys().copied().collect();
        for key in keys {
            if let Some(top) = self.top(key) {
                self.0.insert(key, top);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_protocol::MemoryKind;

    fn key(number: u64) -> MemoryKey {
        MemoryKey { kind: MemoryKind::DmaBuf, number }
    }

    #[test]
    fn top_when_joined_in_any_order_then_the_smallest_of_all() {
        let mut same = SameMemory::default();
        for group in [&[7, 8][..], &[3, 9], &[5], &[8, 9, 4]] {
            same.join(group.iter().map(|number| key(*number)));
        }
        for round in 0..2 {
            for number in [3, 4, 7, 8, 9] {
                assert_eq!(same.top(key(number)), Some(key(3)), "{number} {round}");
            }
            assert_eq!(same.top(key(5)), Some(key(5)));
            assert_eq!(same.top(key(6)), None);
            same.flatten();
        }
        assert_eq!(same.0[&key(9)], key(3), "one step");
    }
}
