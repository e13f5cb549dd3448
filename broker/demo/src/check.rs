//! Fills, checks and marks buffers, wherever their memory is. Must never check anything but the
//! memory itself.

use crate::error::Result;
use crate::memory::SharedMemory;
use crate::pattern::{BufferId, WORD};
use crate::plan::Plan;
use std::sync::atomic::AtomicU64;

impl Plan {
    /// Writes what buffer `id` is to contain.
    pub fn fill(&self, id: BufferId, memory: &dyn SharedMemory) -> Result<()> {
        memory.write(0, &self.pattern().contents(id, self.size()))
    }

    /// A reader's part: checks every word and leaves its mark. Returns how many words were wrong.
    pub fn check_and_mark(
        &self,
        reader: u32,
        id: BufferId,
        memory: &dyn SharedMemory,
    ) -> Result<u64> {
        let pattern = self.pattern();
        let wrong = self.look(memory, |words| pattern.check(reader, id, words))?;
        memory.write(reader as usize * WORD, &pattern.mark(reader, id).to_ne_bytes())?;
        Ok(wrong)
    }

    /// The owner's part at the end: the words that are wrong in all of its buffers.
    pub fn check_all_marks<'a>(
        &self,
        owner: u32,
        buffers: impl IntoIterator<Item = &'a dyn SharedMemory>,
    ) -> Result<u64> {
        let pattern = self.pattern();
        let check = |(buffer, memory): (u32, &dyn SharedMemory)| {
            let id = BufferId { owner, buffer };
            self.look(memory, |words| pattern.check_all_marks(id, words))
        };
        (0..).zip(buffers).map(check).sum()
    }

    /// Missing words are wrong, too.
    fn look(&self, memory: &dyn SharedMemory, check: impl Fn(&[AtomicU64]) -> u64) -> Result<u64> {
        let expected = self.size() / WORD;
        memory.look(&mut |words| check(words) + expected.saturating_sub(words.len()) as u64)
    }
}
