//! The registry: every allocation by its slot, and what belongs to it. An allocation with an owner
//! is in that one's list; while it lives it is found there by its address, and two live ones never
//! overlap. Must never give anybody a record to change: each change keeps the lists, the addresses
//! and the counts right.

use std::collections::BTreeMap;
use std::ops::Deref;

use crate::api::{Deposit, Granted, LeaseId, NONE, Now, Wanted};
use crate::books::addresses::{Addresses, Place};
use crate::books::allocation::{
    Allocation, AllocationLinks, AllocationList, DriverData, Orphan, State,
};
use crate::books::check::Check;
use crate::books::gpus::{Gpus, NO_GPU};
use crate::books::leases::Leases;
use crate::books::lists::List;
use crate::books::order::{Clock, Moment};
use crate::books::rounds::Rounds;
use crate::books::slots::{SavedSlots, Slots};
use crate::limits::SLOTS_BEFORE_REUSE;
use crate::work::visit;
use fdbroker_protocol::{AllocationId, ErrorCode, Facts, MAX_BATCH};

/// What a client owns.
#[derive(Debug, Default)]
struct Owner {
    /// All of them, ended ones included.
    all: List,
    /// Those that may be evicted, in the order in which they became so.
    evictable: List,
    /// Those to be recalled; those of which it is to be told that they are drained.
    events: [List; 2],
    /// Live ones with an address, by (device, address).
    by_base: Addresses,
}

/// All allocations. Anybody may read their table.
#[derive(Debug)]
pub struct Registry {
    table: Slots<Allocation>,
    /// By client number; `None`: it owns nothing.
    owners: Vec<Option<Box<Owner>>>,
    /// Of those that have some, by slot.
    driver_data: BTreeMap<u32, DriverData>,
    /// Kept ones without an owner, by slot; each counted by the job that has left it.
    orphans: BTreeMap<u32, Orphan>,
    /// Fds of allocations that the broker has; and of these, those of CUDA memory.
    held: u64,
    held_of_cuda: u64,
    /// What they are on. Who adds and removes charges the ledger.
    pub gpus: Gpus,
    /// Of the order of eviction.
    clock: Clock,
    /// Ended ones with leases whose holders are still to be charged and told.
    ending: Rounds,
}

impl Deref for Registry {
    type Target = Slots<Allocation>;

    fn deref(&self) -> &Slots<Allocation> {
        &self.table
    }
}

impl Registry {
    /// An empty one: see [`Slots::new`].
    pub fn new(most: u32, first_generation: u32) -> Self {
        Self::of(Slots::new(most, first_generation, SLOTS_BEFORE_REUSE))
    }

    /// One with these in their slots, which nobody owns: see [`Slots::holding`].
    pub fn holding(
        most: u32,
        first_generation: u32,
        values: impl Iterator<Item = (u32, u32, Result<Allocation, u16>)>,
    ) -> Option<Self> {
        Slots::holding(most, first_generation, SLOTS_BEFORE_REUSE, values).map(Self::of)
    }

    /// Those of [`Slots::save`] again; they are still to be entered at their owners.
    pub fn restore(most: u32, saved: SavedSlots<Allocation>) -> Check<Self> {
        Slots::restore(most, SLOTS_BEFORE_REUSE, saved).map(Self::of)
    }

    fn of(table: Slots<Allocation>) -> Self {
        let held = table.iter_from(0).filter(|(_, it)| it.is_held()).count() as u64;
        let of_cuda = table.iter_from(0).filter(|(_, it)| it.is_held_cuda());
        let held_of_cuda = of_cuda.count() as u64;
        let (owners, driver_data, orphans) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let (gpus, clock, ending) = (Gpus::default(), Clock::default(), Rounds::default());
        Registry { table, owners, driver_data, orphans, held, held_of_cuda, gpus, clock, ending }
    }

    /// Fds of allocations that the broker has.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Whether its fd is the only one of CUDA memory that the broker has.
    pub fn is_last_of_cuda(&self, slot: u32) -> bool {
        self.held_of_cuda == 1 && self.table[slot].is_held_cuda()
    }

    /// The allocation of an id, ended or not, if its slot is not free or another one's.
    pub fn find(&self, id: AllocationId) -> Option<&Allocation> {
        self.table.get(id.slot, id.generation)
    }

    /// The id of an allocation in use.
    pub fn id_of(&self, slot: u32) -> AllocationId {
        AllocationId { slot, generation: self.table.generation(slot) }
    }

    // --- beginning and end -----------------------------------------------------------------------

    /// A new allocation with an owner, where there is room for one.
    pub fn insert(&mut self, allocation: Allocation, data: Option<DriverData>) -> AllocationId {
        self.held += u64::from(allocation.is_held());
        self.held_of_cuda += u64::from(allocation.is_held_cuda());
        let (slot, generation) = self.table.insert(allocation).expect("has_room said so");
        self.set_driver_data(slot, data);
        self.enter(slot);
        AllocationId { slot, generation }
    }

    /// What waited for its owner is this from now on. It is entered at its owner, if it has one.
    pub fn replace(&mut self, slot: u32, new: Allocation, data: Option<DriverData>) {
        let gpu = self.table[slot].gpu;
        let former = std::mem::replace(&mut self.table[slot], Allocation { gpu, ..new });
        assert!(former.owner == NONE && !former.is_held(), "slot {slot} waits for nobody");
        self.held += u64::from(self.table[slot].is_held());
        self.held_of_cuda += u64::from(self.table[slot].is_held_cuda());
        self.set_driver_data(slot, data);
        if self.table[slot].owner != NONE {
            self.enter(slot);
        }
    }

    /// Where the fd is now.
    pub fn set_state(&mut self, slot: u32, state: State) {
        let allocation = &mut self.table[slot];
        self.held -= u64::from(allocation.is_held());
        self.held_of_cuda -= u64::from(allocation.is_held_cuda());
        allocation.state = state;
        self.held += u64::from(allocation.is_held());
        self.held_of_cuda += u64::from(allocation.is_held_cuda());
    }

    /// A live allocation ends; it stays at its owner, but for its address.
    pub fn end(&mut self, slot: u32, code: ErrorCode) {
        self.forget_address(slot);
        self.set_state(slot, State::Ended(code));
    }

    /// Frees the slot of an ended allocation without leases, and gives its owner and its domain.
    /// Who asks for it hears of its end until the slot is used again.
    pub fn free(&mut self, slot: u32) -> (u32, u32) {
        let Allocation { owner, domain, state, traits, recall, leases, .. } = self.table[slot];
        assert!(leases.is_empty() && recall == NONE);
        let State::Ended(code) = state else { unreachable!("it has ended") };
        if traits.has_driver_data() {
            self.driver_data.remove(&slot);
        }
        if owner != NONE {
            self.unlink(slot, AllocationList::Owned);
        }
        self.table.remove_noting(slot, code as u16);
        (owner, domain)
    }

    // --- what is said of it ----------------------------------------------------------------------

    /// The facts of an allocation in use.
    pub fn facts(&self, slot: u32) -> Facts {
        let allocation = &self.table[slot];
        allocation.facts(self.gpus.get(allocation.domain, allocation.gpu))
    }

    /// It is on this GPU from now on, by number; the former one.
    pub fn set_gpu(&mut self, slot: u32, gpu: u16) -> u16 {
        std::mem::replace(&mut self.table[slot].gpu, gpu)
    }

    /// What a new lease of it is told.
    pub fn granted(&self, slot: u32, wanted: Wanted, lease: LeaseId) -> Granted {
        let allocation = &self.table[slot];
        allocation.granted(self.gpus.get(allocation.domain, allocation.gpu), wanted, lease)
    }

    /// Driver data of an allocation.
    pub fn driver_data(&self, slot: u32) -> Option<&DriverData> {
        self.table[slot].traits.has_driver_data().then(|| self.driver_data.get(&slot))?
    }

    /// The same, where it is not there yet.
    pub fn set_driver_data(&mut self, slot: u32, data: Option<DriverData>) {
        if let Some(data) = data {
            self.driver_data.insert(slot, data);
        }
    }

    /// Driver data of all that have some, by slot.
    pub fn all_driver_data(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.driver_data.iter().map(|(slot, (len, bytes))| (*slot, &bytes[..usize::from(*len)]))
    }

    /// It is registered once more, maybe for a virtual fd now; `false`: it cannot be counted.
    #[must_use]
    pub fn register_again(&mut self, slot: u32, virtual_fd: bool) -> bool {
        let allocation = &mut self.table[slot];
        let Some(more) = allocation.registrations.checked_add(1) else { return false };
        allocation.registrations = more;
        if virtual_fd {
            allocation.traits.add_virtual_fd();
        }
        true
    }

    /// It is unregistered, and not for the last time.
    pub fn unregister(&mut self, slot: u32) {
        self.table[slot].registrations -= 1;
    }

    /// Its fd has come, with this offset.
    pub fn supplied(&mut self, slot: u32, fd_offset: u64) {
        self.table[slot].fd_offset = fd_offset;
    }

    /// What [`Allocation::file`] says.
    pub fn set_file(&mut self, slot: u32, file: u32) {
        self.table[slot].file = file;
    }

    /// Its recall from now on, or none; the former one.
    pub fn set_recall(&mut self, slot: u32, recall: u32) -> u32 {
        std::mem::replace(&mut self.table[slot].recall, recall)
    }

    // --- owners ----------------------------------------------------------------------------------

    fn owner(&self, number: u32) -> Option<&Owner> {
        visit(1);
        self.owners.get(number as usize)?.as_deref()
    }

    /// Works on a list of an allocation's owner.
    fn with_list<R>(
        &mut self,
        slot: u32,
        list: AllocationList,
        work: impl FnOnce(&mut List, &mut AllocationLinks<'_>) -> R,
    ) -> R {
        visit(1);
        let Allocation { owner, drained, .. } = self.table[slot];
        let place = owner as usize;
        if self.owners.len() <= place {
            assert!(owner != NONE, "only an owner's are in its lists");
            self.owners.resize_with(place + 1, || None);
        }
        let owner = self.owners[place].get_or_insert_default();
        let head = match list {
            AllocationList::Lru => &mut owner.evictable,
            AllocationList::Owned => &mut owner.all,
            AllocationList::Event => &mut owner.events[usize::from(drained)],
        };
        work(head, &mut AllocationLinks(&mut self.table, list))
    }

    /// Adds an allocation to one of its owner's lists, at the young end; whether it is the first
    /// there.
    fn link(&mut self, slot: u32, list: AllocationList) -> bool {
        self.with_list(slot, list, |head, links| {
            head.push(links, slot);
            head.len() == 1
        })
    }

    /// Takes an allocation out of one of its owner's lists, if it is in it.
    fn unlink(&mut self, slot: u32, list: AllocationList) {
        if self.table[slot].is_in(list) {
            self.with_list(slot, list, |head, links| head.remove(links, slot));
        }
    }

    /// Enters an allocation at its owner. If it lives the owner has nothing else at its address.
    pub fn enter(&mut self, slot: u32) {
        self.link(slot, AllocationList::Owned);
        let Allocation { owner, base, .. } = self.table[slot];
        let device = self.table[slot].device.into();
        if base != 0 && self.table[slot].is_live() {
            let owner = self.owners[owner as usize].as_mut().expect("it has a list just now");
            assert!(
                owner.by_base.insert((device, base), slot),
                "what was at this address has ended"
            );
        }
    }

    fn forget_address(&mut self, slot: u32) {
        let Allocation { owner, base, .. } = self.table[slot];
        let device = self.table[slot].device.into();
        if owner != NONE && base != 0 {
            let owner = self.owners[owner as usize].as_mut().expect("an owner has a list");
            let removed = owner.by_base.remove((device, base));
            assert!(removed == Some(slot), "a live allocation with an address is found by it");
        }
    }

    /// An allocation without an owner gets one, at this address there. One that has been reserved
    /// is of this size.
    pub fn give(&mut self, slot: u32, owner: u32, deposit: &Deposit) {
        let allocation = &mut self.table[slot];
        (allocation.owner, allocation.registrations) = (owner, 1);
        (allocation.device, allocation.base) = (deposit.device(), deposit.base);
        allocation.owner_allocation_id = deposit.facts.owner_allocation_id;
        if deposit.virtual_fd {
            allocation.traits.add_virtual_fd();
        }
        self.enter(slot);
    }

    /// The owner of an allocation is gone.
    pub fn take_from_owner(&mut self, slot: u32) {
        if self.table[slot].is_live() {
            self.forget_address(slot);
        } else if self.table[slot].drained {
            self.unlink(slot, AllocationList::Event);
        }
        self.unlink(slot, AllocationList::Owned);
        self.table[slot].owner = NONE;
    }

    /// A client that owns nothing any more is gone.
    pub fn forget_owner(&mut self, number: u32) {
        let Some(owner) = self.owners.get_mut(number as usize).and_then(Option::take) else {
            return;
        };
        let Owner { all, evictable, events, by_base } = *owner;
        assert!([all, evictable].iter().chain(&events).all(List::is_empty) && by_base.is_empty());
    }

    /// The allocation that the owner of one has registered next, ended ones included.
    pub fn registered_after(&self, slot: u32) -> Option<u32> {
        visit(1);
        self.table[slot].link(AllocationList::Owned).next()
    }

    /// Any allocation of a client.
    pub fn any_of(&self, owner: u32) -> Option<u32> {
        self.owner(owner)?.all.first()
    }

    /// The live allocation of a client at an address.
    pub fn at(&self, owner: u32, place: Place) -> Option<u32> {
        self.owner(owner)?.by_base.get(place)
    }

    /// A live allocation of a client that overlaps a range of addresses: device, address (0 = none)
    /// and bytes.
    pub fn overlapping(&self, owner: u32, range: (u32, u64, u64)) -> Option<u32> {
        let (device, base, bytes) = range;
        if base == 0 {
            return None;
        }
        // Live ranges do not overlap each other, so the last that begins before our end tells.
        let last = self.owner(owner)?.by_base.last_before((device, base + bytes))?;
        let Allocation { base: before, size_bytes, .. } = self.table[last];
        (before + size_bytes > base).then_some(last)
    }

    // --- orphans ---------------------------------------------------------------------------------

    /// A kept allocation without an owner.
    pub fn orphan(&self, slot: u32) -> Option<&Orphan> {
        self.orphans.get(&slot)
    }

    /// All of them.
    pub fn orphans(&self) -> &BTreeMap<u32, Orphan> {
        &self.orphans
    }

    /// It has an owner no more.
    pub fn add_orphan(&mut self, slot: u32, orphan: Orphan) {
        self.orphans.insert(slot, orphan);
    }

    /// It has an owner again, or has ended; it may have been no orphan.
    pub fn remove_orphan(&mut self, slot: u32) -> Option<Orphan> {
        self.orphans.remove(&slot)
    }

    // --- the order of eviction -------------------------------------------------------------------

    /// It is granted.
    pub fn mark_used(&mut self, slot: u32, now: Now) {
        let allocation = &mut self.table[slot];
        allocation.stamp.mark_used(now);
    }

    /// It may be evicted from now on, as the youngest of this owner's; `None`: it may not, since it
    /// is resident or waited for.
    pub fn enter_order(&mut self, slot: u32) -> Option<u32> {
        let allocation = &mut self.table[slot];
        if allocation.state != State::Held || allocation.recall != NONE {
            return None;
        }
        let owner = allocation.owner;
        self.clock.tick(&mut allocation.stamp);
        self.link(slot, AllocationList::Lru);
        Some(owner)
    }

    /// It is not to be evicted, and was of this owner's; `None`: it was not to be evicted before.
    pub fn leave_order(&mut self, slot: u32) -> Option<u32> {
        let allocation = &self.table[slot];
        let owner = allocation.owner;
        if !allocation.is_held() || !allocation.is_in(AllocationList::Lru) {
            return None;
        }
        self.with_list(slot, AllocationList::Lru, |head, links| head.remove(links, slot));
        Some(owner)
    }

    /// It is the youngest of its owner's.
    pub fn renew(&mut self, slot: u32) {
        self.clock.tick(&mut self.table[slot].stamp);
        self.with_list(slot, AllocationList::Lru, |head, links| {
            head.remove(links, slot);
            head.push(links, slot);
        });
    }

    /// The oldest of a client's that may be evicted.
    pub fn oldest(&self, owner: u32) -> Option<u32> {
        self.owner(owner)?.evictable.first()
    }

    /// Its place in the order, and how many there are.
    pub fn place_of_oldest(&self, owner: u32) -> Option<(u64, u64)> {
        let evictable = self.owner(owner)?.evictable;
        let oldest = evictable.first()?;
        Some((self.clock.place(self.table[oldest].stamp), evictable.len() as u64))
    }

    /// When it was used last, if it was since it may be evicted.
    pub fn last_use_in_order(&self, slot: u32) -> Option<Moment> {
        let stamp = self.table[slot].stamp;
        stamp.is_used().then(|| stamp.last_use())
    }

    // --- what owners are to be told --------------------------------------------------------------

    /// Its owner is to be asked for its fd; whether that one has nothing else to be asked.
    pub fn ask_for(&mut self, slot: u32) -> bool {
        self.link(slot, AllocationList::Event)
    }

    /// Its owner need not be asked any more.
    pub fn ask_no_more_for(&mut self, slot: u32) {
        self.unlink(slot, AllocationList::Event);
    }

    /// Its owner is to be told that it is drained; whether that one has nothing else to be told.
    pub fn drained(&mut self, slot: u32) -> bool {
        self.table[slot].drained = true;
        self.link(slot, AllocationList::Event)
    }

    /// What a client is to be asked for in one message, or to be told that it is drained.
    pub fn take_events(&mut self, owner: u32, drained: bool) -> Vec<u32> {
        let Some(owner) = self.owners.get_mut(owner as usize).and_then(Option::as_mut) else {
            return Vec::new();
        };
        let links = &mut AllocationLinks(&mut self.table, AllocationList::Event);
        let next = || owner.events[usize::from(drained)].pop(links);
        std::iter::from_fn(next).take(MAX_BATCH).collect()
    }

    // --- leases ----------------------------------------------------------------------------------

    /// It is leased once more.
    pub fn add_lease(&mut self, slot: u32, leases: &mut Leases, lease: u32) {
        let allocation = &mut self.table[slot];
        allocation.open += u32::from(!leases[lease].mapped);
        leases.push_to(&mut allocation.leases, lease);
    }

    /// A lease of it is given back.
    pub fn take_lease(&mut self, slot: u32, leases: &mut Leases, lease: u32) {
        let allocation = &mut self.table[slot];
        allocation.open -= u32::from(!leases[lease].mapped);
        leases.remove_from(&mut allocation.leases, lease);
    }

    /// An open lease of it is mapped now.
    pub fn map_lease(&mut self, slot: u32) {
        self.table[slot].open -= 1;
    }

    /// A lease of it goes behind the others.
    pub fn put_lease_last(&mut self, slot: u32, leases: &mut Leases, lease: u32) {
        let list = &mut self.table[slot].leases;
        leases.remove_from(list, lease);
        leases.push_to(list, lease);
    }

    // --- ended ones with leases that are still to be swept ---------------------------------------

    /// It has ended: its leases are to be swept.
    pub fn enter_ending(&mut self, slot: u32) {
        let domain = self.table[slot].domain;
        let links = &mut AllocationLinks(&mut self.table, AllocationList::Event);
        self.ending.push(domain, links, slot);
    }

    /// All its leases have been swept, or given back.
    pub fn leave_ending(&mut self, slot: u32) {
        let Allocation { domain, drained, .. } = self.table[slot];
        if !drained && self.table[slot].is_in(AllocationList::Event) {
            let links = &mut AllocationLinks(&mut self.table, AllocationList::Event);
            self.ending.remove(domain, links, slot);
        }
    }

    /// The next one, of the domain whose turn it is.
    pub fn next_ending(&self) -> Option<u32> {
        self.ending.first()
    }

    /// That domain has had its turn.
    pub fn end_turn_of_ending(&mut self) {
        self.ending.end_turn();
    }

    // --- invariants ------------------------------------------------------------------------------

    /// Asserts that every allocation is where it is looked for, and nothing else is there.
    pub fn check(&mut self) {
        let (mut owned, mut addresses, mut has_data) = (0, 0, 0);
        let (mut held, mut held_of_cuda) = (0, 0);
        for (slot, allocation) in self.table.iter_from(0) {
            let Allocation { owner, base, .. } = *allocation;
            let device = allocation.device.into();
            owned += usize::from(owner != NONE);
            assert_eq!(allocation.is_in(AllocationList::Owned), owner != NONE);
            if owner != NONE && base != 0 && allocation.is_live() {
                assert_eq!(self.at(owner, (device, base)), Some(slot), "found by its address");
                addresses += 1;
            }
            held += u64::from(allocation.is_held());
            held_of_cuda += u64::from(allocation.is_held_cuda());
            has_data += usize::from(self.driver_data(slot).is_some());
            let evictable = allocation.state == State::Held && allocation.recall == NONE;
            let is_in = allocation.is_held() && allocation.is_in(AllocationList::Lru);
            assert_eq!(is_in, evictable, "invariant 5: slot {slot} may be evicted");
        }
        let counted = (self.held, self.held_of_cuda);
        assert_eq!((held, held_of_cuda), counted, "invariant 4: fds held");
        assert_eq!(has_data, self.driver_data.len(), "driver data of nobody");
        let mut on_gpus = self.table.iter_from(0).filter(|(_, it)| it.gpu != NO_GPU).count();
        for (domain, gpu, count) in self.gpus.all() {
            let all = self.table.iter_from(0).map(|(_, it)| (it.domain, it.gpu));
            assert_eq!(all.filter(|it| *it == (domain, gpu)).count(), count as usize, "GPU {gpu}");
            on_gpus -= count as usize;
        }
        assert_eq!(on_gpus, 0, "allocations of no GPU of their domain");
        for (number, owner) in (0..).zip(&self.owners) {
            let Some(Owner { all, evictable, events, by_base }) = owner.as_deref() else {
                continue;
            };
            let mut walk =
                |list: &List, kind| list.checked(&mut AllocationLinks(&mut self.table, kind));
            owned -= walk(all, AllocationList::Owned).len();
            addresses -= by_base.len();
            let events = events.map(|list| walk(&list, AllocationList::Event));
            let evictable = walk(evictable, AllocationList::Lru);
            let places = evictable.iter().map(|slot| self.clock.place(self.table[*slot].stamp));
            assert!(
                places.is_sorted(),
                "invariant 5: the queue of client {number} is not in order"
            );
            let mut of_it = events.iter().flatten().chain(&evictable);
            assert!(of_it.all(|slot| self.table[*slot].owner == number), "another one's");
        }
        assert_eq!((owned, addresses), (0, 0), "at their owners, by their addresses");
    }
}
