//! What the core keeps of each lease, recall and parked request. Plain records; must never act by themselves. A successor
//! gets leases and recalls (`saved.rs`): another field, or another order, is another format of the daemon's handover.

use crate::api::{ClientId, Now, RequestId, Wanted};
use crate::ledger::Blocked;
use crate::lists::{Link, Nodes};
use crate::slots::{NONE, Slots};
use serde::{Deserialize, Serialize};

/// Lists that a lease can be in.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum LeaseList {
    /// Leases of its allocation.
    Allocation,
    /// Leases of its holder.
    Holder,
    /// The holder's revoked notices to send.
    Event,
}

const LEASE_LISTS: usize = 3;

/// One grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// When it was granted.
    pub since: Now,
    /// Slot of its allocation.
    pub allocation: u32,
    /// Its holder.
    pub client: u32,
    /// When its holder was asked to give it back, in [`crate::reclaim`]'s units; 0 = it was not.
    pub asked: u32,
    /// Imported, fd closed.
    pub mapped: bool,
    /// Its allocation has ended, and its holder is charged for the memory and told.
    pub ended: bool,
    /// Its places in the lists.
    pub links: [Link; LEASE_LISTS],
}

impl Lease {
    /// Whether it is in a list.
    pub fn is_in(&self, list: LeaseList) -> bool {
        self.links[list as usize].is_in()
    }
}

/// Leases seen through one of their lists.
pub struct LeaseLinks<'a>(pub &'a mut Slots<Lease>, pub LeaseList);

impl Nodes for LeaseLinks<'_> {
    fn link(&mut self, node: u32) -> &mut Link {
        &mut self.0[node].links[self.1 as usize]
    }
}

/// A recall under way, or one just answered whose waiters have not all been served: until they are,
/// the allocation is not evictable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recall {
    /// When it was asked for.
    pub since: Now,
    /// The queue of those that wait for it, or [`crate::slots::NONE`].
    pub waiting: u32,
    /// The queue of those that it was supplied for, and that wait for room; or none.
    pub pinned: u32,
    /// The client charged for the lease place that goes with it.
    pub promised_to: Option<u32>,
    /// The item that this is for, as long as it waits.
    pub promised_for: u32,
    /// When its owner counts as silent; `None` once that has passed, or it has been answered.
    pub deadline: Option<Now>,
    /// It has passed, and the owner has not answered since.
    pub overdue: bool,
}

impl Recall {
    /// One that nobody waits for yet.
    pub fn begun(since: Now) -> Self {
        let (waiting, pinned, promised_for) = (NONE, NONE, NONE);
        Recall {
            since,
            waiting,
            pinned,
            promised_to: None,
            promised_for,
            deadline: None,
            overdue: false,
        }
    }
}

/// An fd in the closers.
#[derive(Clone, Copy, Debug)]
pub struct Closing {
    /// The domain it came from.
    pub domain: u32,
    /// The client charged for its place, by number and serial: once that is gone its domain alone is.
    /// `None`: it came without a place. [`crate::slots::NONE`]: its domain alone was charged from the beginning.
    pub client: Option<(u32, u64)>,
    /// Counted among the domain's refused ones: its close may hang.
    pub refused: bool,
}

/// What a parked request wants.
#[derive(Clone, Debug)]
pub enum Wish {
    /// Fds: the items of an acquire.
    Acquire(Box<[Wanted]>),
    /// Credits for that many deposits.
    Credits(u64),
    /// To be let in, with that many fds of its own.
    Hello(u64),
}

/// What a parked request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A recall alone.
    Recall,
    /// Room in an account.
    Room(Blocked),
    /// More room in an account than a request takes: it holds up no other request.
    Space(Blocked),
    /// Its client to read.
    Reader,
}

/// A parked request: holds nothing but its place in the queue.
#[derive(Debug)]
pub struct Parked {
    /// Whose.
    pub client: ClientId,
    /// The client's number for it.
    pub request: RequestId,
    /// When it is answered in any case.
    pub deadline: Now,
    /// What it wants.
    pub wish: Wish,
    /// Its items in the queues of [`crate::waiting`], in its order; [`crate::slots::NONE`]: in none.
    pub nodes: Box<[u32]>,
    /// What it waits for.
    pub wait: Wait,
    /// Accounts of which it is looked at, too, when something comes back, and when it was last: see [`crate::fairness`].
    pub listens: Box<[(Blocked, u64)]>,
    /// It waits for room to take a fd that was supplied for it: goes before the others.
    pub supplied: bool,
}

impl Parked {
    /// A request that has just come to wait.
    pub fn new(
        client: ClientId,
        request: RequestId,
        deadline: Now,
        wish: Wish,
        wait: Wait,
    ) -> Self {
        let (nodes, listens, supplied) = (Box::default(), Box::default(), false);
        Parked { client, request, deadline, wish, nodes, wait, listens, supplied }
    }
}
