//! Rounds of looks at the memfds that are held: they can grow. Must never take long at a time.

use crate::clock;
use crate::fds::table::FdTable;
use crate::limits::FILES_ROUND;
use fdbroker_core::Now;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
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

    /// What some of the memfds pin now, bytes, by slot; `held`: how many fds there are.
    pub fn look(&mut self, fds: &FdTable, held: u64, now: Now) -> Vec<(u32, u64)> {
        let (measured, next) = fds.measure(self.from);
        self.from = next;
        let looks = u32::try_from(fds.looks_in_a_round(held)).unwrap_or(u32::MAX);
        self.due = (held > 0).then(|| clock::after(now, FILES_ROUND / looks));
        measured
    }
}
