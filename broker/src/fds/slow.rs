//! Users whose closes take long, as the core knows them. Must never forget to look again while a lane is at work: a call that
//! hangs wakes nobody.

use crate::clock;
use crate::fds::closers::Closers;
use crate::limits::LANE_SLOW;
use fdbroker_core::Now;

/// See the module.
#[derive(Default)]
pub struct SlowLanes {
    uids: Vec<u32>,
    /// When to look again.
    next: Option<Now>,
}

impl SlowLanes {
    /// When to look again, if that is to be done.
    pub fn due(&self) -> Option<Now> {
        self.next
    }

    /// Looks if it is time to. Each user whose closes take long from now on, or no more.
    pub fn look(&mut self, closers: &Closers, now: Now) -> Vec<(u32, bool)> {
        if self.next.is_none() && closers.is_busy() {
            self.next = Some(clock::after(now, LANE_SLOW));
        }
        if !clock::is_due(self.next, now) {
            return Vec::new();
        }
        let (slow, is_at_it) = closers.slow();
        self.next = is_at_it.then(|| clock::after(now, LANE_SLOW));
        let former = std::mem::replace(&mut self.uids, slow);
        let slow = &self.uids;
        let all = former.iter().chain(slow);
        let changed = all.filter(|uid| former.contains(*uid) != slow.contains(*uid));
        changed.map(|uid| (*uid, slow.contains(uid))).collect()
    }
}
