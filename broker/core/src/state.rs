//! What the core keeps of each allocation, lease, recall and parked request. Plain records; must never
//! act by themselves. A successor gets the tables of these records (`saved.rs`): another field of allocations, leases, recalls
//! or orphans, or another order of them, is another format of the daemon's handover.

use crate::api::{ClientId, Now, RequestId, Wanted};
use crate::ledger::Blocked;
use crate::lists::{Link, List, Nodes};
use crate::order::Stamp;
use crate::slots::{NONE, Slots};
use fdbroker_protocol::{ErrorCode, MemoryKind, Share};
use serde::{Deserialize, Serialize};

/// Where an allocation's fd is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// The broker has it and can get it again.
    Held,
    /// The broker has it and cannot get it again.
    Resident,
    /// The broker has closed it.
    Evicted,
    /// A place is reserved and the owner is asked, see [`Recall`].
    Recalling,
    /// Of before a crash, and its owner has not named it again yet: no fd, no owner.
    Reserved,
    /// The allocation has ended, for this reason; leases or its drained notice are still out.
    Ended(#[serde(with = "crate::saved::error_code")] ErrorCode),
}

/// Lists that an allocation can be in.
#[derive(Clone, Copy, Debug)]
pub enum AllocationList {
    /// All allocations of the owner, ended ones included.
    Owned,
    /// What may be evicted of the owner's: held, recallable, not waited for.
    Lru,
    /// The owner's recalls to send; when it has ended, those whose leases are still to be swept; then the owner's drained
    /// notices to send.
    Event,
}

impl AllocationList {
    /// Which of its links an allocation is in this list by. The last two share one: what is held has no event to send.
    fn link(self) -> usize {
        match self {
            AllocationList::Owned => 0,
            AllocationList::Lru | AllocationList::Event => 1,
        }
    }
}

const ALLOCATION_LINKS: usize = 2;

/// What was said of an allocation when it was registered, in one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traits(u8);

impl Traits {
    /// Packs them.
    pub fn new(
        kind: MemoryKind,
        share: Share,
        recallable: bool,
        keep: bool,
        driver_data: bool,
    ) -> Self {
        let flags = u8::from(recallable) << 5 | u8::from(keep) << 6 | u8::from(driver_data) << 7;
        Traits(kind as u8 | (share as u8) << 3 | flags)
    }

    /// Whether [`Traits::new`] could have packed it.
    pub fn is_sound(self) -> bool {
        let (kind, share) = (self.0 & 7, self.0 >> 3 & 3);
        MemoryKind::from_number(kind).is_some() && Share::from_number(share).is_some()
    }

    /// What it is.
    pub fn kind(self) -> MemoryKind {
        MemoryKind::from_number(self.0 & 7).expect("packed by `new`")
    }

    /// Who may have it.
    pub fn share(self) -> Share {
        Share::from_number(self.0 >> 3 & 3).expect("packed by `new`")
    }

    /// The owner can give its fd again.
    pub fn is_recallable(self) -> bool {
        self.0 & 1 << 5 != 0
    }

    /// It outlives its owner, and is never evicted.
    pub fn is_to_be_kept(self) -> bool {
        self.0 & 1 << 6 != 0
    }

    /// There is driver data of it.
    pub fn has_driver_data(self) -> bool {
        self.0 & 1 << 7 != 0
    }
}

/// One piece of memory. Kept small: there may be a million. Without gaps, as its generation goes before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(Rust, packed(4))]
pub struct Allocation {
    /// Bytes.
    pub size_bytes: u64,
    /// Bytes.
    pub fd_offset: u64,
    /// The owner's id.
    pub owner_allocation_id: u64,
    /// Address in the owner, 0 = none.
    pub base: u64,
    /// Owner's number; [`crate::slots::NONE`] once it is gone, and while nobody has named it again.
    pub owner: u32,
    /// Owner's domain, also after the owner is gone.
    pub domain: u32,
    /// Owner's device ordinal.
    pub device: u32,
    /// Registrations not yet taken back.
    pub registrations: u32,
    /// While it is held, its stake in [`crate::files`], or [`crate::slots::NONE`]: it pins its size. While it is not, pages
    /// that its file pinned when it was held last, or none.
    pub file: u32,
    /// Its recall under way, or [`crate::slots::NONE`].
    #[serde(skip)]
    pub recall: u32,
    /// The queue of those that want it and wait for something else, or [`crate::slots::NONE`].
    #[serde(skip)]
    pub interest: u32,
    /// Open leases.
    #[serde(skip)]
    pub open: u32,
    /// All leases.
    pub leases: List,
    /// Its places in the lists.
    pub links: [Link; ALLOCATION_LINKS],
    /// Its place in the order of eviction.
    pub stamp: Stamp,
    /// Where the fd is.
    pub state: State,
    /// What was said of it.
    pub traits: Traits,
    /// Ended, drained, and its owner is to be told: in the owner's drained list.
    pub drained: bool,
}

// With its generation and the niche of its state it is 108 bytes.
const _: () = assert!(size_of::<Allocation>() <= 104);

impl Allocation {
    /// Whether it has not ended.
    pub fn is_live(&self) -> bool {
        !matches!(self.state, State::Ended(_))
    }

    /// Whether the broker has its fd.
    pub fn is_held(&self) -> bool {
        matches!(self.state, State::Held | State::Resident)
    }

    /// Whether it counts among those that outlive their owner.
    pub fn is_kept(&self) -> bool {
        self.traits.is_to_be_kept() && self.is_live()
    }

    /// Whether it lives on when its owner is gone: kept, and its fd is here.
    pub fn outlives_owner(&self) -> bool {
        self.traits.is_to_be_kept() && self.state == State::Resident
    }

    /// Whether it is in a list.
    pub fn is_in(&self, list: AllocationList) -> bool {
        self.link(list).is_in()
    }

    /// Its place in a list.
    pub fn link(&self, list: AllocationList) -> Link {
        self.links[list.link()]
    }
}

/// Allocations seen through one of their lists.
pub struct AllocationLinks<'a>(pub &'a mut Slots<Allocation>, pub AllocationList);

impl Nodes for AllocationLinks<'_> {
    fn link(&mut self, node: u32) -> &mut Link {
        &mut self.0[node].links[self.1.link()]
    }
}

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
    /// It waits for room to take a fd that was supplied for it: goes before the others.
    pub supplied: bool,
}

/// A kept allocation whose owner is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// When it ends.
    pub until: Now,
    /// Its owner's group.
    pub gid: u32,
    /// Its owner's job, by number.
    pub job: Option<u32>,
}
