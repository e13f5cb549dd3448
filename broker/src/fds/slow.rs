//! Users whose closes take long, as the core knows them. Must never forget to look again while a
//! lane is at work: a call that hangs wakes nobody.

use crate::clock;
use crate::fds::closers::Closers;
use crate::fds::pool::LaneOf;
use crate::limits::{HUNG_CLOSE, LANE_SLOW};
use fdbroker_core::Now;

#[derive(Default)]
pub struct SlowLanes {
    uids: Vec<u32>,
    /// When to look again for users whose closes take long.
    next: Option<Now>,
    hung: Vec<LaneOf>,
    /// When to look again for jobs that hang.
    next_for_hung: Option<Now>,
}

/// What has changed since the look before.
#[derive(Debug, Default)]
pub struct LaneNews {
    /// Each user whose closes take long from now on, or no more.
    pub slow: Vec<(u32, bool)>,
    /// Each lane whose job hangs from now on.
    pub hung: Vec<LaneOf>,
}

impl SlowLanes {
    /// When to look again, if that is to be done.
    pub fn due(&self) -> Option<Now> {
        self.next.into_iter().chain(self.next_for_hung).min()
    }

    /// Lanes whose job hung at the last look.
    pub fn hung(&self) -> usize {
        self.hung.len()
    }

    /// Looks if it is time to.
    pub fn look(&mut self, closers: &mut Closers, now: Now) -> LaneNews {
        LaneNews { slow: self.look_for_slow(closers, now), hung: self.look_for_hung(closers, now) }
    }

    fn look_for_slow(&mut self, closers: &mut Closers, now: Now) -> Vec<(u32, bool)> {
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

    fn look_for_hung(&mut self, closers: &mut Closers, now: Now) -> Vec<LaneOf> {
        let mut news = Vec::new();
        if clock::is_due(self.next_for_hung, now) {
            self.next_for_hung = None;
            let former = std::mem::replace(&mut self.hung, closers.hung());
            news = self.hung.iter().filter(|of| !former.contains(of)).copied().collect();
        }
        if self.next_for_hung.is_none() && closers.is_busy() {
            self.next_for_hung = Some(clock::after(now, HUNG_CLOSE));
        }
        news
    }
}
