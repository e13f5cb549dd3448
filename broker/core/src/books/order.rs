//! The order in which fds are evicted: a queue of each owner, and an index of the owners for each
//! scope. A grant only marks the record of its allocation; the queue is mended when its oldest
//! entry is looked at. Must never decide what may be evicted.

use std::collections::BTreeSet;

use crate::api::Now;
use serde::{Deserialize, Serialize};

/// Counts the allocations that were ever put into a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock(u64);

impl Clock {
    /// The next allocation is put into a queue.
    pub fn tick(&mut self, stamp: &mut Stamp) {
        self.0 += 1;
        *stamp = Stamp { placed: self.0 as u32, ..stamp.out_of_order() };
    }

    /// The number under which an allocation was put into its queue.
    pub fn place(self, stamp: Stamp) -> u64 {
        self.0 - u64::from((self.0 as u32).wrapping_sub(stamp.placed))
    }
}

/// A time in the life of an allocation, in units of 2^17 us (0.13 s): 31 bits are enough for 8.9
/// years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(u32);

impl Moment {
    /// The one that it is.
    pub fn of(now: Now) -> Self {
        Moment((now.0 >> 17) as u32 & (u32::MAX >> 1))
    }

    /// When it began.
    pub fn begin(self) -> Now {
        Now(u64::from(self.0) << 17)
    }
}

/// When an allocation was put into its queue, and when it was used last. Only the lower half of the
/// clock: an age of more than 2^32 is taken for a smaller one, which changes the order and nothing
/// else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    #[serde(skip)]
    placed: u32,
    /// The [`Moment`] twice, and 1 more if it was granted since it was put into its queue.
    used: u32,
}

impl Stamp {
    /// Of one that is registered now.
    pub fn of(now: Now) -> Self {
        Stamp { placed: 0, used: Moment::of(now).0 << 1 }
    }

    /// As it is before it is put into a queue.
    pub fn out_of_order(self) -> Self {
        Stamp { placed: 0, used: self.used & !1 }
    }

    /// The allocation is granted.
    pub fn mark_used(&mut self, now: Now) {
        self.used = Moment::of(now).0 << 1 | 1;
    }

    /// Whether it was granted since it was put into its queue.
    pub fn is_used(self) -> bool {
        self.used & 1 != 0
    }

    /// When it was granted last, or else registered.
    pub fn last_use(self) -> Moment {
        Moment(self.used >> 1)
    }
}

/// The owners in one scope that have something to evict, by the place of their oldest allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index(BTreeSet<(u64, u32)>);

impl Index {
    /// The first owner, with its place.
    pub fn first_key(&self) -> Option<(u64, u32)> {
        self.0.first().copied()
    }

    /// An owner's oldest allocation is another one; `None`: it has none.
    pub fn change(&mut self, owner: u32, from: Option<u64>, to: Option<u64>) {
        if let Some(from) = from {
            self.0.remove(&(from, owner));
        }
        if let Some(to) = to {
            self.0.insert((to, owner));
        }
    }

    /// Whether nobody here has anything to evict.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
