//! Rounds of looks at the memfds that are held: they can grow. Must never take long at a time.

use crate::clock;
use crate::fds::classify;
use crate::fds::table::FdTable;
use crate::limits::{FILES_PER_LOOK, FILES_ROUND, SLOTS_PER_LOOK};
use fdbroker_core::Now;
use fdbroker_protocol::MemoryKind;
use std::os::fd::AsFd;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rounds {
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
}

impl FdTable {
    /// When the next look at memfds is due.
    pub fn files_due(&self) -> Option<Now> {
        self.rounds.due
    }

    /// What some of the memfds pin now, bytes, by slot; `held`: how many fds there are.
    pub fn look_at_files(&mut self, held: u64) -> Vec<(u32, u64)> {
        let slots = self.held.len();
        let looks = 1 + (slots / SLOTS_PER_LOOK) as u64 + held / FILES_PER_LOOK as u64;
        let looks = u32::try_from(looks).unwrap_or(u32::MAX);
        self.rounds.due = (held > 0).then(|| clock::after(self.now, FILES_ROUND / looks));
        let (mut measured, from) = (Vec::new(), self.rounds.from);
        let end = slots.min(from + SLOTS_PER_LOOK);
        self.rounds.from = if end == slots { 0 } else { end };
        for slot in from..end {
            if measured.len() == FILES_PER_LOOK {
                self.rounds.from = slot;
                break;
            }
            if let (Some(MemoryKind::Memfd), Some(fd)) = (self.kinds[slot], &self.held[slot])
                && let Some(file) = classify::file_of(MemoryKind::Memfd, fd.as_fd())
                && let Ok(number) = u32::try_from(slot)
            {
                measured.push((number, file.pinned_bytes));
            }
        }
        measured
    }
}
