//! Recalls under way, and those answered whose waiters have not all been served. Must never give
//! anybody a record to change, nor lose count of what an owner misses. A successor gets the records
//! (`saved.rs`): another field, or another order, is another format of the daemon's handover.

use std::ops::Deref;

use crate::api::{NONE, Now};
use crate::books::slots::{Flat, Slots};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// A recall under way, or one just answered whose waiters have not all been served: until they are,
/// the allocation is not evictable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recall {
    /// When it was asked for.
    pub since: Now,
    /// The queue of those that wait for it, or [`NONE`].
    pub waiting: u32,
    /// The queue of those that it was supplied for, and that wait for room; or none.
    pub pinned: u32,
    /// The client charged for the lease place that goes with it.
    pub promised_to: Option<u32>,
    /// The item that this is for, as long as it waits.
    pub promised_for: u32,
    /// When its owner counts as silent; `None` once that has passed, or it has been answered.
    pub deadline: Option<Now>,
    /// The deadline has passed, and the owner has not answered since.
    pub overdue: bool,
}

impl Recall {
    /// A recall that nobody waits for yet.
    pub fn begun(since: Now) -> Self {
        let (waiting, pinned, promised_for) = (NONE, NONE, NONE);
        let (promised_to, deadline, overdue) = (None, None, false);
        Recall { since, waiting, pinned, promised_to, promised_for, deadline, overdue }
    }

    /// Whether its place for a lease is charged to this client, and no item waits for it.
    pub fn is_promise_free(&self, client: u32) -> bool {
        self.promised_to == Some(client) && self.promised_for == NONE
    }
}

impl Flat for Recall {
    fn flat(&self) -> Self {
        let Recall { since, deadline, overdue, .. } = *self;
        Recall { deadline, overdue, ..Recall::begun(since) }
    }
}

/// The table of recalls, which anybody may read, and how many of them each owner misses.
#[derive(Debug, Default)]
pub struct Recalls {
    table: Slots<Recall>,
    /// How many each owner misses, by its number; never 0.
    overdue: FxHashMap<u32, u32>,
}

impl Deref for Recalls {
    type Target = Slots<Recall>;

    fn deref(&self) -> &Slots<Recall> {
        &self.table
    }
}

impl Recalls {
    /// A new recall of an owner's allocation; its number.
    pub fn begin(&mut self, owner: u32, recall: Recall) -> u32 {
        if recall.overdue {
            *self.overdue.entry(owner).or_default() += 1;
        }
        self.table.insert(recall).expect("recalls are fewer than slots").0
    }

    /// Removes a recall, with which nothing is promised any more, and which its owner does not
    /// miss.
    pub fn end(&mut self, number: u32) -> Recall {
        let recall = self.table.remove(number);
        assert!(recall.promised_to.is_none() && !recall.overdue, "what is left of recall {number}");
        recall
    }

    /// Sets the queue of those that wait for it, or none; gives the former one.
    pub fn set_waiting(&mut self, number: u32, queue: u32) -> u32 {
        std::mem::replace(&mut self.table[number].waiting, queue)
    }

    /// The queue of those that it was supplied for, or none.
    pub fn set_pinned(&mut self, number: u32, queue: u32) {
        self.table[number].pinned = queue;
    }

    /// The place for a lease that is charged to this client is for this item.
    pub fn promise(&mut self, number: u32, client: u32, node: u32) {
        let recall = &mut self.table[number];
        (recall.promised_to, recall.promised_for) = (Some(client), node);
    }

    /// Nothing is promised with it any more; the client that is charged for the place.
    pub fn take_promise(&mut self, number: u32) -> Option<u32> {
        let recall = &mut self.table[number];
        recall.promised_for = NONE;
        recall.promised_to.take()
    }

    /// When its owner counts as silent, or never; the former time.
    pub fn set_deadline(&mut self, number: u32, deadline: Option<Now>) -> Option<Now> {
        std::mem::replace(&mut self.table[number].deadline, deadline)
    }

    /// The owner has not answered it in time.
    pub fn miss(&mut self, number: u32, owner: u32) {
        let recall = &mut self.table[number];
        (recall.deadline, recall.overdue) = (None, true);
        *self.overdue.entry(owner).or_default() += 1;
    }

    /// The owner misses it no more. Whether it has missed this one, and misses no other.
    pub fn miss_no_more(&mut self, number: u32, owner: u32) -> bool {
        if !std::mem::take(&mut self.table[number].overdue) {
            return false;
        }
        let left = self.overdue.get_mut(&owner).expect("it was counted");
        *left -= 1;
        let is_last = *left == 0;
        if is_last {
            self.overdue.remove(&owner);
        }
        is_last
    }

    /// Asserts that what owners miss is counted. `owners`: those of overdue recalls.
    pub fn check(&self, owners: impl Iterator<Item = u32>) {
        let mut counted = FxHashMap::default();
        owners.for_each(|owner| *counted.entry(owner).or_default() += 1);
        assert_eq!(counted, self.overdue, "recalls that owners miss");
    }
}
