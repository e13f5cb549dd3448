//! The invariants, asserted: cheaply after every step, and whole on demand. Must never change anything.

use std::collections::BTreeMap;

use crate::Core;
use crate::clients::CONNECTION;
use crate::continuity::Grace;
use crate::ledger::{Account, Charge, Holder};
use crate::limits::{FDS_PER_CONNECTION, TABLE_RESERVE};
use crate::lists::Nodes;
use crate::order::Index;
use crate::rooms::items_of;
use crate::slots::NONE;
use crate::state::{
    AllocationLinks, AllocationList, Client, LeaseLinks, LeaseList, Queued, State, Timer, Wait,
    Wish,
};
use crate::waiting::Fate;
use fdbroker_protocol::Resource;

impl Core {
    /// What can be asserted in no time, after every step.
    pub(crate) fn assert_invariants(&mut self) {
        let held = self.node.now(Resource::HeldFds);
        let planned = held + self.table.connections + TABLE_RESERVE;
        assert!(planned <= self.config.table_fds, "invariant 1: the table needs {planned} fds");
        self.node.assert_growth_within(&self.config.node, &"the node");
        assert!(self.held_now + self.closings.len() as u64 <= held + self.table.refused);
    }

    /// Recomputes every sum from what there is and walks every list both ways. Takes time in
    /// proportion to all there is: for the simulator and for tests.
    ///
    /// # Panics
    /// On the first difference, naming the invariant.
    pub fn check_invariants(&mut self) {
        self.assert_invariants();
        self.node.assert_within(&self.config.node, &"the node");
        assert!(self.table_now() <= self.table.peak, "more of the table is in use than ever was");
        self.check_sums();
        self.check_lists();
        self.check_parked();
        self.check_ownerless();
    }

    fn check_sums(&mut self) {
        let mut clients = vec![Account::default(); self.clients.len()];
        let mut domains = vec![Account::default(); self.domains.slots() as usize];
        let mut node = Account::default();
        let mut add = |client: Option<u32>, domain: u32, charge| {
            if let Some(client) = client {
                clients[client as usize].add(charge);
            }
            domains[domain as usize].add(charge);
            node.add(charge);
        };
        let domain_of =
            |client: u32| self.clients[client as usize].as_deref().expect("exists").domain;
        let (mut held, mut refused) = (0, 0);
        for (_, allocation) in self.allocations.iter_from(0) {
            let owner = (allocation.owner != NONE).then_some(allocation.owner);
            add(owner, allocation.domain, Charge(Resource::Allocations, 1));
            add(
                owner,
                allocation.domain,
                Charge(Resource::KeptAllocations, allocation.is_kept().into()),
            );
            if allocation.is_held() || allocation.state == State::Recalling {
                add(owner, allocation.domain, Charge(Resource::HeldFds, 1));
                add(owner, allocation.domain, Charge(Resource::HeldBytes, allocation.size_bytes));
            }
            held += u64::from(allocation.is_held());
        }
        let (mut unswept, mut pinned) = (0, Vec::new());
        for (_, lease) in self.leases.iter_from(0) {
            let domain = domain_of(lease.client);
            let charge = if lease.mapped {
                Charge(Resource::MappedLeases, 1)
            } else {
                Charge(Resource::OpenLeases, 1)
            };
            add(Some(lease.client), domain, charge);
            let allocation = &self.allocations[lease.allocation];
            assert!(!lease.ended || !allocation.is_live(), "a lease ended before its allocation");
            if lease.ended {
                let charge = Charge(Resource::PinnedBytes, allocation.size_bytes);
                pinned.push((lease.client, domain, charge));
            } else if !allocation.is_live() {
                unswept += 1;
                assert!(allocation.is_in(AllocationList::Event), "a lease that no sweep comes to");
            }
        }
        for (_, recall) in self.recalls.iter_from(0) {
            if let Some(client) = recall.promised_to {
                add(Some(client), domain_of(client), Charge(Resource::OpenLeases, 1));
            }
        }
        for (_, closing) in self.closings.iter_from(0) {
            add(None, closing.domain, Charge(Resource::RefusedFds, closing.refused.into()));
            let Some((number, serial)) = closing.client else {
                refused += 1;
                continue;
            };
            let client = self.clients.get(number as usize).and_then(Option::as_deref);
            let client = client.filter(|client| client.serial == serial).map(|_| number);
            add(client, closing.domain, Charge(Resource::HeldFds, 1));
        }
        let mut connections = 0;
        for (number, client) in (0..).zip(&self.clients) {
            let Some(client) = client.as_deref() else { continue };
            add(Some(number), client.domain, Charge(Resource::HeldFds, client.credits));
            add(Some(number), client.domain, Charge(Resource::OwnFds, client.own_fds));
            add(Some(number), client.domain, CONNECTION);
            let parked = client.parked.len() as u64;
            add(Some(number), client.domain, Charge(Resource::ParkedRequests, parked));
            for seq in &client.parked {
                add(Some(number), client.domain, items_of(&self.parked[seq].wish));
            }
            connections += FDS_PER_CONNECTION;
        }
        // The node counts memory once, however many leases pin it.
        for (client, domain, charge) in pinned {
            clients[client as usize].add(charge);
            domains[domain as usize].add(charge);
        }
        let ended = self.allocations.iter_from(0).map(|(_, allocation)| allocation);
        for allocation in ended.filter(|it| !it.is_live() && !it.leases.is_empty()) {
            node.add(Charge(Resource::PinnedBytes, allocation.size_bytes));
        }
        assert_eq!(unswept, self.leases_ending, "leases that a sweep is still to come to");
        for (number, client) in self.clients.iter().enumerate() {
            let Some(client) = client.as_deref() else { continue };
            assert!(client.account.same_now(&clients[number]), "invariant 3: client {number}");
            client.account.assert_within(&self.config.client, &("client", number));
        }
        self.check_jobs(&clients);
        for (number, domain) in self.domains.iter_from(0) {
            let same = domain.account.same_now(&domains[number as usize]);
            assert!(same, "invariant 3: {:?}", domain.key);
            domain.account.assert_within(&self.config.domain, &domain.key);
        }
        node.add(Charge(Resource::Domains, self.domains.len() as u64));
        assert!(self.node.same_now(&node), "invariant 3: the node");
        assert_eq!((held, refused), (self.held_now, self.table.refused), "invariant 4: fds held");
        assert_eq!(connections, self.table.connections, "invariant 1: connections");
    }

    /// Kept allocations without an owner, and those of before a crash.
    fn check_ownerless(&self) {
        let (mut orphans, mut reserved) = (0, 0);
        for (slot, allocation) in self.allocations.iter_from(0) {
            if allocation.state == State::Reserved {
                assert!(self.continuity.gid_of(slot).is_some(), "slot {slot} waits for nobody");
                reserved += 1;
            }
            if allocation.owner != NONE || !allocation.is_live() {
                assert!(
                    !self.orphans.contains_key(&slot),
                    "slot {slot} has an owner, or has ended"
                );
                continue;
            }
            let Some(orphan) = self.orphans.get(&slot) else {
                assert!(allocation.state == State::Reserved, "slot {slot} lives without an owner");
                continue;
            };
            let generation = self.allocations.generation(slot);
            let timer = (orphan.until, Timer::Keep(slot, generation));
            assert!(self.outlives_owner(slot), "kept slot {slot}");
            let domain = self.domains[allocation.domain].key;
            let is_its = orphan.job.is_none_or(|job| self.jobs[job].key.0 == domain);
            assert!(is_its, "slot {slot} was left by a job of another domain");
            assert!(self.timers.contains(&timer), "slot {slot} is kept for ever");
            orphans += 1;
        }
        assert_eq!((orphans, reserved), (self.orphans.len(), self.reserved()), "ownerless slots");
        match self.continuity.grace() {
            Grace::None => assert_eq!(reserved, 0, "slots are reserved for ever"),
            Grace::Until(at) => assert!(self.timers.contains(&(at, Timer::Grace))),
            Grace::Ending(_) => {}
        }
    }

    /// A job's account is the sum of its clients', and what these have left is counted.
    fn check_jobs(&self, clients: &[Account]) {
        for (number, job) in self.jobs.iter_from(0) {
            let of = |client: &&Client| client.job == Some(number);
            let members = self.clients.iter().enumerate().filter_map(|(client, record)| {
                record.as_deref().filter(of).map(|record| (client, record))
            });
            let (mut all, mut count, mut coming) = (Account::default(), 0, 0);
            for (client, record) in members {
                all.add_all(&clients[client]);
                count += 1;
                coming += record.coming;
            }
            let key = &job.key;
            assert!(job.account.same_now(&all), "invariant 3: job {key:?}");
            assert_eq!((job.clients, job.coming), (count, coming), "invariant 3: job {key:?}");
            let left = self.orphans.values().filter(|orphan| orphan.job == Some(number)).count();
            assert_eq!(job.orphans as usize, left, "what is left of job {key:?}");
            let is_used = count > 0 || left > 0 || !job.blocked.is_empty();
            assert!(is_used, "job {key:?} of nobody");
            assert_eq!(self.job_by_key.get(key), Some(&number));
            job.account.assert_within(&self.config.job, key);
        }
        assert_eq!(self.jobs.len(), self.job_by_key.len(), "jobs are found by their keys");
        let soon = self.domains.iter_from(0).filter(|(_, domain)| !domain.slow);
        let coming: u64 = soon.map(|(_, domain)| domain.coming).sum();
        assert_eq!(self.coming, coming, "invariant 8: nobody waits for another's slow closes");
    }

    fn check_lists(&mut self) {
        let clients: Vec<u32> = (0..)
            .zip(&self.clients)
            .filter_map(|(number, client)| client.is_some().then_some(number))
            .collect();
        let mut node = Index::default();
        let mut domains: BTreeMap<u32, Index> = BTreeMap::new();
        let mut jobs: BTreeMap<u32, Index> = BTreeMap::new();
        let mut evictable: BTreeMap<u32, u64> = BTreeMap::new();
        for number in clients {
            let client = self.client_mut(number);
            let (owned, lru, recalls) = (client.owned, client.lru.list, client.recalls);
            let (drained, silent, key) = (client.drained, client.silent, client.lru.key);
            let (domain, job) = (client.domain, client.job);
            let allocations = &mut self.allocations;
            owned.checked(&mut AllocationLinks(allocations, AllocationList::Owned));
            recalls.checked(&mut AllocationLinks(allocations, AllocationList::Event));
            drained.checked(&mut AllocationLinks(allocations, AllocationList::Event));
            let mut places = Vec::new();
            for slot in lru.checked(&mut AllocationLinks(allocations, AllocationList::Lru)) {
                let allocation = &allocations[slot];
                assert!(allocation.state == State::Held && allocation.recall == NONE);
                assert!(allocation.owner == number);
                places.push(self.lru.clock.place(allocation.stamp));
            }
            assert!(
                places.is_sorted(),
                "invariant 5: the queue of client {number} is not in order"
            );
            let first = places.first().copied().filter(|_| !silent);
            *evictable.entry(domain).or_default() += if silent { 0 } else { places.len() as u64 };
            assert_eq!(key, first, "invariant 5: client {number} in the indexes");
            node.change(number, None, key);
            domains.entry(domain).or_default().change(number, None, key);
            if let Some(job) = job {
                jobs.entry(job).or_default().change(number, None, key);
            }
        }
        assert!(
            self.lru.index == node && self.lru.aside.is_empty(),
            "invariant 5: the node's index"
        );
        for (number, domain) in self.domains.iter_from(0) {
            let index = domains.remove(&number).unwrap_or_default();
            assert!(domain.lru == index, "invariant 5: the index of domain {number}");
            let counted = evictable.get(&number).copied().unwrap_or(0);
            assert_eq!(domain.evictable, counted, "what can be evicted of domain {number}");
        }
        let counted: u64 = evictable.values().sum();
        assert_eq!(self.lru.evictable, counted, "what can be evicted of the node");
        for (number, job) in self.jobs.iter_from(0) {
            let index = jobs.remove(&number).unwrap_or_default();
            assert!(job.lru == index, "invariant 5: the index of job {number}");
        }
        self.check_shelves();
        self.check_leases();
    }

    fn check_leases(&mut self) {
        for slot in 0..self.allocations.slots() {
            let generation = self.allocations.generation(slot);
            let Some(allocation) = self.allocations.get(slot, generation) else { continue };
            let (list, open) = (allocation.leases, allocation.open);
            let evictable_but_out = allocation.state == State::Held
                && allocation.recall == NONE
                && !allocation.is_in(AllocationList::Lru);
            assert!(!evictable_but_out, "slot {slot} is held, not waited for, and in no LRU");
            let mut links = LeaseLinks(&mut self.leases, LeaseList::Allocation);
            let leases = list.checked(&mut links);
            for lease in &leases {
                assert!(links.link(*lease).is_in());
                links = LeaseLinks(&mut self.leases, LeaseList::Allocation);
            }
            let opened = leases.iter().filter(|lease| !self.leases[**lease].mapped).count();
            assert_eq!(opened, open as usize, "open leases of slot {slot}");
        }
    }

    fn check_parked(&mut self) {
        self.check_turns();
        self.check_queues();
        let (mut node, mut in_rooms) = (Queued::default(), 0);
        let mut domains: BTreeMap<u32, Queued> = BTreeMap::new();
        let mut jobs: BTreeMap<u32, Queued> = BTreeMap::new();
        for (seq, parked) in &self.parked {
            let client = self.clients[parked.client.0 as usize].as_deref().expect("it exists");
            assert!(!client.gone && client.parked.contains(seq), "a parked request of nobody");
            let waits_in_rooms = parked.wait != Wait::Recall;
            assert_eq!(self.is_in_turns(*seq), waits_in_rooms);
            in_rooms += usize::from(waits_in_rooms);
            if let Wait::Room(blocked) = parked.wait {
                match blocked.account {
                    Holder::Node => *node.of(blocked.resource) += 1,
                    Holder::Domain(number) => {
                        *domains.entry(number).or_default().of(blocked.resource) += 1;
                    }
                    Holder::Job(number) => {
                        *jobs.entry(number).or_default().of(blocked.resource) += 1;
                    }
                    Holder::Client(_) => {}
                }
            }
            if let (Wish::Acquire(_), Wait::Recall) = (&parked.wish, parked.wait) {
                let waits = parked.nodes.iter().filter_map(|node| self.waiting.fate(*node));
                let waits = waits.filter(|fate| !matches!(fate, Fate::Interested(_)));
                assert!(waits.count() > 0, "request {seq} waits for nothing");
            }
        }
        for (number, domain) in self.domains.iter_from(0) {
            let counted = domains.remove(&number).unwrap_or_default();
            assert_eq!(domain.blocked, counted, "who waits for {:?}", domain.key);
        }
        for (number, job) in self.jobs.iter_from(0) {
            let counted = jobs.remove(&number).unwrap_or_default();
            assert_eq!(job.blocked, counted, "who waits for job {:?}", job.key);
        }
        assert!(domains.is_empty() && jobs.is_empty(), "who waits for accounts that are gone");
        assert_eq!(
            (node, in_rooms),
            (self.node_blocked, self.rooms.len()),
            "the room queue's counts"
        );
    }
}
