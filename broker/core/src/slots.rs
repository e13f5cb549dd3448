//! A slab whose slots carry generations: free slots are reused oldest first, a slot whose generation is
//! used up is retired. It grows by segments. Must never give out the same (slot, generation) twice, nor move a value.

use crate::limits::SEGMENT_BYTES;
use fdbroker_protocol::page::LAST_GENERATION;
use serde::{Deserialize, Serialize};
use std::ops::Range;

use crate::work::visit;

/// No slot.
pub const NONE: u32 = u32::MAX;

/// A growing table of `T`, addressed by slot, checked by generation.
#[derive(Debug)]
pub struct Slots<T> {
    /// All but the last are full.
    segments: Vec<Vec<Entry<T>>>,
    /// Slots ever used.
    used: u32,
    /// So many slots are used before one is used again.
    spread: u32,
    first_generation: u32,
    most: u32,
    free_head: u32,
    free_tail: u32,
    len: usize,
}

/// A table as plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSlots<S> {
    /// Lowest generation ever given.
    pub first_generation: u32,
    /// Of every slot ever used; 0 = not yet.
    pub generations: Vec<u32>,
    /// Free slots, the next to be used first.
    pub free: Vec<u32>,
    /// Slots in use, in their order.
    pub full: Vec<(u32, S)>,
    /// Notes of slots that are not in use; 0 is not listed.
    pub notes: Vec<(u32, u16)>,
}

impl<S> Default for SavedSlots<S> {
    /// Of no table: none is made of it.
    fn default() -> Self {
        let (generations, free, full) = (Vec::new(), Vec::new(), Vec::new());
        SavedSlots { first_generation: 0, generations, free, full, notes: Vec::new() }
    }
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    content: Content<T>,
}

#[derive(Debug)]
enum Content<T> {
    Full(T),
    /// `note`: see [`Slots::remove_noting`].
    Free {
        next: u32,
        note: u16,
    },
}

/// A free slot that is in no list.
const fn out_of_lists<T>() -> Content<T> {
    Content::Free { next: NONE, note: 0 }
}

impl<T> Slots<T> {
    /// The slots of a segment, as a power of two.
    const SEGMENT: u32 = (SEGMENT_BYTES / size_of::<Entry<T>>()).ilog2();

    /// At most `most` slots, generations from `first_generation` (at least 1) on. While fewer than `spread` slots have
    /// been used none is used again: then the generation of none of them runs ahead.
    pub fn new(most: u32, first_generation: u32, spread: u32) -> Self {
        Slots {
            segments: Vec::new(),
            used: 0,
            spread: spread.min(most),
            first_generation,
            most,
            free_head: NONE,
            free_tail: NONE,
            len: 0,
        }
    }

    fn entry(&self, slot: u32) -> Option<&Entry<T>> {
        visit(1);
        let segment = self.segments.get((slot >> Self::SEGMENT) as usize)?;
        segment.get((slot & ((1 << Self::SEGMENT) - 1)) as usize)
    }

    fn entry_mut(&mut self, slot: u32) -> Option<&mut Entry<T>> {
        visit(1);
        let segment = self.segments.get_mut((slot >> Self::SEGMENT) as usize)?;
        segment.get_mut((slot & ((1 << Self::SEGMENT) - 1)) as usize)
    }

    /// The entry of a slot that the table itself knows to have been used.
    fn known(&mut self, slot: u32) -> &mut Entry<T> {
        self.entry_mut(slot).expect("a slot that was used")
    }

    /// Adds a slot that was never used.
    fn push(&mut self, entry: Entry<T>) {
        let most = 1 << Self::SEGMENT;
        match self.segments.last_mut().filter(|segment| segment.len() < most) {
            Some(segment) => segment.push(entry),
            None => {
                let mut segment = Vec::with_capacity(most);
                segment.push(entry);
                self.segments.push(segment);
            }
        }
        self.used += 1;
    }

    fn entries(&self) -> impl Iterator<Item = &Entry<T>> {
        self.segments.iter().flatten()
    }

    /// A table that holds given values, or notes of values that were removed, at given slots and generations, below
    /// `first_generation`, in the order of their slots. `None` when they cannot be held so.
    pub fn holding(
        most: u32,
        first_generation: u32,
        spread: u32,
        values: impl Iterator<Item = (u32, u32, Result<T, u16>)>,
    ) -> Option<Self> {
        let mut slots = Slots::new(most, first_generation, spread);
        for (slot, generation, value) in values {
            let fits =
                slot >= slots.slots() && slot < most && (1..first_generation).contains(&generation);
            if !fits {
                return None;
            }
            while slots.slots() < slot {
                let unused = slots.slots();
                slots.push(Entry { generation: 0, content: out_of_lists() });
                slots.append_free(unused);
            }
            match value {
                Ok(value) => {
                    slots.push(Entry { generation, content: Content::Full(value) });
                    slots.len += 1;
                }
                Err(note) => {
                    let content = Content::Free { next: NONE, note };
                    slots.push(Entry { generation, content });
                    slots.append_free(slot);
                }
            }
        }
        Some(slots)
    }

    /// The table as plain data, its values as `map` says.
    pub fn save<S>(&self, map: impl Fn(u32, &T) -> S) -> SavedSlots<S> {
        let mut free = Vec::new();
        let mut next = self.free_head;
        while next != NONE {
            free.push(next);
            next = match self.entry(next).map(|entry| &entry.content) {
                Some(Content::Free { next, .. }) => *next,
                _ => unreachable!("the free list holds free slots only"),
            };
        }
        SavedSlots {
            first_generation: self.first_generation,
            generations: self.entries().map(|entry| entry.generation).collect(),
            free,
            full: self.iter_from(0).map(|(slot, value)| (slot, map(slot, value))).collect(),
            notes: self.notes().collect(),
        }
    }

    fn notes(&self) -> impl Iterator<Item = (u32, u16)> {
        (0..).zip(self.entries()).filter_map(|(slot, entry)| match entry.content {
            Content::Free { note, .. } if note != 0 => Some((slot, note)),
            _ => None,
        })
    }

    /// The table of [`Slots::save`] again. `Err`: what contradicts itself, and at which slot.
    pub fn restore<S, E: From<(&'static str, u64)>>(
        most: u32,
        spread: u32,
        saved: SavedSlots<S>,
        mut map: impl FnMut(u32, S) -> Result<T, E>,
    ) -> Result<Self, E> {
        let SavedSlots { first_generation, generations, free, full, notes } = saved;
        let wrong = |what, slot: u32| Err(E::from((what, slot.into())));
        if generations.len() > most as usize || first_generation == 0 {
            return wrong("slots beyond the last", most);
        }
        let mut slots = Slots::new(most, first_generation, spread);
        let mut vacant: Vec<Option<T>> = Vec::new();
        vacant.resize_with(generations.len(), || None);
        let mut last = None;
        for (slot, value) in full {
            let generation = generations.get(slot as usize).copied().unwrap_or(0);
            if generation == 0 || last.is_some_and(|last| last >= slot) {
                return wrong("a slot in use", slot);
            }
            last = Some(slot);
            vacant[slot as usize] = Some(map(slot, value)?);
            slots.len += 1;
        }
        let mut retired = generations.len() - slots.len;
        for (generation, value) in generations.into_iter().zip(vacant) {
            let content = value.map_or(out_of_lists(), Content::Full);
            slots.push(Entry { generation, content });
        }
        for slot in free {
            let entry = slots.entry(slot);
            let is_free = entry.is_some_and(|entry| {
                matches!(entry.content, Content::Free { next: NONE, .. })
                    && entry.generation < LAST_GENERATION
            });
            // Only the last of the list has no next, as has one that is not in it.
            if !is_free || slots.free_tail == slot {
                return wrong("a free slot", slot);
            }
            slots.append_free(slot);
            retired -= 1;
        }
        let used_up = slots.entries().filter(|entry| {
            matches!(entry.content, Content::Free { .. }) && entry.generation == LAST_GENERATION
        });
        if used_up.count() != retired {
            return wrong("slots that are neither free nor in use", 0);
        }
        for (slot, saved) in notes {
            match slots.entry_mut(slot).map(|entry| &mut entry.content) {
                Some(Content::Free { note, .. }) => *note = saved,
                _ => return wrong("the note of a slot that is not free", slot),
            }
        }
        Ok(slots)
    }

    /// Adds a free slot at the end of those to be used again.
    fn append_free(&mut self, slot: u32) {
        match self.free_tail {
            NONE => self.free_head = slot,
            tail => match &mut self.known(tail).content {
                Content::Free { next, .. } => *next = slot,
                Content::Full(_) => unreachable!("the free list holds free slots only"),
            },
        }
        self.free_tail = slot;
    }

    /// Values in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Slots ever used: an upper bound for walking.
    pub fn slots(&self) -> u32 {
        self.used
    }

    /// Whether another value fits.
    pub fn has_room(&self) -> bool {
        self.free_head != NONE || self.used < self.most
    }

    /// Puts a value in; its slot and generation. `None` when full.
    pub fn insert(&mut self, value: T) -> Option<(u32, u32)> {
        if self.used < self.spread || self.free_head == NONE {
            let (slot, generation) = (self.used, self.first_generation);
            if slot >= self.most {
                return None;
            }
            self.push(Entry { generation, content: Content::Full(value) });
            self.len += 1;
            return Some((slot, generation));
        }
        let (slot, first) = (self.free_head, self.first_generation);
        let entry = self.known(slot);
        let Content::Free { next, .. } = entry.content else {
            unreachable!("the free list holds free slots only")
        };
        entry.generation = (entry.generation + 1).max(first);
        entry.content = Content::Full(value);
        let generation = entry.generation;
        self.free_head = next;
        if next == NONE {
            self.free_tail = NONE;
        }
        self.len += 1;
        Some((slot, generation))
    }

    /// Takes the value of a full slot out.
    pub fn remove(&mut self, slot: u32) -> T {
        self.remove_noting(slot, 0)
    }

    /// The same; [`Slots::note`] gives `note`, not 0, until the slot is used again.
    pub fn remove_noting(&mut self, slot: u32, note: u16) -> T {
        let entry = self.known(slot);
        let generation = entry.generation;
        let content = std::mem::replace(&mut entry.content, Content::Free { next: NONE, note });
        let Content::Full(value) = content else { panic!("slot {slot} is free already") };
        self.len -= 1;
        // A slot at the last generation is retired: it is on no free list for ever.
        if generation < LAST_GENERATION {
            self.append_free(slot);
        }
        value
    }

    /// The value of a slot, if it is full and of this generation.
    pub fn get(&self, slot: u32, generation: u32) -> Option<&T> {
        match self.entry(slot) {
            Some(Entry { generation: live, content: Content::Full(value) })
                if *live == generation =>
            {
                Some(value)
            }
            _ => None,
        }
    }

    /// The note of a slot whose last value was of this generation and was removed with one.
    pub fn note(&self, slot: u32, generation: u32) -> Option<u16> {
        match self.entry(slot) {
            Some(Entry { generation: last, content: Content::Free { note, .. } })
                if *last == generation && *note != 0 =>
            {
                Some(*note)
            }
            _ => None,
        }
    }

    /// Whether a slot has a value.
    pub fn is_full(&self, slot: u32) -> bool {
        matches!(self.entry(slot), Some(Entry { content: Content::Full(_), .. }))
    }

    /// The generation of a slot; 0 if it was never used.
    pub fn generation(&self, slot: u32) -> u32 {
        self.entry(slot).map_or(0, |entry| entry.generation)
    }

    /// Full slots from `from` on, in order.
    pub fn iter_from(&self, from: u32) -> impl Iterator<Item = (u32, &T)> {
        self.iter_within(from..self.slots())
    }

    /// Full slots of a range, in order. However few are full, the time is that of the range.
    pub fn iter_within(&self, slots: Range<u32>) -> impl Iterator<Item = (u32, &T)> {
        (slots.start..slots.end.min(self.used)).filter_map(|slot| match self.entry(slot) {
            Some(Entry { content: Content::Full(value), .. }) => Some((slot, value)),
            _ => None,
        })
    }
}

/// A slot known to be full: internal links only ever point at such.
impl<T> std::ops::Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        match self.entry(slot) {
            Some(Entry { content: Content::Full(value), .. }) => value,
            _ => panic!("slot {slot} is free"),
        }
    }
}

impl<T> std::ops::IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        match self.entry_mut(slot) {
            Some(Entry { content: Content::Full(value), .. }) => value,
            _ => panic!("slot {slot} is free"),
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/slots.rs"]
mod tests;
