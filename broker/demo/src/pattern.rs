//! What is in every buffer and how it is checked. A buffer begins with one 8-byte slot for each
//! rank's mark; each word after them is a function of (seed, owner, buffer, index). Must never
//! leave a byte unchecked.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word, of a mark and of its slot.
pub const WORD: usize = size_of::<u64>();

/// 2^64 divided by the golden ratio: spreads consecutive indices over all bits (Knuth, 6.4).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The data of one run of the demo.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// Different in every run, so that a leftover of another run cannot pass.
    pub seed: u64,
    /// Slots at the beginning of each buffer, one for each rank.
    pub ranks: u32,
}

/// Names one buffer of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId {
    /// The rank that made it.
    pub owner: u32,
    /// Its number among the buffers of that rank, from 0.
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

    /// The bytes of a new buffer of `len` bytes: empty slots, then the data.
    pub fn contents(&self, id: BufferId, len: usize) -> Vec<u8> {
        let (key, slots) = (self.key(id), self.ranks as usize);
        let word =
            |index: usize| index.checked_sub(slots).map_or(0, |index| Self::word(key, index));
        (0..len / WORD).flat_map(|index| word(index).to_ne_bytes()).collect()
    }

    /// A reader's part, before it leaves its mark: checks every word. Returns how many were wrong.
    pub fn check(&self, reader: u32, id: BufferId, words: &[AtomicU64]) -> u64 {
        let may_be = |rank, found| {
            // The other readers may have been here already; this reader and the owner have not.
            let may_be_marked = rank != reader && rank != id.owner;
            found == 0 || (may_be_marked && found == self.mark(rank, id))
        };
        self.count_wrong(id, words, may_be)
    }

    /// The owner's part at the end: every other rank's mark is there, and the data is still right.
    pub fn check_all_marks(&self, id: BufferId, words: &[AtomicU64]) -> u64 {
        let expected = |rank| if rank == id.owner { 0 } else { self.mark(rank, id) };
        self.count_wrong(id, words, |rank, found| found == expected(rank))
    }

    /// Atomic loads: other processes map the same memory, so the compiler must not assume that it
    /// stands still. A buffer smaller than its slots is refused before anything starts.
    fn count_wrong(
        &self,
        id: BufferId,
        words: &[AtomicU64],
        is_right_mark: impl Fn(u32, u64) -> bool,
    ) -> u64 {
        let (slots, data) = words.split_at((self.ranks as usize).min(words.len()));
        let is_wrong = |(rank, slot): (u32, &AtomicU64)| {
            u64::from(!is_right_mark(rank, slot.load(Ordering::Acquire)))
        };
        let wrong_marks: u64 = (0..).zip(slots).map(is_wrong).sum();
        let key = self.key(id);
        let differs = |(index, word): (usize, &AtomicU64)| {
            u64::from(word.load(Ordering::Relaxed) != Self::word(key, index))
        };
        wrong_marks + data.iter().enumerate().map(differs).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATTERN: Pattern = Pattern { seed: 7, ranks: 3 };
    const ID: BufferId = BufferId { owner: 1, buffer: 5 };

    fn filled() -> Vec<AtomicU64> {
        let bytes = PATTERN.contents(ID, 64 * WORD);
        let (words, _) = bytes.as_chunks();
        words.iter().map(|word| AtomicU64::new(u64::from_ne_bytes(*word))).collect()
    }

    /// Checks, then leaves the mark, as a reader does.
    fn check_and_mark(pattern: Pattern, reader: u32, id: BufferId, words: &[AtomicU64]) -> u64 {
        let wrong = pattern.check(reader, id, words);
        words[reader as usize].store(pattern.mark(reader, id), Ordering::Relaxed);
        wrong
    }

    fn flip(word: &AtomicU64, bit: u32) {
        word.fetch_xor(1 << bit, Ordering::Relaxed);
    }

    #[test]
    fn check_when_every_reader_was_there_then_right_and_all_marks_found() {
        let words = filled();
        assert_eq!(check_and_mark(PATTERN, 0, ID, &words), 0);
        assert_eq!(check_and_mark(PATTERN, 2, ID, &words), 0);
        assert_eq!(PATTERN.check_all_marks(ID, &words), 0);
    }

    #[test]
    fn check_when_any_single_bit_of_the_data_flips_then_found() {
        let words = filled();
        for index in 3..words.len() {
            for bit in 0..64 {
                flip(&words[index], bit);
                assert_eq!(check_and_mark(PATTERN, 0, ID, &words), 1, "word {index} bit {bit}");
                flip(&words[index], bit);
                words[0].store(0, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn check_when_a_slot_holds_something_else_then_found() {
        let words = filled();
        words[2].store(PATTERN.mark(0, ID), Ordering::Relaxed);
        assert_eq!(check_and_mark(PATTERN, 0, ID, &words), 1, "another rank's mark");
        words[2].store(0, Ordering::Relaxed);
        assert_eq!(check_and_mark(PATTERN, 0, ID, &words), 1, "this rank was here before");
        words[0].store(0, Ordering::Relaxed);
        words[1].store(1, Ordering::Relaxed);
        assert_eq!(check_and_mark(PATTERN, 0, ID, &words), 1, "the owner leaves no mark");
    }

    #[test]
    fn check_all_marks_when_one_is_missing_then_found() {
        let words = filled();
        assert_eq!(check_and_mark(PATTERN, 0, ID, &words), 0);
        assert_eq!(PATTERN.check_all_marks(ID, &words), 1);
    }

    #[test]
    fn check_when_the_memory_is_another_buffers_then_all_words_are_wrong() {
        let words = filled();
        for other in [BufferId { buffer: 6, ..ID }, BufferId { owner: 2, ..ID }] {
            words[0].store(0, Ordering::Relaxed);
            assert_eq!(check_and_mark(PATTERN, 0, other, &words), 61);
        }
        let other_run = Pattern { seed: 8, ..PATTERN };
        words[0].store(0, Ordering::Relaxed);
        assert_eq!(check_and_mark(other_run, 0, ID, &words), 61);
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
