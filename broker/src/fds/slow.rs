//! Users whose closes take long, as the core knows them. Must never forget to look again while a lane is at work: a call that
//! hangs wakes nobody.

use crate::clock;
use crate::fds::table::FdTable;
use crate::limits::LANE_SLOW;
use fdbroker_core::Now;

/// See the module.
#[derive(Default)]
pub(super) struct SlowLanes {
    uids: Vec<u32>,
    /// When to look again.
    next: Option<Now>,
}

impl FdTable {
    /// When to look at the lanes again, if that is to be done.
    pub fn lanes_due(&self) -> Option<Now> {
        self.slow.next
    }

    /// Looks at the lanes if it is time to. Each user whose closes take long from now on, or no more.
    pub fn look_at_lanes(&mut self) -> Vec<(u32, bool)> {
        let (now, next) = (self.now, &mut self.slow.next);
        if next.is_none() && self.closers.is_busy() {
            *next = Some(clock::after(now, LANE_SLOW));
        }
        if !clock::is_due(*next, now) {
            return Vec::new();
        }
        let (slow, is_at_it) = self.closers.slow();
        *next = is_at_it.then(|| clock::after(now, LANE_SLOW));
        let former = std::mem::replace(&mut self.slow.uids, slow);
        let slow = &self.slow.uids;
        let all = former.iter().chain(slow);
        let changed = all.filter(|uid| former.contains(*uid) != slow.contains(*uid));
        changed.map(|uid| (*uid, slow.contains(uid))).collect()
    }
}
