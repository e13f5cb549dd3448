//! The invariants, asserted: cheaply after every step, and whole on demand. Must never change anything.

use crate::Core;
use crate::allocation::{AllocationList, State};
use crate::connect::{CONNECTION, PLACES};
use crate::continuity::Grace;
use crate::holding::lease_charge;
use crate::ledger::{Charge, LEASE_KINDS, Ledger, ScopeId};
use crate::parked::{Wait, Wish};
use crate::queues::Fate;
use crate::recall::PROMISED_LEASE;
use crate::rooms::items_of;
use crate::slots::NONE;
use crate::timers::Timer;
use fdbroker_protocol::{Resource, Scope};

impl Core {
    /// What can be asserted in no time, after every step.
    pub(crate) fn assert_invariants(&mut self) {
        self.ledger.assert_node();
        let places = self.ledger[ScopeId::NODE].account.counted(Resource::HeldFds);
        let in_use = self.allocations.held() + self.closings.len() as u64;
        assert!(in_use <= places + self.ledger.unplaced(), "invariant 1: fds without a place");
    }

    /// Recomputes every sum from what there is and walks every list both ways. Takes time in
    /// proportion to all there is: for the simulator and for tests.
    ///
    /// # Panics
    /// On the first difference, naming the invariant.
    pub fn check_invariants(&mut self) {
        self.assert_invariants();
        let mut right = self.ledger.emptied();
        self.count_charges(&mut right);
        self.check_jobs();
        self.check_lists(&mut right);
        self.check_parked(&mut right);
        self.check_records();
        self.check_objects();
        self.ledger.assert_same(&right);
    }

    /// Counts every charge anew, instead of those that are counted.
    pub(crate) fn recount(&mut self) {
        let mut right = self.ledger.emptied();
        self.count_charges(&mut right);
        self.ledger.set_accounts(&right);
    }

    /// Makes every charge of what there is.
    fn count_charges(&self, right: &mut Ledger) {
        let (mut held, mut refused) = (0, 0);
        for (slot, allocation) in self.allocations.iter_from(0) {
            let scope = self.payer(allocation.owner, allocation.domain);
            right.add(scope, Charge(Resource::Allocations, 1));
            right.add(scope, Charge(Resource::KeptAllocations, allocation.is_kept().into()));
            if allocation.is_held() || allocation.state == State::Recalling {
                let is_there = allocation.is_held();
                let place = if is_there { Resource::HeldFds } else { Resource::ReservedPlaces };
                right.add(scope, Charge(place, 1));
                let bytes = self.charged_by_size(slot).unwrap_or(0);
                right.add(scope, Charge(Resource::HeldBytes, bytes));
                if allocation.state == State::Resident {
                    right.change_resident(
                        self.clients.scope_of_domain(allocation.domain),
                        0,
                        bytes,
                    );
                }
            }
            held += u64::from(allocation.is_held());
        }
        for (payer, domain, bytes, resident) in self.checked_files() {
            right.add(self.payer(payer, domain), Charge(Resource::HeldBytes, bytes));
            right.change_resident(self.clients.scope_of_domain(domain), 0, resident);
        }
        // The node counts memory once, however many leases pin it.
        for bytes in self.checked_ended() {
            right.add(ScopeId::NODE, Charge(Resource::PinnedBytes, bytes));
        }
        let mut unswept = 0;
        for (_, lease) in self.leases.iter_from(0) {
            let scope = self.scope_of(lease.client);
            right.add(scope, lease_charge(lease.mapped));
            let allocation = &self.allocations[lease.allocation];
            assert!(!lease.ended || !allocation.is_live(), "a lease ended before its allocation");
            if lease.ended {
                let charge = Charge(Resource::PinnedBytes, allocation.size_bytes);
                right.add_below(Scope::Node, scope, charge);
            } else if !allocation.is_live() {
                unswept += 1;
                assert!(allocation.is_in(AllocationList::Event), "a lease that no sweep comes to");
            }
        }
        for (_, recall) in self.recalls.iter_from(0) {
            if let Some(client) = recall.promised_to {
                right.add(self.scope_of(client), PROMISED_LEASE);
            }
        }
        for closing in self.closings.iter() {
            let domain = self.clients.domain(closing.domain);
            right.add(domain.scope, Charge(Resource::RefusedFds, closing.refused.into()));
            let Some((number, serial)) = closing.client else {
                refused += 1;
                continue;
            };
            let client = self.clients.find(number);
            let client = client.filter(|client| client.serial == serial);
            let scope = client.map_or(domain.scope, |client| client.scope);
            right.add(scope, Charge(Resource::HeldFds, 1));
            right.add_coming(scope, domain.slow, u64::from(!closing.refused));
        }
        for (_, client) in self.clients.iter() {
            right.add(client.scope, Charge(Resource::ReservedPlaces, client.credits));
            right.add(client.scope, Charge(Resource::OwnFds, client.own_fds));
            right.add(client.scope, CONNECTION);
            right.add(client.scope, Charge(PLACES.0, u64::from(client.welcome) * PLACES.1));
            let parked = client.parked.len() as u64;
            right.add(client.scope, Charge(Resource::ParkedRequests, parked));
            for seq in &client.parked {
                right.add(client.scope, items_of(&self.parked[seq].wish));
            }
        }
        self.count_objects(right);
        let in_use = self.clients.domains(0).filter(|(_, domain)| domain.clients > 0).count();
        right.add(ScopeId::NODE, Charge(Resource::Domains, in_use as u64));
        right.set_unplaced(refused);
        assert_eq!(unswept, self.leases.unswept(), "leases that a sweep is still to come to");
        assert_eq!(held, self.allocations.held(), "invariant 4: fds held");
    }

    /// What a successor would refuse must never be there; and what is without an owner waits for one, or for its end.
    fn check_records(&self) {
        for (number, client) in self.clients.iter() {
            self.check_client(number, client).expect("a sound client");
        }
        let (mut orphans, mut reserved) = (0, 0);
        for (slot, allocation) in self.allocations.iter_from(0) {
            let orphan = self.allocations.orphan(slot);
            self.check_allocation(slot, orphan).expect("a sound allocation");
            if allocation.state == State::Reserved {
                assert!(self.continuity.gid_of(slot).is_some(), "slot {slot} waits for nobody");
                reserved += 1;
            }
            if let Some(orphan) = orphan {
                let timer = Timer::Keep(slot, self.allocations.generation(slot));
                let has_timer = self.timers.has(orphan.until, timer);
                assert!(has_timer, "slot {slot} is kept for ever");
                orphans += 1;
            }
        }
        assert_eq!(
            (orphans, reserved),
            (self.allocations.orphans().len(), self.reserved()),
            "ownerless slots"
        );
        match self.continuity.grace() {
            Grace::None => assert_eq!(reserved, 0, "slots are reserved for ever"),
            Grace::Until(at) => assert!(self.timers.has(at, Timer::Grace)),
            Grace::Ending(_) => {}
        }
    }

    /// What a job has, and what its clients have left, is counted.
    fn check_jobs(&self) {
        self.clients.check();
        for (number, job) in self.clients.jobs(0) {
            let left = self
                .allocations
                .orphans()
                .values()
                .filter(|orphan| orphan.job == Some(number))
                .count();
            assert_eq!(job.orphans as usize, left, "what is left of job {:?}", job.key);
            let is_waited_for = !self.ledger[job.scope].blocked.is_empty();
            assert!(job.clients > 0 || left > 0 || is_waited_for, "job {:?} of nobody", job.key);
        }
    }

    fn check_lists(&mut self, right: &mut Ledger) {
        for number in self.clients.numbers() {
            let client = self.client_mut(number);
            let (silent, scope) = (client.silent, client.scope);
            let idle_credits = client.credits - u64::from(client.credit_waited_for);
            let (place, _) = self.ledger[scope].creditors.first_key().unwrap_or_default();
            right.set_idle_credits(scope, idle_credits, place);
            if let Some((place, count)) = self.place_among_evictable(number, silent) {
                right.set_evictable(scope, Some(place), count);
            }
            for kind in 0..LEASE_KINDS {
                right.set_ask_key(scope, kind, self.ledger.ask_key(scope, kind));
            }
        }
        assert!(self.aside.is_empty(), "invariant 5: what was set aside is put back");
        self.allocations.check();
        self.leases.check();
        self.check_askable();
        self.closings.check();
        let recalled = self.allocations.iter_from(0).filter(|(_, it)| it.recall != NONE);
        let overdue = recalled.filter(|(_, it)| self.recalls[it.recall].overdue);
        self.recalls.check(overdue.map(|(_, it)| it.owner));
        self.check_leases();
    }

    fn check_leases(&mut self) {
        for slot in self.allocations.full() {
            let allocation = &self.allocations[slot];
            let (list, open) = (allocation.leases, allocation.open);
            let leases = self.leases.checked(list);
            let opened = leases.iter().filter(|lease| !self.leases[**lease].mapped).count();
            assert_eq!(opened, open as usize, "open leases of slot {slot}");
        }
    }

    fn check_parked(&mut self, right: &mut Ledger) {
        self.check_rooms();
        self.check_queues();
        for (seq, parked) in &self.parked {
            let client = self.clients.find(parked.client.0).expect("it exists");
            assert!(client.parked.contains(seq), "a parked request of nobody");
            let waits_in_rooms = parked.wait != Wait::Recall;
            if let Wait::Room(blocked) = parked.wait {
                right.block(blocked);
            }
            parked.listens.iter().for_each(|(account, _)| right.block(*account));
            if client.gone {
                assert!(!waits_in_rooms && self.clients.dying().contains(&parked.client.0));
            } else if let (Wish::Acquire(_), Wait::Recall) = (&parked.wish, parked.wait) {
                let waits = parked.nodes.iter().filter_map(|node| self.waiting.fate(*node));
                let waits = waits.filter(|fate| !matches!(fate, Fate::Interested(_)));
                let is_due = waits.count() > 0 || self.is_looked_at_soon(*seq);
                assert!(is_due, "request {seq} waits for nothing");
            }
        }
    }
}
