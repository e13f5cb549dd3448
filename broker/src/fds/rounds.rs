//! Rounds of looks at the memfds that are held: they can grow. Must never take long at a time.

use crate::clock;
use crate::fds::classify;
use crate::limits::{FILES_PER_LOOK, FILES_ROUND, SLOTS_PER_LOOK};
use fdbroker_core::Now;
use fdbroker_protocol::MemoryKind;
use std::os::fd::{AsFd, OwnedFd};

#[derive(Debug, Default)]
pub struct Rounds {
    /// `None`: no fd is held.
    due: Option<Now>,
    /// The slot at which the round goes on.
    from: usize,
}

impl Rounds {
    /// An fd is held from now on.
    pub fn begin(&mut self, now: Now) {
        self.due.get_or_insert(now);
    }

    /// When the next look is due.
    pub fn due(&self) -> Option<Now> {
        self.due
    }

    /// What some of the memfds pin now, bytes, by slot; `stored`: how many fds there are.
    pub fn look(
        &mut self,
        held: &[Option<OwnedFd>],
        kinds: &[Option<MemoryKind>],
        stored: u64,
        now: Now,
    ) -> Vec<(u32, u64)> {
        let looks = 1 + (held.len() / SLOTS_PER_LOOK) as u64 + stored / FILES_PER_LOOK as u64;
        let looks = u32::try_from(looks).unwrap_or(u32::MAX);
        self.due = (stored > 0).then(|| clock::after(now, FILES_ROUND / looks));
        let (mut measured, from) = (Vec::new(), self.from);
        let end = held.len().min(from + SLOTS_PER_LOOK);
        self.from = if end == held.len() { 0 } else { end };
        for slot in from..end {
            if measured.len() == FILES_PER_LOOK {
                self.from = slot;
                break;
            }
            if let (Some(MemoryKind::Memfd), Some(fd)) = (kinds[slot], &held[slot])
                && let Some(file) = classify::file_of(MemoryKind::Memfd, fd.as_fd())
                && let Ok(number) = u32::try_from(slot)
            {
                measured.push((number, file.pinned_bytes));
            }
        }
        measured
    }
}
