//! A slab whose slots carry generations: free slots are reused oldest first, a slot whose generation is
//! used up is retired. Must never give out the same (slot, generation) twice.

/// No slot.
pub const NONE: u32 = u32::MAX;

/// A growing table of `T`, addressed by slot, checked by generation.
#[derive(Debug)]
pub struct Slots<T> {
    entries: Vec<Entry<T>>,
    first_generation: u32,
    most: u32,
    free_head: u32,
    free_tail: u32,
    len: usize,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    content: Content<T>,
}

#[derive(Debug)]
enum Content<T> {
    Full(T),
    Free { next: u32 },
}

impl<T> Slots<T> {
    /// At most `most` slots, generations from `first_generation` (at least 1) on.
    pub fn new(most: u32, first_generation: u32) -> Self {
        let entries = Vec::new();
        Slots { entries, first_generation, most, free_head: NONE, free_tail: NONE, len: 0 }
    }

    /// Values in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Slots ever used: an upper bound for walking.
    pub fn slots(&self) -> u32 {
        u32::try_from(self.entries.len()).expect("at most `most` slots")
    }

    /// Whether another value fits.
    pub fn has_room(&self) -> bool {
        self.free_head != NONE || self.slots() < self.most
    }

    /// Puts a value in; its slot and generation. `None` when full.
    pub fn insert(&mut self, value: T) -> Option<(u32, u32)> {
        if self.free_head == NONE {
            let slot = self.slots();
            if slot >= self.most {
                return None;
            }
            let generation = self.first_generation;
            self.entries.push(Entry { generation, content: Content::Full(value) });
            self.len += 1;
            return Some((slot, generation));
        }
        let slot = self.free_head;
        let entry = &mut self.entries[slot as usize];
        let Content::Free { next } = entry.content else {
            unreachable!("the free list holds free slots only")
        };
        entry.generation += 1;
        entry.content = Content::Full(value);
        self.free_head = next;
        if next == NONE {
            self.free_tail = NONE;
        }
        self.len += 1;
        Some((slot, entry.generation))
    }

    /// Takes the value of a full slot out.
    pub fn remove(&mut self, slot: u32) -> T {
        let entry = &mut self.entries[slot as usize];
        let content = std::mem::replace(&mut entry.content, Content::Free { next: NONE });
        let Content::Full(value) = content else { panic!("slot {slot} is free already") };
        self.len -= 1;
        // A slot at the last generation is retired: it is on no free list for ever.
        if entry.generation < u32::MAX {
            match self.free_tail {
                NONE => self.free_head = slot,
                tail => self.entries[tail as usize].content = Content::Free { next: slot },
            }
            self.free_tail = slot;
        }
        value
    }

    /// The value of a slot, if it is full and of this generation.
    pub fn get(&self, slot: u32, generation: u32) -> Option<&T> {
        match self.entries.get(slot as usize) {
            Some(Entry { generation: live, content: Content::Full(value) })
                if *live == generation =>
            {
                Some(value)
            }
            _ => None,
        }
    }

    /// The generation of a slot ever used.
    pub fn generation(&self, slot: u32) -> u32 {
        self.entries[slot as usize].generation
    }

    /// Full slots from `from` on, in order.
    pub fn iter_from(&self, from: u32) -> impl Iterator<Item = (u32, &T)> {
        (from..self.slots()).filter_map(|slot| match &self.entries[slot as usize].content {
            Content::Full(value) => Some((slot, value)),
            Content::Free { .. } => None,
        })
    }
}

/// A slot known to be full: internal links only ever point at such.
impl<T> std::ops::Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        match &self.entries[slot as usize].content {
            Content::Full(value) => value,
            Content::Free { .. } => panic!("slot {slot} is free"),
        }
    }
}

impl<T> std::ops::IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        match &mut self.entries[slot as usize].content {
            Content::Full(value) => value,
            Content::Free { .. } => panic!("slot {slot} is free"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insert_when_several_are_free_then_takes_the_oldest() {
        let mut slots = Slots::new(8, 1);
        for value in 0..4 {
            assert_eq!(slots.insert(value), Some((value, 1)));
        }
        slots.remove(2);
        slots.remove(0);
        assert_eq!(slots.insert(7), Some((2, 2)));
        assert_eq!(slots.insert(8), Some((0, 2)));
        assert_eq!(slots.insert(9), Some((4, 1)));
    }

    #[test]
    fn get_when_the_generation_is_old_then_none() {
        let mut slots = Slots::new(8, 5);
        let (slot, generation) = slots.insert('a').expect("room");
        slots.remove(slot);
        slots.insert('b').expect("room");
        assert_eq!(slots.get(slot, generation), None);
        assert_eq!(slots.get(slot, generation + 1), Some(&'b'));
    }

    #[test]
    fn remove_when_the_generation_is_used_up_then_the_slot_is_retired() {
        let mut slots = Slots::new(1, u32::MAX);
        let (slot, generation) = slots.insert(1).expect("room");
        assert_eq!(generation, u32::MAX);
        slots.remove(slot);
        assert_eq!(slots.insert(2), None);
        assert!(!slots.has_room());
    }
}
