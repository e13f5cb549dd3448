//! The LRU of held allocations and eviction from it, in the scope whose cap is in the way. Must never evict
//! what cannot be had again: resident, waited for, or of an owner that does not answer.

use crate::Core;
use crate::api::{Effect, Effects, Lane, Wanted};
use crate::ledger::{Blocked, Charge, Holder};
use crate::limits::EVICTIONS_PER_STEP;
use crate::lists::List;
use crate::slots::NONE;
use crate::state::{Allocation, AllocationLinks, AllocationList, State};
use fdbroker_protocol::Resource;
use fdbroker_protocol::admin::EventKind;

impl Core {
    /// Works on one of the lists that an allocation may be in.
    fn with_list(
        &mut self,
        slot: u32,
        list: AllocationList,
        work: impl FnOnce(&mut List, &mut AllocationLinks<'_>),
    ) {
        let Allocation { owner, domain, drained, .. } = self.allocations[slot];
        let Core { allocations, clients, domains, jobs, lru, .. } = self;
        // A kept allocation may be without one: it is in no list of an owner's.
        let owner = clients.get_mut(owner as usize).and_then(|client| client.as_deref_mut());
        let owner = || owner.expect("only a living owner's are in its lists");
        let head = match list {
            AllocationList::NodeLru => lru,
            AllocationList::DomainLru => &mut domains[domain].lru,
            AllocationList::JobLru => {
                let job = owner().job.expect("only a job's are in its list");
                &mut jobs[job].lru
            }
            AllocationList::OwnerLru => &mut owner().lru,
            AllocationList::Owned => &mut owner().owned,
            AllocationList::Event if drained => &mut owner().drained,
            AllocationList::Event => &mut owner().recalls,
        };
        work(head, &mut AllocationLinks(allocations, list));
    }

    /// Adds an allocation to one of its lists, at the young end.
    pub(crate) fn link(&mut self, slot: u32, list: AllocationList) {
        self.with_list(slot, list, |head, links| head.push(links, slot));
    }

    /// Takes an allocation out of one of its lists, if it is in it.
    pub(crate) fn unlink(&mut self, slot: u32, list: AllocationList) {
        if self.allocations[slot].is_in(list) {
            self.with_list(slot, list, |head, links| head.remove(links, slot));
        }
    }

    /// Makes a held allocation evictable, as the most recently used. Resident ones and those that are
    /// waited for stay out.
    pub(crate) fn lru_insert(&mut self, slot: u32) {
        let allocation = &self.allocations[slot];
        if allocation.state != State::Held || allocation.recall != NONE {
            return;
        }
        let owner = allocation.owner;
        self.link(slot, AllocationList::OwnerLru);
        if !self.client_mut(owner).silent {
            self.link_shared(slot);
        }
    }

    /// Adds an allocation to the lists of those that its owner is one of.
    fn link_shared(&mut self, slot: u32) {
        self.link(slot, AllocationList::NodeLru);
        self.link(slot, AllocationList::DomainLru);
        let owner = self.allocations[slot].owner;
        if self.client_mut(owner).job.is_some() {
            self.link(slot, AllocationList::JobLru);
        }
    }

    fn unlink_shared(&mut self, slot: u32) {
        for list in [AllocationList::NodeLru, AllocationList::DomainLru, AllocationList::JobLru] {
            self.unlink(slot, list);
        }
    }

    /// Makes an allocation not evictable.
    pub(crate) fn lru_remove(&mut self, slot: u32) {
        self.unlink_shared(slot);
        self.unlink(slot, AllocationList::OwnerLru);
    }

    /// Marks an evictable allocation as used just now.
    pub(crate) fn lru_touch(&mut self, slot: u32) {
        let lists = [AllocationList::NodeLru, AllocationList::DomainLru, AllocationList::JobLru];
        for list in lists.into_iter().chain([AllocationList::OwnerLru]) {
            if self.allocations[slot].is_in(list) {
                self.with_list(slot, list, |head, links| head.touch(links, slot));
            }
        }
    }

    /// The owner does not answer, or answers again: its held allocations leave or join the lists of the node, the
    /// domain and the job. As many steps as it has evictable ones, which its caps and the fd table bound.
    pub(crate) fn set_silent(&mut self, owner: u32, silent: bool) {
        if std::mem::replace(&mut self.client_mut(owner).silent, silent) == silent {
            return;
        }
        self.something_ended |= silent;
        let mut at = self.client_mut(owner).lru.first();
        while let Some(slot) = at {
            match silent {
                true => self.unlink_shared(slot),
                false => self.link_shared(slot),
            }
            let mut links = AllocationLinks(&mut self.allocations, AllocationList::OwnerLru);
            at = List::next(&mut links, slot);
        }
    }

    /// The least recently used evictable allocation in the account's scope that `keep` does not want.
    fn victim(&mut self, account: Holder, keep: &[Wanted]) -> Option<u32> {
        let (list, kind) = match account {
            Holder::Node => (self.lru, AllocationList::NodeLru),
            Holder::Domain(domain) => (self.domains[domain].lru, AllocationList::DomainLru),
            Holder::Job(job) => (self.jobs[job].lru, AllocationList::JobLru),
            Holder::Client(client) => {
                let client = self.clients[client as usize].as_deref();
                let client = client.filter(|client| !client.silent)?;
                (client.lru, AllocationList::OwnerLru)
            }
        };
        let mut at = list.first();
        // Passes over at most the items of one request.
        while let Some(slot) = at {
            let generation = self.allocations.generation(slot);
            let wanted =
                |item: &Wanted| item.is_ok_and(|id| id.slot == slot && id.generation == generation);
            if !keep.iter().any(wanted) {
                return Some(slot);
            }
            at = List::next(&mut AllocationLinks(&mut self.allocations, kind), slot);
        }
        None
    }

    /// Closes the broker's fd of an allocation; the owner can be asked for it again. Leases stand.
    pub(crate) fn evict(&mut self, slot: u32, fx: &mut Effects) {
        assert!(
            self.allocations[slot].state == State::Held,
            "invariant 5: only held fds are evicted"
        );
        self.lru_remove(slot);
        self.allocations[slot].state = State::Evicted;
        self.counters.evictions += 1;
        self.note_of_allocation(EventKind::Evict, slot);
        self.close_held(slot, fx);
    }

    /// The fd of a slot goes to the closer; its bytes are free at once, its place when it is closed.
    pub(crate) fn close_held(&mut self, slot: u32, fx: &mut Effects) {
        let allocation = &self.allocations[slot];
        let (owner, domain, size) = (allocation.owner, allocation.domain, allocation.size_bytes);
        self.release_allocation_charge(slot, Charge(Resource::HeldBytes, size));
        self.held_now -= 1;
        let ticket = match owner {
            NONE => self.closing_of_domain(domain),
            owner => self.closing(owner, Lane::Accepted),
        };
        fx.list.push(Effect::CloseHeld { slot, ticket });
    }

    /// Starts up to `count` evictions that will help against `blocked`, sparing what `keep` wants; says
    /// how many. An fd freed this way is room only when its closer reports it. Where no eviction helps, clients are
    /// asked for leases.
    pub(crate) fn evict_for(
        &mut self,
        blocked: Blocked,
        count: usize,
        keep: &[Wanted],
        fx: &mut Effects,
    ) -> usize {
        let helps = matches!(
            blocked.resource,
            Resource::Fds | Resource::HeldFds | Resource::HeldBytes | Resource::TableFds
        );
        if !helps {
            self.reclaim(blocked, count);
            return 0;
        }
        let mut evicted = 0;
        while evicted < count.min(EVICTIONS_PER_STEP)
            && let Some(slot) = self.victim(blocked.account, keep)
        {
            self.evict(slot, fx);
            evicted += 1;
        }
        if evicted == 0 && count > 0 && self.closing_in(blocked.account) == 0 {
            self.reclaim(blocked, count);
        }
        evicted
    }

    /// Whether a client's caps admit an fd of this size when nothing else is held.
    fn fits_at_all(&mut self, owner: u32, size: u64) -> bool {
        let domain = self.client_mut(owner).domain;
        let accounts = self.accounts(Some(owner), domain);
        accounts.levels().into_iter().flatten().all(|(_, _, caps)| size <= caps.held_bytes)
    }

    /// Charges the bytes of an fd about to be held, evicting others until they fit if it may.
    pub(crate) fn charge_bytes(
        &mut self,
        owner: u32,
        size: u64,
        may_evict: bool,
        keep: &[Wanted],
        fx: &mut Effects,
    ) -> Result<(), Blocked> {
        let fits_at_all = self.fits_at_all(owner, size);
        let mut evicted = 0;
        loop {
            let blocked = match self.charge(owner, Charge(Resource::HeldBytes, size)) {
                Ok(()) => return Ok(()),
                Err(blocked) => blocked,
            };
            if !may_evict || !fits_at_all || evicted >= EVICTIONS_PER_STEP {
                return Err(blocked);
            }
            if self.evict_for(blocked, 1, keep, fx) == 0 {
                return Err(blocked);
            }
            evicted += 1;
        }
    }
}
