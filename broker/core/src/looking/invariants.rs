//! The invariants of objects, recomputed from what there is. Must never change anything.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{NONE, Now};
use crate::books::objects::charges::{of_kept, of_member};
use crate::books::objects::groups::GroupState;
use crate::books::objects::names::Name;
use crate::books::{
    AllocationList, CONNECTION, Charge, Fate, Grace, LEASE_KINDS, Ledger, NAMED_GPU, PLACES,
    PROMISED_LEASE, ScopeId, State, Timer, Wait, Wish, items_of, lease_charge,
};
use crate::core::Core;
use fdbroker_protocol::{Resource, Scope};

impl Core {
    /// What can be asserted in no time, after every step.
    pub(crate) fn assert_invariants(&mut self) {
        self.books.ledger.assert_node();
        let places = self.books.ledger[ScopeId::NODE].account.counted(Resource::HeldFds);
        let in_use = self.books.allocations.held() + self.books.closings.len() as u64;
        assert!(
            in_use <= places + self.books.ledger.unplaced(),
            "invariant 1: fds without a place"
        );
    }

    /// Recomputes every sum from what there is and walks every list both ways. Takes time in
    /// proportion to all there is: for the simulator and for tests.
    ///
    /// # Panics
    /// On the first difference, naming the invariant.
    pub fn check_invariants(&mut self) {
        self.assert_invariants();
        let mut right = self.books.ledger.emptied();
        self.count_charges(&mut right);
        self.check_jobs();
        self.check_lists(&mut right);
        self.check_parked(&mut right);
        self.check_records();
        self.check_objects();
        self.books.ledger.assert_same(right);
    }

    /// Counts every charge anew, instead of those that are counted.
    pub(crate) fn recount(&mut self) {
        let mut right = self.books.ledger.emptied();
        self.count_charges(&mut right);
        self.books.ledger.set_accounts(&right);
    }

    /// Makes every charge of what there is.
    fn count_charges(&self, right: &mut Ledger) {
        let mut refused = 0;
        for (slot, allocation) in self.books.allocations.iter_from(0) {
            let scope = self.books.payer(allocation.owner, allocation.domain);
            right.add(scope, Charge(Resource::Allocations, 1));
            right.add(scope, Charge(Resource::KeptAllocations, allocation.is_kept().into()));
            if allocation.is_held() || allocation.state == State::Recalling {
                let is_there = allocation.is_held();
                let place = if is_there { Resource::HeldFds } else { Resource::ReservedPlaces };
                right.add(scope, Charge(place, 1));
                let bytes = self.books.charged_by_size(slot);
                right.add(scope, Charge(Resource::HeldBytes, bytes));
                if allocation.state == State::Resident {
                    right.change_resident(
                        self.books.clients.scope_of_domain(allocation.domain),
                        0,
                        bytes,
                    );
                }
            }
        }
        for (payer, domain, bytes, resident) in self.books.checked_files() {
            right.add(self.books.payer(payer, domain), Charge(Resource::HeldBytes, bytes));
            right.change_resident(self.books.clients.scope_of_domain(domain), 0, resident);
        }
        // The node counts memory once, however many leases pin it.
        for bytes in self.books.checked_ended() {
            right.add(ScopeId::NODE, Charge(Resource::PinnedBytes, bytes));
        }
        let mut unswept = 0;
        for (_, lease) in self.books.leases.iter_from(0) {
            let scope = self.books.scope_of(lease.client);
            right.add(scope, lease_charge(lease.mapped));
            if lease.declared {
                right.count_declared(scope, usize::from(lease.mapped), true);
            }
            let allocation = &self.books.allocations[lease.allocation];
            assert!(!lease.ended || !allocation.is_live(), "a lease ended before its allocation");
            if lease.ended {
                let charge = Charge(Resource::PinnedBytes, allocation.size_bytes);
                right.add_below(Scope::Node, scope, charge);
            } else if !allocation.is_live() {
                unswept += 1;
                assert!(allocation.is_in(AllocationList::Event), "a lease that no sweep comes to");
            }
        }
        for (_, recall) in self.books.recalls.iter_from(0) {
            if let Some(client) = recall.promised_to {
                right.add(self.books.scope_of(client), PROMISED_LEASE);
            }
        }
        for closing in self.books.closings.iter() {
            let domain = self.books.clients.domain(closing.domain);
            right.add(domain.scope, Charge(Resource::RefusedFds, closing.refused.into()));
            let Some(client) = closing.client else {
                refused += 1;
                continue;
            };
            let client = self.books.clients.of_serial(client);
            let scope = client.map_or(domain.scope, |client| client.scope);
            right.add(scope, Charge(Resource::HeldFds, 1));
            right.add_coming(scope, domain.slow, u64::from(!closing.refused));
        }
        for (_, client) in self.books.clients.iter() {
            right.add(client.scope, Charge(Resource::ReservedPlaces, client.credits));
            right.add(client.scope, Charge(Resource::OwnFds, client.own_fds));
            right.add(client.scope, CONNECTION);
            right.add(client.scope, Charge(PLACES.0, u64::from(client.welcome) * PLACES.1));
            let parked = client.parked.len() as u64;
            right.add(client.scope, Charge(Resource::ParkedRequests, parked));
            for seq in &client.parked {
                right.add(client.scope, items_of(&self.books.parked[seq].wish));
            }
        }
        self.count_objects(right);
        let in_use = self.books.clients.domains(0).filter(|(_, domain)| domain.clients > 0).count();
        right.add(ScopeId::NODE, Charge(Resource::Domains, in_use as u64));
        for (domain, _, _) in self.books.allocations.gpus.all() {
            right.add(self.books.clients.scope_of_domain(domain), NAMED_GPU);
        }
        right.set_unplaced(refused);
        assert_eq!(unswept, self.books.leases.unswept(), "leases that a sweep is still to come to");
    }

    /// What a successor would refuse must never be there; and what is without an owner waits for
    /// one, or for its end.
    fn check_records(&self) {
        for (number, client) in self.books.clients.iter() {
            self.check_client(number, client).expect("a sound client");
        }
        let (mut orphans, mut reserved) = (0, 0);
        for (slot, allocation) in self.books.allocations.iter_from(0) {
            let orphan = self.books.allocations.orphan(slot);
            self.check_allocation(slot, orphan, Now(u64::MAX)).expect("a sound allocation");
            if allocation.state == State::Reserved {
                assert!(
                    self.books.continuity.gid_of(slot).is_some(),
                    "slot {slot} waits for nobody"
                );
                reserved += 1;
            }
            if let Some(orphan) = orphan {
                let timer = Timer::Keep(slot, self.books.allocations.generation(slot));
                let has_timer = self.books.timers.has(orphan.until, timer);
                assert!(has_timer, "slot {slot} is kept for ever");
                orphans += 1;
            }
        }
        assert_eq!(
            (orphans, reserved),
            (self.books.allocations.orphans().len(), self.reserved()),
            "ownerless slots"
        );
        match self.books.continuity.grace() {
            Grace::None => assert_eq!(reserved, 0, "slots are reserved for ever"),
            Grace::Until(at) => assert!(self.books.timers.has(at, Timer::Grace)),
            Grace::Ending(_) => {}
        }
    }

    /// What a job has, and what its clients have left, is counted.
    fn check_jobs(&self) {
        self.books.clients.check();
        let mut objects: BTreeMap<u32, u32> = BTreeMap::new();
        for (_, group) in self.books.objects.groups.iter_from(0) {
            group.job.into_iter().for_each(|job| *objects.entry(job).or_default() += group.names);
        }
        for (number, job) in self.books.clients.jobs(0) {
            let made = objects.remove(&number).unwrap_or(0);
            assert_eq!(job.objects, made, "objects of job {:?}", job.key);
            let left = self
                .books
                .allocations
                .orphans()
                .values()
                .filter(|orphan| orphan.job == Some(number))
                .count();
            assert_eq!(job.orphans as usize, left, "what is left of job {:?}", job.key);
            let is_waited_for = !self.books.ledger[job.scope].blocked.is_empty();
            assert!(job.is_used() || is_waited_for, "job {:?} of nobody", job.key);
        }
        assert!(objects.is_empty(), "objects of a job that is none");
    }

    fn check_lists(&mut self, right: &mut Ledger) {
        for number in self.books.clients.numbers() {
            let client = self.books.client_mut(number);
            let (silent, scope) = (client.silent, client.scope);
            let idle_credits = client.credits - u64::from(client.credit_waited_for);
            let (place, _) = self.books.ledger[scope].creditors.first_key().unwrap_or_default();
            right.set_idle_credits(scope, idle_credits, place);
            if let Some((place, count)) = self.books.place_among_evictable(number, silent) {
                right.set_evictable(scope, Some(place), count);
            }
            for kind in 0..LEASE_KINDS {
                right.set_ask_key(scope, kind, self.books.ledger.ask_key(scope, kind));
            }
        }
        self.books.allocations.check();
        self.books.leases.check();
        self.books.check_askable();
        self.books.closings.check();
        let recalled = self.books.allocations.iter_from(0).filter(|(_, it)| it.recall != NONE);
        let overdue = recalled.filter(|(_, it)| self.books.recalls[it.recall].overdue);
        self.books.recalls.check(overdue.map(|(_, it)| it.owner));
        self.check_leases();
    }

    fn check_leases(&mut self) {
        for slot in self.books.allocations.full() {
            let allocation = &self.books.allocations[slot];
            let (list, open) = (allocation.leases, allocation.open);
            let leases = self.books.leases.checked(list);
            let opened = leases.iter().filter(|lease| !self.books.leases[**lease].mapped).count();
            assert_eq!(opened, open as usize, "open leases of slot {slot}");
        }
    }

    fn check_parked(&mut self, right: &mut Ledger) {
        self.books.check_rooms();
        let mut items = 0;
        for (seq, parked) in &self.books.parked {
            let mut nodes = parked.nodes.iter().filter(|node| **node != NONE);
            items += nodes.clone().count();
            let are_its = nodes.all(|node| self.books.waiting.request_of(*node) == *seq);
            assert!(are_its, "an item of another request");
            let client = self.books.clients.find(parked.by.client.0).expect("it exists");
            assert!(client.parked.contains(seq), "a parked request of nobody");
            let waits_in_rooms = parked.wait != Wait::Recall;
            if let Wait::Room(blocked) = parked.wait {
                right.block(blocked);
            }
            parked.listens.iter().for_each(|(account, _)| right.block(*account));
            if client.gone {
                assert!(
                    !waits_in_rooms && self.books.clients.dying().contains(&parked.by.client.0)
                );
            } else if let (Wish::Acquire(_), Wait::Recall) = (&parked.wish, parked.wait) {
                let waits = parked.nodes.iter().filter_map(|node| self.books.waiting.fate(*node));
                let waits = waits.filter(|fate| !matches!(fate, Fate::Interested(_)));
                let ready = (self.books.place(*seq).1, *seq);
                let is_due = waits.count() > 0 || self.books.rooms.ready.contains(&ready);
                assert!(is_due, "request {seq} waits for nothing");
            }
        }
        self.check_queues(items);
    }

    /// Makes every charge of objects, and of requests that wait for names.
    fn count_objects(&self, right: &mut Ledger) {
        for (_, group) in self.books.objects.groups.iter_from(0) {
            let scope = self.books.clients.scope_of_domain(group.domain);
            let named = group.members.iter().filter(|member| member.is_named);
            named.flat_map(of_member).for_each(|charge| right.add(scope, charge));
            let kept = group.is_kept.then(|| of_kept(group.size_bytes, group.is_host, group.pin));
            kept.into_iter().flatten().for_each(|charge| right.add(scope, charge));
        }
        for log in self.books.objects.watches.logs.values() {
            right.add(self.books.clients.scope_of_domain(log.domain), log.charge());
        }
        for parked in self.books.parked.values() {
            if let Wish::Get(get, _) = &parked.wish {
                let domain = self.books.clients[parked.by.client.0].domain;
                right.add(self.books.clients.scope_of_domain(domain), get.charge());
            }
        }
    }

    /// Asserts that names and groups lead to each other, that memory is where it belongs, and who
    /// waits.
    fn check_objects(&self) {
        let mut entered = 0;
        for (scope, name, entry) in self.books.objects.names.all() {
            assert!(entry.sealed.is_some() || !entry.makers.is_empty(), "a name of nothing");
            for place in entry.sealed.iter().chain(&*entry.makers) {
                let group = &self.books.objects.groups[place.group];
                let member = &group.members[usize::from(place.member)];
                assert!(member.is_named && group.scope == scope && member.name == *name);
                let is_made = group.state == GroupState::Making;
                let stands = entry.sealed == Some(*place);
                assert!(group.is_ended() || is_made != stands, "{name:?} stands");
                entered += 1;
            }
        }
        self.books.objects.groups.check();
        self.books.objects.watches.check();
        let groups = self.books.objects.groups.iter_from(0);
        self.books
            .objects
            .order
            .check(groups.map(|(number, group)| (number, group, self.books.may_go(group))));
        let is_here = |client: &u32| self.books.clients.find(*client).is_some_and(|it| !it.gone);
        assert!(
            self.books.objects.watches.of.keys().all(|(client, _)| is_here(client)),
            "who watches"
        );
        let mut named = 0;
        for (number, group) in self.books.objects.groups.iter_from(0) {
            let count = group.members.iter().filter(|member| member.is_named).count();
            assert_eq!(count, group.names as usize, "names of group {number}");
            named += count;
            let is_ended = group.is_ended();
            assert_eq!(group.link.is_in(), is_ended, "group {number} is swept");
            assert!(is_ended || group.allocation != NONE, "group {number} lives without memory");
            let timer = Timer::Object(number, self.books.objects.groups.generation(number));
            assert!(
                group.due.is_none_or(|at| self.books.timers.has(at, timer)),
                "time of {number}"
            );
            if group.allocation != NONE {
                let allocation = &self.books.allocations[group.allocation];
                assert!(allocation.is_live() && allocation.domain == group.domain);
                assert_eq!(allocation.owner == NONE, group.is_kept, "owner of group {number}");
                let is_timed = group.due.is_some() || is_ended;
                assert!(is_timed || self.books.until(group).is_none(), "{number} is kept for ever");
            }
        }
        assert_eq!(entered, named, "objects with names");
        let gets = self.books.parked.iter().filter_map(|(seq, parked)| match &parked.wish {
            Wish::Get(get, at) => Some((seq, get, *at)),
            Wish::Acquire(_) | Wish::Credits(_) | Wish::Hello(_) => None,
        });
        let standing = gets.map(|(seq, get, at)| {
            let names: BTreeSet<_> = get.names_at(at).iter().collect();
            let stands = |name: &&Name| self.books.objects.waits.has(get.scope, name, *seq);
            assert!(names.iter().all(stands), "{seq} is lost");
            names.len()
        });
        assert_eq!(standing.sum::<usize>(), self.books.objects.waits.len(), "who stands at names");
    }

    /// Asserts that each item is in one queue, and each queue where it is found.
    fn check_queues(&mut self, items: usize) {
        for (queue, fate) in self.books.waiting.checked(items) {
            let recall = |slot: u32| &self.books.recalls[self.books.allocations[slot].recall];
            let found = match fate {
                Fate::Recalled(slot) => recall(slot).waiting,
                Fate::Pinned(slot) => recall(slot).pinned,
                Fate::Interested(slot) => self.books.waiting.interested(slot),
                Fate::First | Fate::InTurn | Fate::Answer(..) => unreachable!("it is ready"),
            };
            assert_eq!(found, queue, "a queue that is not found");
        }
    }
}
