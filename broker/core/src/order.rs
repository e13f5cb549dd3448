//! The order in which fds are evicted: a queue of each owner, and an index of the owners for each scope. A grant only
//! marks the record of its allocation; the queue is mended when its oldest entry is looked at. Must never decide what
//! may be evicted.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Counts the allocations that were ever put into a queue. All ages are counted in these.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock(u64);

impl Clock {
    /// The next allocation is put into a queue.
    pub fn tick(&mut self) -> Stamp {
        self.0 += 1;
        Stamp { placed: self.0 as u32, used: 0 }
    }

    /// The number under which an allocation was put into its queue.
    pub fn place(self, stamp: Stamp) -> u64 {
        self.0 - u64::from((self.0 as u32).wrapping_sub(stamp.placed))
    }

    /// How many allocations have been put into a queue since this one was last used, or since it was put there itself.
    pub fn age(self, stamp: Stamp) -> u32 {
        let last = if stamp.is_used() { stamp.used } else { stamp.placed };
        (self.0 as u32).wrapping_sub(last)
    }
}

/// When an allocation was put into its queue, and when it was last granted since. Only the lower half of the clock: an
/// age of more than 2^32 is taken for a smaller one, which changes the order and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    #[serde(skip)]
    placed: u32,
    /// 0 = it was not granted since.
    #[serde(skip)]
    used: u32,
}

impl Stamp {
    /// The allocation is granted.
    pub fn mark_used(&mut self, clock: Clock) {
        self.used = (clock.0 as u32).max(1);
    }

    /// Whether it was granted since it was put into its queue.
    pub fn is_used(self) -> bool {
        self.used != 0
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
