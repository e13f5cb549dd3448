//! Leases: each is in one list of its holder, the one that its record says, and in another one
//! while its holder is to be told of it. Must never give anybody a record to change, nor lose count
//! of those that a sweep is still to come to. A successor gets the records (`saved.rs`): another
//! field, or another order, is another format of the daemon's handover.

use std::ops::Deref;

use crate::api::{ClientId, LeaseId, NONE, Now};
use crate::books::check::Check;
use crate::books::lists::{Link, List, Nodes};
use crate::books::slots::{Flat, SavedSlots, Slots};
use crate::work::visit;
use fdbroker_protocol::MAX_BATCH;
use serde::{Deserialize, Serialize};

/// Lists that a lease can be in.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
enum LeaseList {
    /// Leases of its allocation.
    Allocation,
    /// One of the holder's shelves.
    Shelf,
    /// What the holder is to be asked for, or told of.
    Event,
}

const LEASE_LISTS: usize = 3;

/// An fd that was granted, from the grant until its client gives it back or is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// When it was granted.
    pub since: Now,
    /// Slot of its allocation.
    pub allocation: u32,
    /// Number of the client that it was granted to: its holder.
    pub client: u32,
    /// When its holder was asked to give it back, in the units of `moves::reclaiming`; 0 = never.
    pub asked: u32,
    /// The holder has imported the memory and closed the fd.
    pub mapped: bool,
    /// Its allocation has ended, and its holder is charged for the memory and told.
    pub ended: bool,
    /// It is of before a crash.
    pub declared: bool,
    #[serde(skip)]
    links: [Link; LEASE_LISTS],
}

// With its generation it is 56 bytes.
const _: () = assert!(size_of::<Lease>() == 48);

impl Lease {
    /// Whether its holder is still to be asked for it, or to be told of its end.
    pub fn is_to_tell(&self) -> bool {
        self.links[LeaseList::Event as usize].is_in()
    }

    fn shelf(&self) -> Shelf {
        if self.ended { Shelf::Ended } else { Shelf::of(self.mapped, self.asked != 0) }
    }
}

impl Flat for Lease {
    fn flat(&self) -> Self {
        Lease { ended: false, links: Default::default(), ..self.clone() }
    }
}

struct LeaseLinks<'a>(&'a mut Slots<Lease>, LeaseList);

impl Nodes for LeaseLinks<'_> {
    fn link(&mut self, node: u32) -> &mut Link {
        &mut self.0[node].links[self.1 as usize]
    }
}

/// Which of its holder's lists a lease is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Shelf {
    /// The holder has the fd open.
    Open,
    /// The same, and the holder was asked to give the lease back.
    AskedOpen,
    /// The holder has imported the memory and closed the fd.
    Mapped,
    /// The same, and the holder was asked to give the lease back.
    AskedMapped,
    /// Its allocation has ended.
    Ended,
}

impl Shelf {
    const COUNT: usize = 5;

    /// The shelf of a lease whose allocation has not ended.
    pub fn of(mapped: bool, asked: bool) -> Self {
        match (mapped, asked) {
            (false, false) => Shelf::Open,
            (true, false) => Shelf::Mapped,
            (false, true) => Shelf::AskedOpen,
            (true, true) => Shelf::AskedMapped,
        }
    }
}

/// What a client holds.
#[derive(Debug, Default)]
struct Holder {
    /// Its leases by [`Shelf`], the oldest first.
    shelves: [List; Shelf::COUNT],
    /// Leases that it is to be asked for; leases of ended allocations that it is to be told of.
    events: [List; 2],
}

/// The table of leases, which anybody may read, and their holders' lists.
#[derive(Debug, Default)]
pub struct Leases {
    table: Slots<Lease>,
    /// What each client holds, by its number; `None`: it has never held anything.
    holders: Vec<Option<Box<Holder>>>,
    /// How many leases of ended allocations the sweep has still to reach.
    unswept: u64,
}

impl Deref for Leases {
    type Target = Slots<Lease>;

    fn deref(&self) -> &Slots<Lease> {
        &self.table
    }
}

impl Leases {
    /// The table that [`Slots::save`] gave. No lease is in a list yet: see [`Leases::enter`].
    pub fn restore(saved: SavedSlots<Lease>) -> Check<Self> {
        Ok(Leases { table: Slots::restore(NONE, 0, saved)?, ..Leases::default() })
    }

    /// Puts a restored lease into its holder's lists. `is_to_tell`: the holder is still to be asked
    /// for it, or to be told of its end.
    pub fn enter(&mut self, lease: u32, ended: bool, is_to_tell: bool) {
        self.table[lease].ended = ended;
        self.shelve(lease);
        if is_to_tell {
            self.tell(lease);
        }
    }

    /// A new lease; its slot.
    pub fn insert(&mut self, client: u32, allocation: u32, since: Now, mapped: bool) -> u32 {
        let (asked, [ended, declared], links) = (0, [false; 2], Default::default());
        let lease = Lease { since, allocation, client, asked, mapped, ended, declared, links };
        let (lease, _) = self.table.insert(lease).expect("2^32 slots outlast memory");
        self.shelve(lease);
        lease
    }

    /// Its holder had it before a crash.
    pub fn declare(&mut self, lease: u32) {
        self.table[lease].declared = true;
    }

    /// Takes a lease out that is in no list of its allocation any more.
    pub fn remove(&mut self, lease: u32) {
        self.tell_no_more(lease);
        self.unshelve(lease);
        self.table.remove(lease);
    }

    /// The number of a lease in use.
    pub fn id_of(&self, lease: u32) -> LeaseId {
        LeaseId(u64::from(self.table.generation(lease)) << 32 | u64::from(lease))
    }

    /// The slot of a lease of this client; `None` when it has no such lease (any more).
    pub fn find(&self, client: ClientId, lease: LeaseId) -> Option<u32> {
        let (slot, generation) = (lease.0 as u32, (lease.0 >> 32) as u32);
        let record = self.table.get(slot, generation)?;
        (record.client == client.0).then_some(slot)
    }

    // --- holders ---------------------------------------------------------------------------------

    fn with_holder<R>(
        &mut self,
        lease: u32,
        list: LeaseList,
        work: impl FnOnce(&mut Holder, &mut LeaseLinks<'_>) -> R,
    ) -> R {
        visit(1);
        let place = self.table[lease].client as usize;
        if self.holders.len() <= place {
            self.holders.resize_with(place + 1, || None);
        }
        let holder = self.holders[place].get_or_insert_default();
        work(holder, &mut LeaseLinks(&mut self.table, list))
    }

    fn holder(&self, client: u32) -> Option<&Holder> {
        visit(1);
        self.holders.get(client as usize)?.as_deref()
    }

    /// Puts a lease on its holder's shelf, at the young end.
    fn shelve(&mut self, lease: u32) {
        let shelf = self.table[lease].shelf() as usize;
        self.with_holder(lease, LeaseList::Shelf, |it, links| it.shelves[shelf].push(links, lease));
    }

    fn unshelve(&mut self, lease: u32) {
        let shelf = self.table[lease].shelf() as usize;
        let list = LeaseList::Shelf;
        self.with_holder(lease, list, |it, links| it.shelves[shelf].remove(links, lease));
    }

    /// The holder's oldest lease on a shelf.
    pub fn oldest(&self, client: u32, shelf: Shelf) -> Option<u32> {
        self.holder(client)?.shelves[shelf as usize].first()
    }

    /// Whether a client has any on one of these shelves.
    pub fn has_any(&self, client: u32, shelves: [Shelf; 2]) -> bool {
        shelves.iter().any(|shelf| self.oldest(client, *shelf).is_some())
    }

    /// Any lease of a client.
    pub fn any_of(&self, client: u32) -> Option<u32> {
        self.holder(client)?.shelves.iter().find_map(List::first)
    }

    /// A client without leases is gone.
    pub fn forget_holder(&mut self, client: u32) {
        let Some(holder) = self.holders.get_mut(client as usize).and_then(Option::take) else {
            return;
        };
        assert!(holder.shelves.iter().chain(&holder.events).all(List::is_empty));
    }

    // --- what becomes of a lease -----------------------------------------------------------------

    /// It is imported now, and the fd closed that its holder may have been asked for.
    pub fn set_mapped(&mut self, lease: u32) {
        self.unshelve(lease);
        (self.table[lease].mapped, self.table[lease].asked) = (true, 0);
        self.shelve(lease);
    }

    /// Its holder is to be asked for it; whether there is nothing else that it is to be asked for.
    pub fn ask(&mut self, lease: u32, now: u32) -> bool {
        self.unshelve(lease);
        self.table[lease].asked = now;
        self.shelve(lease);
        self.tell(lease)
    }

    /// The sweep of its ended allocation has reached it; it is asked for no more.
    pub fn sweep(&mut self, lease: u32) {
        self.unswept -= 1;
        self.tell_no_more(lease);
        self.unshelve(lease);
        (self.table[lease].asked, self.table[lease].ended) = (0, true);
        self.shelve(lease);
    }

    /// So many leases have ended with their allocation.
    pub fn add_unswept(&mut self, count: u64) {
        self.unswept += count;
    }

    /// One of them is given back before the sweep has reached it.
    pub fn take_unswept(&mut self) {
        self.unswept -= 1;
    }

    /// Leases of ended allocations that the sweep has not reached.
    pub fn unswept(&self) -> u64 {
        self.unswept
    }

    // --- what holders are to be told -------------------------------------------------------------

    /// Its holder is to be asked for it, or to be told that it has ended; whether that is the first
    /// of its kind.
    pub fn tell(&mut self, lease: u32) -> bool {
        let ended = self.table[lease].ended;
        self.with_holder(lease, LeaseList::Event, |holder, links| {
            let list = &mut holder.events[usize::from(ended)];
            list.push(links, lease);
            list.len() == 1
        })
    }

    /// There is nothing to tell of it any more.
    pub fn tell_no_more(&mut self, lease: u32) {
        let Lease { ended, .. } = self.table[lease];
        if self.table[lease].is_to_tell() {
            self.with_holder(lease, LeaseList::Event, |holder, links| {
                holder.events[usize::from(ended)].remove(links, lease);
            });
        }
    }

    /// Leases that one message asks a client for, or ended ones that it tells the client of.
    pub fn take_events(&mut self, client: u32, ended: bool) -> Vec<u32> {
        let Some(holder) = self.holders.get_mut(client as usize).and_then(Option::as_mut) else {
            return Vec::new();
        };
        let list = &mut holder.events[usize::from(ended)];
        let links = &mut LeaseLinks(&mut self.table, LeaseList::Event);
        std::iter::from_fn(|| list.pop(links)).take(MAX_BATCH).collect()
    }

    // --- lists of allocations --------------------------------------------------------------------

    /// Adds a lease to the list of its allocation.
    pub fn push_to(&mut self, list: &mut List, lease: u32) {
        list.push(&mut LeaseLinks(&mut self.table, LeaseList::Allocation), lease);
    }

    /// The first of them, at most so many.
    pub fn first_of(&mut self, list: List, most: usize) -> Vec<u32> {
        let links = &mut LeaseLinks(&mut self.table, LeaseList::Allocation);
        let next = |lease: &u32| List::next(links, *lease);
        std::iter::successors(list.first(), next).take(most).collect()
    }

    /// Takes it out.
    pub fn remove_from(&mut self, list: &mut List, lease: u32) {
        list.remove(&mut LeaseLinks(&mut self.table, LeaseList::Allocation), lease);
    }

    // --- invariants ------------------------------------------------------------------------------

    /// All of an allocation's list, after walking it both ways.
    pub fn checked(&mut self, list: List) -> Vec<u32> {
        list.checked(&mut LeaseLinks(&mut self.table, LeaseList::Allocation))
    }

    /// Asserts that every lease is in the lists it belongs in, and nothing else is there.
    pub fn check(&mut self) {
        let mut shelved = 0;
        for (client, holder) in (0..).zip(&self.holders) {
            let Some(Holder { shelves, events }) = holder.as_deref() else { continue };
            for (shelf, list) in shelves.iter().enumerate() {
                for lease in list.checked(&mut LeaseLinks(&mut self.table, LeaseList::Shelf)) {
                    let right = (self.table[lease].client, self.table[lease].shelf() as usize);
                    assert_eq!(right, (client, shelf), "lease on a shelf");
                    shelved += 1;
                }
            }
            for (list, live) in events.iter().zip([true, false]) {
                for lease in list.checked(&mut LeaseLinks(&mut self.table, LeaseList::Event)) {
                    let Lease { client: of, asked, ended, .. } = self.table[lease];
                    assert_eq!((of, !ended), (client, live), "event of a lease");
                    assert!(!live || asked != 0, "to ask for, and not asked");
                }
            }
        }
        assert_eq!(shelved, self.table.len(), "leases on shelves");
    }
}
