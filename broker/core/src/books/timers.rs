//! When the core has something to do: deadlines of single records, and chores that look at many,
//! again and again. Must never forget a time, nor keep one of what is no more.

use std::collections::BTreeSet;

use crate::api::Now;

/// What a deadline is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The parked request with this arrival number.
    Parked(u64),
    /// The recall of this slot and generation of an allocation.
    Recall(u32, u32),
    /// The end of a kept allocation without an owner: slot and generation.
    Keep(u32, u32),
    /// The end of a kept group of objects: slot and generation.
    Object(u32, u32),
    /// The end of the time for naming allocations again after a crash.
    Grace,
}

/// A look at many records. One that finds nothing more to do is not made again until there is a
/// reason.
#[derive(Clone, Copy, Debug)]
pub enum Chore {
    /// Whoever waits for leases to come back is seen to again.
    Reclaim,
    /// Accounts above their caps are brought down.
    Drain,
    /// A broker that is being drained gives up more.
    GiveUp,
}

const CHORES: usize = 3;

/// All times.
#[derive(Debug, Default)]
pub struct Timers {
    deadlines: BTreeSet<(Now, Timer)>,
    /// When each chore is due, if it is to be done.
    chores: [Option<Now>; CHORES],
}

impl Timers {
    /// A deadline.
    pub fn set(&mut self, at: Now, timer: Timer) {
        self.deadlines.insert((at, timer));
    }

    /// It counts no more; it may have passed.
    pub fn cancel(&mut self, at: Now, timer: Timer) {
        self.deadlines.remove(&(at, timer));
    }

    /// Whether it is still to come.
    pub fn has(&self, at: Now, timer: Timer) -> bool {
        self.deadlines.contains(&(at, timer))
    }

    /// Takes out the first deadline that has passed.
    pub fn pop_due(&mut self, now: Now) -> Option<Timer> {
        self.deadlines.first().filter(|(at, _)| *at <= now)?;
        self.deadlines.pop_first().map(|(_, timer)| timer)
    }

    /// When a chore is due, if it is to be done.
    pub fn chore(&self, chore: Chore) -> Option<Now> {
        self.chores[chore as usize]
    }

    /// A chore is due at this time, and not at another; `None`: it is not to be done.
    pub fn set_chore(&mut self, chore: Chore, at: Option<Now>) {
        self.chores[chore as usize] = at;
    }

    /// Whether a chore is due; then it is begun, and not due any more.
    pub fn begin_chore(&mut self, chore: Chore, now: Now) -> bool {
        self.chores[chore as usize].take_if(|at| *at <= now).is_some()
    }

    /// The next time of all.
    pub fn next_due(&self) -> Option<Now> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        self.chores.iter().copied().chain([deadline]).flatten().min()
    }
}
