//! A slab whose slots carry generations: free slots are reused oldest first, a slot whose
//! generation is used up is retired. It grows by segments. Must never give out the same (slot,
//! generation) twice, nor move a value.

use std::ops::Range;

use crate::api::NONE;
use crate::books::check::{Check, RestoreError, ensure};
use crate::limits::SEGMENT_BYTES;
use crate::work::visit;
use fdbroker_protocol::page::LAST_GENERATION;
use serde::{Deserialize, Serialize};

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
pub struct SavedSlots<T> {
    /// Lowest generation ever given.
    pub first_generation: u32,
    free_head: u32,
    entries: Vec<Entry<T>>,
}

/// A record of which a successor gets a copy.
pub trait Flat {
    /// The record, with links, sums and whatever else is made from other records as in a new one.
    fn flat(&self) -> Self;
}

impl<T> Default for Slots<T> {
    /// As many as there is memory for, each used again at once.
    fn default() -> Self {
        Slots::new(NONE, 1, 0)
    }
}

impl<T> SavedSlots<T> {
    /// Slots ever used.
    pub fn slots(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry<T> {
    generation: u32,
    content: Content<T>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Content<T> {
    Full(T),
    /// `note`: see [`Slots::remove_noting`].
    Free {
        next: u32,
        note: u16,
    },
}

impl<T> Entry<T> {
    fn value(&self) -> Option<&T> {
        if let Content::Full(value) = &self.content { Some(value) } else { None }
    }
}

impl<T> Slots<T> {
    /// The slots of a segment, as a power of two.
    const SEGMENT: u32 = (SEGMENT_BYTES / size_of::<Entry<T>>()).ilog2();

    /// At most `most` slots, generations from `first_generation` (at least 1) on. While fewer than
    /// `spread` slots have been used none is used again: then the generation of none of them runs
    /// ahead.
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

    /// A table that holds given values, or notes of values that were removed, at given slots and
    /// generations, below `first_generation`, in the order of their slots. `None` when they cannot
    /// be held so.
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
                slots.push(Entry { generation: 0, content: Content::Free { next: NONE, note: 0 } });
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

    /// The table as plain data. Values that are not to be kept leave free slots, which are used
    /// next.
    pub fn save(&self, keep: impl Fn(&T) -> bool) -> SavedSlots<T>
    where
        T: Flat,
    {
        let mut free_head = self.free_head;
        let save = |(slot, Entry { generation, content }): (u32, &Entry<T>)| {
            let content = match content {
                Content::Full(value) if keep(value) => Content::Full(value.flat()),
                Content::Full(_) => {
                    Content::Free { next: std::mem::replace(&mut free_head, slot), note: 0 }
                }
                Content::Free { next, note } => Content::Free { next: *next, note: *note },
            };
            Entry { generation: *generation, content }
        };
        let entries = (0..).zip(self.entries()).map(save).collect();
        SavedSlots { first_generation: self.first_generation, free_head, entries }
    }

    /// The table of [`Slots::save`] again. `Err`: what contradicts itself, and at which slot.
    pub fn restore(most: u32, spread: u32, saved: SavedSlots<T>) -> Check<Self>
    where
        T: Flat,
    {
        let SavedSlots { first_generation, free_head, entries } = saved;
        let fits = entries.len() <= most as usize && first_generation > 0;
        ensure(fits, "slots beyond the last", most)?;
        let mut slots = Slots::new(most, first_generation, spread);
        let mut unlisted = 0;
        for mut entry in entries {
            let mut is_full = false;
            if let Content::Full(value) = &mut entry.content {
                (*value, is_full) = (value.flat(), true);
            }
            let is_sound = (u32::from(is_full)..=LAST_GENERATION).contains(&entry.generation);
            ensure(is_sound, "a slot's generation", slots.used)?;
            slots.len += usize::from(is_full);
            unlisted += u32::from(!is_full && entry.generation < LAST_GENERATION);
            slots.push(entry);
        }
        let mut next = free_head;
        while next != NONE {
            let following = match slots.entry(next) {
                // A list that goes round is longer than there are free slots.
                Some(Entry { generation, content: Content::Free { next, .. } })
                    if *generation < LAST_GENERATION && unlisted > 0 =>
                {
                    *next
                }
                _ => return Err(RestoreError::Broken("a free slot", next.into())),
            };
            unlisted -= 1;
            slots.free_tail = std::mem::replace(&mut next, following);
        }
        ensure(unlisted == 0, "slots that are neither free nor in use", unlisted)?;
        slots.free_head = free_head;
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
        self.entry(slot).filter(|entry| entry.generation == generation)?.value()
    }

    /// The value of a slot, if it is full.
    pub fn in_slot(&self, slot: u32) -> Option<&T> {
        self.entry(slot)?.value()
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
        self.in_slot(slot).is_some()
    }

    /// The generation of a slot; 0 if it was never used.
    pub fn generation(&self, slot: u32) -> u32 {
        self.entry(slot).map_or(0, |entry| entry.generation)
    }

    /// The full slots: for the rare walk that changes them.
    pub fn full(&self) -> Vec<u32> {
        self.iter_from(0).map(|(slot, _)| slot).collect()
    }

    /// Full slots from `from` on, in order.
    pub fn iter_from(&self, from: u32) -> impl Iterator<Item = (u32, &T)> {
        self.iter_within(from..self.slots())
    }

    /// Full slots of a range, in order. However few are full, the time is that of the range.
    pub fn iter_within(&self, slots: Range<u32>) -> impl Iterator<Item = (u32, &T)> {
        let slots = slots.start..slots.end.min(self.used);
        slots.filter_map(|slot| Some((slot, self.in_slot(slot)?)))
    }
}

/// A slot known to be full: internal links only ever point at such.
impl<T> std::ops::Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        self.in_slot(slot).unwrap_or_else(|| panic!("slot {slot} is free"))
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
#[path = "../../tests/unit/slots.rs"]
mod tests;
