//! What stands in every buffer and how it is checked: each 8-byte word is a function of (seed, owner,
//! buffer, index), the first word per rank is that rank's slot for its mark. Must never pass over a byte.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word, of a mark and of its slot.
pub const WORD_BYTES: u64 = 8;

/// 2^64 divided by the golden ratio: spreads consecutive indices over all bits (Knuth, 6.4).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The data of one run of the demo.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// Different in every run, so that a leftover of another run cannot pass.
    pub seed: u64,
    /// How many mark slots each buffer begins with.
    pub ranks: u32,
}

/// Which buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId {
    /// The rank that made it.
    pub owner: u32,
    /// Which of its buffers.
    pub buffer: u32,
}

/// SplitMix64's finalizer: every bit of the input reaches every bit of the output.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Pattern {
    fn key(&self, id: BufferId) -> u64 {
        mix(self.seed ^ mix(u64::from(id.owner) << 32 | u64::from(id.buffer)))
    }

    fn word(key: u64, index: usize) -> u64 {
        mix(key.wrapping_add((index as u64).wrapping_mul(GOLDEN)))
    }

    /// What `reader` leaves in its slot of a buffer. Never 0, which means "not yet".
    pub fn mark(&self, reader: u32, id: BufferId) -> u64 {
        mix(self.key(id) ^ mix(u64::from(reader) + 1)) | 1
    }

    /// Writes a new buffer: empty slots, then the data.
    pub fn fill(&self, id: BufferId, words: &[AtomicU64]) {
        let (slots, data) = self.split(words);
        for slot in slots {
            slot.store(0, Ordering::Relaxed);
        }
        let key = self.key(id);
        for (index, word) in data.iter().enumerate() {
            word.store(Self::word(key, index), Ordering::Relaxed);
        }
    }

    /// A reader's part: checks every word and leaves its mark. Returns how many words were wrong.
    pub fn check_and_mark(&self, reader: u32, id: BufferId, words: &[AtomicU64]) -> u64 {
        let (slots, data) = self.split(words);
        let mut wrong = 0;
        for (rank, slot) in (0..).zip(slots) {
            let found = slot.load(Ordering::Acquire);
            // The others may have been here already; this reader and the owner have not.
            let may_be_marked = rank != reader && rank != id.owner;
            let right = found == 0 || (may_be_marked && found == self.mark(rank, id));
            wrong += u64::from(!right);
        }
        wrong += self.count_wrong(id, data);
        if let Some(own) = slots.get(reader as usize) {
            own.store(self.mark(reader, id), Ordering::Release);
        }
        wrong
    }

    /// The owner's part at the end: every other rank's mark is there, and the data is still right.
    pub fn check_all_marks(&self, id: BufferId, words: &[AtomicU64]) -> u64 {
        let (slots, data) = self.split(words);
        let mut wrong = 0;
        for (rank, slot) in (0..).zip(slots) {
            let expected = if rank == id.owner { 0 } else { self.mark(rank, id) };
            wrong += u64::from(slot.load(Ordering::Acquire) != expected);
        }
        wrong + self.count_wrong(id, data)
    }

    /// Relaxed atomic loads: other processes map the same memory, so the compiler must not assume
    /// that it stands still.
    fn count_wrong(&self, id: BufferId, data: &[AtomicU64]) -> u64 {
        let key = self.key(id);
        let wrong = |(index, word): (usize, &AtomicU64)| {
            u64::from(word.load(Ordering::Relaxed) != Self::word(key, index))
        };
        data.iter().enumerate().map(wrong).sum()
    }

    /// Slots and data. A buffer smaller than its slots is refused before anything starts.
    fn split<'a>(&self, words: &'a [AtomicU64]) -> (&'a [AtomicU64], &'a [AtomicU64]) {
        words.split_at((self.ranks as usize).min(words.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATTERN: Pattern = Pattern { seed: 7, ranks: 3 };
    const ID: BufferId = BufferId { owner: 1, buffer: 5 };

    fn filled() -> Vec<AtomicU64> {
        let words: Vec<_> = (0..64).map(|_| AtomicU64::new(u64::MAX)).collect();
        PATTERN.fill(ID, &words);
        words
    }

    fn flip(word: &AtomicU64, bit: u32) {
        word.fetch_xor(1 << bit, Ordering::Relaxed);
    }

    #[test]
    fn check_when_every_reader_was_there_then_right_and_all_marks_found() {
        let words = filled();
        assert_eq!(PATTERN.check_and_mark(0, ID, &words), 0);
        assert_eq!(PATTERN.check_and_mark(2, ID, &words), 0);
        assert_eq!(PATTERN.check_all_marks(ID, &words), 0);
    }

    #[test]
    fn check_when_any_single_bit_of_the_data_flips_then_found() {
        let words = filled();
        for index in 3..words.len() {
            for bit in 0..64 {
                flip(&words[index], bit);
                assert_eq!(PATTERN.check_and_mark(0, ID, &words), 1, "word {index} bit {bit}");
                flip(&words[index], bit);
                words[0].store(0, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn check_when_a_slot_holds_something_else_then_found() {
        let words = filled();
        words[2].store(PATTERN.mark(0, ID), Ordering::Relaxed);
        assert_eq!(PATTERN.check_and_mark(0, ID, &words), 1, "another rank's mark");
        words[2].store(0, Ordering::Relaxed);
        assert_eq!(PATTERN.check_and_mark(0, ID, &words), 1, "this rank was here before");
        words[0].store(0, Ordering::Relaxed);
        words[1].store(1, Ordering::Relaxed);
        assert_eq!(PATTERN.check_and_mark(0, ID, &words), 1, "the owner leaves no mark");
    }

    #[test]
    fn check_all_marks_when_one_is_missing_then_found() {
        let words = filled();
        assert_eq!(PATTERN.check_and_mark(0, ID, &words), 0);
        assert_eq!(PATTERN.check_all_marks(ID, &words), 1);
    }

    #[test]
    fn check_when_the_memory_is_another_buffers_then_all_words_are_wrong() {
        let words = filled();
        for other in [BufferId { buffer: 6, ..ID }, BufferId { owner: 2, ..ID }] {
            words[0].store(0, Ordering::Relaxed);
            assert_eq!(PATTERN.check_and_mark(0, other, &words), 61);
        }
        let other_run = Pattern { seed: 8, ..PATTERN };
        words[0].store(0, Ordering::Relaxed);
        assert_eq!(other_run.check_and_mark(0, ID, &words), 61);
    }

    #[test]
    fn mark_when_reader_or_buffer_differs_then_differs_and_is_never_zero() {
        let mut seen = std::collections::HashSet::new();
        for owner in 0..8 {
            for buffer in 0..8 {
                for reader in 0..8 {
                    let mark = PATTERN.mark(reader, BufferId { owner, buffer });
                    assert!(mark != 0 && seen.insert(mark));
                }
            }
        }
    }
}
