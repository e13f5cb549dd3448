//! Takes saved state in again: every number checked, every sum counted anew. Must never believe
//! what it reads, nor panic at it: the data may come from anywhere.

use std::collections::{BTreeSet, VecDeque};

use crate::api::{Config, Effects, NONE, Now};
use crate::books::check::{Check, RestoreError, ensure};
use crate::books::clients::{Clients, SavedClients};
use crate::books::continuity::Standing;
use crate::books::gpus::{Gpus, SavedGpus};
use crate::books::leases::Leases;
use crate::books::objects::Objects;
use crate::books::objects::names::NameScope;
use crate::books::order::Moment;
use crate::books::registry::Registry;
use crate::books::rooms::Rooms;
use crate::books::slots::{Flat, SavedSlots};
use crate::books::{Allocation, Chore, Client, Grace, Lease, Orphan, Recall, State, Timer};
use crate::core::Core;
use crate::limits::MOST_GROUPS;
use crate::looking::saved::{Beside, Saved, SavedOwners};
use crate::moves::Step;
use fdbroker_protocol::limits::DRIVER_DATA_BYTES;
use fdbroker_protocol::{ByCounter, Counter, MAX_BATCH};

impl Core {
    /// What must hold of restored groups, their memory, their domains and creators; and has their
    /// time begin again.
    fn check_restored_objects(&mut self, now: Now) -> Check {
        for (client, scope) in self.books.objects.watches.of.keys() {
            let found = self.books.clients.find(*client).filter(|it| it.welcome && !it.gone);
            let is_its = found.is_some_and(|it| match scope {
                NameScope::Domain(domain) => *domain == it.domain,
                NameScope::Job(job) => Some(*job) == it.job,
            });
            let domain = self.books.objects.watches.logs[scope].domain;
            ensure(is_its && found.is_some_and(|it| it.domain == domain), "who watches", *client)?;
        }
        for number in self.books.objects.groups.full() {
            let group = &self.books.objects.groups[number];
            let is_scope = match group.scope {
                NameScope::Domain(domain) => domain == group.domain,
                NameScope::Job(job) => {
                    self.books.clients.is_job_of(job, group.domain) && !group.is_kept
                }
            };
            ensure(is_scope && group.since <= now, "scope of a group", number)?;
            let (job, names) = (group.job, group.names);
            let is_its = job.is_none_or(|job| self.books.clients.is_job_of(job, group.domain));
            ensure(is_its, "job of a group", number)?;
            let found = self.books.allocations.in_slot(group.allocation).filter(|it| it.is_held());
            let maker = self.books.clients.of_serial(group.creator).map(|_| group.creator.0);
            let owner = if group.is_kept { Some(NONE) } else { maker };
            let is_its = found.is_some_and(|allocation| {
                let traits = allocation.traits;
                owner == Some(allocation.owner)
                    && allocation.domain == group.domain
                    && allocation.size_bytes == group.size_bytes
                    && self.books.allocations.facts(group.allocation).is_of_host() == group.is_host
                    && !traits.is_recallable()
                    && !traits.is_to_be_kept()
            });
            ensure(is_its, "memory of a group", number)?;
            (0..names)
                .for_each(|_| job.into_iter().for_each(|job| self.books.clients.add_object(job)));
            self.books.time_group(number);
            self.books.order_group(number);
        }
        Ok(())
    }

    /// Goes on where [`Core::save`] was called. `config` may be another one: `first_generation` is
    /// that of the data, and `max_slots` must be that of the page gone on with. Every client may
    /// have events to take.
    ///
    /// # Errors
    /// When the data contradicts itself, or needs more than the configuration has.
    pub fn restore(mut config: Config, saved: Saved, now: Now) -> Check<Core> {
        config.first_generation = saved.allocations.first_generation;
        let mut core = Core::new(config).map_err(RestoreError::Config)?;
        let Saved { counters, arrivals, serials, turns, mut beside, .. } = saved;
        let mut counts = counters.iter().chain([&arrivals, &serials, &turns]);
        ensure(counts.all(|count| *count < u64::MAX / 2), "counts", 0u32)?;
        ensure(counters.len() <= Counter::COUNT, "counters", counters.len() as u64)?;
        // A counter that is newer than the predecessor begins at 0.
        let count = |counter: Counter| counters.get(counter.index()).copied().unwrap_or(0);
        core.books.counters = ByCounter::from_fn(count);
        (core.books.arrivals, core.books.rooms) = (arrivals, Rooms::after(turns));
        let clients = (saved.domains, saved.jobs, saved.clients);
        core.restore_clients(clients, saved.dying, serials)?;
        let most = core.books.config.max_slots;
        core.books.objects = Objects::restore(saved.objects)?;
        core.books.allocations = Registry::restore(most, saved.allocations)?;
        core.restore_gpus(std::mem::take(&mut beside.gpus))?;
        for slot in core.books.allocations.full() {
            core.restore_allocation(slot, &mut beside, now)?;
        }
        for payer in std::mem::take(&mut beside.payers) {
            ensure(core.books.set_payer(payer), "payer of a file", payer.2)?;
        }
        ensure(beside == Beside::default(), "what is of no allocation", 0u32)?;
        core.check_restored_objects(now)?;
        core.restore_leases(saved.leases, saved.to_tell, now)?;
        let lost = saved.comeback.checked_lost();
        ensure(lost.is_some_and(|lost| lost < u64::MAX / 2), "comeback", 0u32)?;
        ensure(saved.comeback.named < u64::MAX / 2, "comeback", 0u32)?;
        core.books.continuity.comeback = saved.comeback;
        core.restore_continuity(saved.owners, saved.grace_until)?;
        core.recount();
        core.check_uses()?;
        let (needed, _, has) = core.books.ledger.table();
        if needed > has {
            return Err(RestoreError::Table(needed, has));
        }
        core.restore_peaks(&saved.peaks, saved.table_peak)?;
        core.books.draining = saved.draining;
        core.books.timers.set_chore(Chore::GiveUp, saved.draining.map(|_| Now(0)));
        // The caps may be other ones.
        core.books.caps_changed(*core.books.ledger.caps());
        Ok(core)
    }

    fn restore_gpus(&mut self, saved: SavedGpus) -> Check {
        let gpus = Gpus::restore(saved);
        ensure(gpus.is_some(), "GPUs", 0u32)?;
        self.books.allocations.gpus = gpus.unwrap_or_default();
        for slot in self.books.allocations.full() {
            let Allocation { gpu, domain, .. } = self.books.allocations[slot];
            ensure(self.books.allocations.gpus.count(domain, gpu), "allocation's GPU", slot)?;
        }
        let mut all = self.books.allocations.gpus.all();
        ensure(all.all(|(_, _, count)| count > 0), "GPUs of nothing", 0u32)
    }

    fn restore_clients(
        &mut self,
        saved: SavedClients,
        dying: VecDeque<u32>,
        serials: u64,
    ) -> Check {
        let most = self.books.config.max_domains;
        self.books.clients = Clients::restore(
            (most, self.books.config.subordinate_uids.clone()),
            serials,
            saved,
            dying,
            &mut self.books.ledger,
        )?;
        for (number, domain) in self.books.clients.domains(0) {
            let has_had_its_turn = domain.turn <= self.books.rooms.turns_given();
            ensure(has_had_its_turn, "domain's turn", number)?;
        }
        let mut gone = Vec::new();
        for number in self.books.clients.numbers() {
            let client = &self.books.clients[number];
            self.check_client(number, client)?;
            gone.extend(client.gone.then_some(number));
            let Client { credits, credit_waited_for, .. } = *client;
            self.books.clients.open(number, &mut self.books.ledger);
            self.books.set_credits(number, credits, credit_waited_for);
        }
        let mut in_turn: Vec<u32> = self.books.clients.dying().iter().copied().collect();
        in_turn.sort_unstable();
        ensure(in_turn == gone, "clients being torn down", gone.len() as u64)
    }

    /// What must hold of a client by itself, and of its domain and its job.
    pub(crate) fn check_client(&self, number: u32, client: &Client) -> Check {
        ensure(self.books.clients.is_domain(client.domain), "client's domain", number)?;
        let is_its = client.job.is_none_or(|job| self.books.clients.is_job_of(job, client.domain));
        ensure(is_its, "client's job", number)?;
        let sorted = client.groups.is_sorted() && client.groups.len() <= MOST_GROUPS;
        ensure(sorted, "client's groups", number)?;
        let unused = client.credits == 0 && client.own_fds == 0;
        ensure(unused || client.welcome && !client.gone, "client's places", number)?;
        let few = client.credits.max(client.credits_taken) <= MAX_BATCH as u64
            && u32::try_from(client.own_fds).is_ok();
        let is_there = client.credits > 0 || !client.credit_waited_for;
        ensure(is_there, "client's credit that it has waited for", number)?;
        ensure(few, "client's number of places", number)?;
        ensure(
            (1..=self.books.clients.serials()).contains(&client.serial),
            "client's serial",
            number,
        )
    }

    /// Enters an allocation wherever one is found that is born now.
    fn restore_allocation(&mut self, slot: u32, beside: &mut Beside, now: Now) -> Check {
        let orphan = beside.orphans.remove(&slot);
        self.check_allocation(slot, orphan.as_ref(), now)?;
        let allocation = &self.books.allocations[slot];
        let Allocation { owner, state, drained, .. } = *allocation;
        let (is_live, is_held) = (allocation.is_live(), allocation.is_held());
        let range = (allocation.device.into(), allocation.base, allocation.size_bytes);
        let data = beside.driver_data.remove(&slot);
        let has_data = allocation.traits.has_driver_data();
        ensure(data.is_some() == has_data, "driver data", slot)?;
        if let Some(data) = data {
            let length = u8::try_from(data.len()).unwrap_or(0);
            let fits = (1..=DRIVER_DATA_BYTES).contains(&usize::from(length));
            ensure(fits, "driver data's length", slot)?;
            let mut bytes = [0; DRIVER_DATA_BYTES];
            bytes[..data.len()].copy_from_slice(&data);
            self.books.allocations.set_driver_data(slot, Some((length, bytes)));
        }
        if owner != NONE && is_live {
            ensure(
                self.books.allocations.overlapping(owner, range).is_none(),
                "allocations that overlap",
                slot,
            )?;
        }
        if owner != NONE {
            self.books.allocations.enter(slot);
        }
        if let Some(orphan) = orphan {
            self.books.add_orphan(slot, orphan);
        }
        let recall = beside.recalls.remove(&slot);
        ensure(recall.is_some() == (state == State::Recalling), "allocation's recall", slot)?;
        if let Some(recall) = recall {
            let Recall { since, deadline, overdue, .. } = recall;
            let is_sound = since <= now && deadline.is_none() == overdue;
            ensure(is_sound, "recall's time", slot)?;
            let number = self.books.recalls.begin(owner, recall.flat());
            self.books.allocations.set_recall(slot, number);
            self.books.set_recall_timer(slot, deadline);
        }
        let is_to_be_recalled = beside.to_recall.remove(&slot);
        ensure(!is_to_be_recalled || state == State::Recalling, "recall to send", slot)?;
        if drained {
            self.books.allocations.drained(slot);
        } else if is_to_be_recalled {
            self.books.allocations.ask_for(slot);
        }
        let file = beside.files.remove(&slot);
        let has_file = is_held || matches!(state, State::Ended(_));
        ensure(file.is_none() || has_file, "file of what is not held", slot)?;
        if let (false, Some(_)) = (is_held, file) {
            self.books.pin_ended(slot, file);
        }
        if is_held {
            self.books.pin(slot, file, 0);
        }
        self.books.lru_insert(slot);
        Ok(())
    }

    /// What must hold of an allocation by itself, and of its owner, its domain and the job that
    /// left it.
    pub(crate) fn check_allocation(&self, slot: u32, orphan: Option<&Orphan>, now: Now) -> Check {
        let allocation = &self.books.allocations[slot];
        let Allocation { owner, domain, state, traits, .. } = *allocation;
        ensure(traits.is_sound(), "allocation's kind", slot)?;
        let (recallable, keep) = (traits.is_recallable(), traits.is_to_be_kept());
        let is_live = allocation.is_live();
        let ends = [allocation.base, allocation.fd_offset];
        let is_bounded = ends.iter().all(|at| at.checked_add(allocation.size_bytes).is_some());
        // That of an ended one may never have been known.
        let is_former = state == State::Reserved && owner == NONE || !is_live;
        let is_sized = allocation.size_bytes > 0 || is_former;
        ensure(is_bounded && is_sized, "allocation's range", slot)?;
        let used = allocation.stamp.last_use();
        let is_past = allocation.registered <= used && used <= Moment::of(now);
        ensure(is_past, "allocation's times", slot)?;
        let of_client = self.books.clients.find(owner);
        let owned = of_client.is_some_and(|client| client.domain == domain);
        let ownerless = owner == NONE && self.books.clients.is_domain(domain);
        ensure(owned || ownerless, "allocation's owner", slot)?;
        let is_left = is_live && ownerless && state != State::Reserved;
        let is_of_objects = self.books.objects.keeps(slot);
        ensure((orphan.is_some() || is_of_objects) == is_left, "allocation's keeper", slot)?;
        let left_by = orphan.and_then(|orphan| orphan.job);
        let is_its = left_by.is_none_or(|job| self.books.clients.is_job_of(job, domain));
        ensure(is_its, "the job that left an allocation", slot)?;
        let sound = match state {
            State::Held => owned && recallable && !keep,
            State::Resident => keep || (owned || is_of_objects) && !recallable,
            State::Evicted | State::Recalling => owned && recallable,
            State::Reserved => owner == NONE && !keep,
            State::Ended(_) => true,
        };
        ensure(sound, "allocation's state", slot)?;
        ensure(owned || !allocation.drained, "allocation's notice", slot)?;
        ensure(!is_live || !owned || allocation.registrations > 0, "allocation's count", slot)?;
        ensure(!is_live || !allocation.drained, "drained, and lives", slot)
    }

    /// Enters the leases, in the order in which they were granted.
    fn restore_leases(
        &mut self,
        saved: SavedSlots<Lease>,
        mut to_tell: BTreeSet<u32>,
        now: Now,
    ) -> Check {
        self.books.leases = Leases::restore(saved)?;
        let mut all = Vec::new();
        for (number, lease) in self.books.leases.iter_from(0) {
            ensure(lease.since <= now, "lease of the future", number)?;
            ensure(self.books.allocations.is_full(lease.allocation), "lease's allocation", number)?;
            let holder = self.books.clients.find(lease.client);
            ensure(holder.is_some(), "lease's holder", number)?;
            all.push((lease.since, number));
        }
        all.sort_unstable();
        for (_, number) in all {
            let Lease { allocation, asked, client, declared, mapped, .. } =
                self.books.leases[number];
            if declared {
                let scope = self.books.scope_of(client);
                self.books.ledger.count_declared(scope, usize::from(mapped), true);
            }
            let (ended, is_to_tell) =
                (!self.books.allocations[allocation].is_live(), to_tell.remove(&number));
            ensure(!is_to_tell || ended || asked != 0, "lease to ask for", number)?;
            self.books.leases.enter(number, ended, is_to_tell);
            self.books.may_be_asked_for(number);
            self.books.allocations.add_lease(allocation, &mut self.books.leases, number);
            self.books.lease_of_group(allocation, &mut Step::new(now, &mut Effects::default()));
        }
        ensure(to_tell.is_empty(), "notices of no lease", to_tell.len() as u64)
    }

    fn restore_continuity(&mut self, owners: SavedOwners, until: Option<Now>) -> Check {
        for (former, is_complete, slots) in owners {
            for (slot, how) in slots {
                let found = self.books.allocations.in_slot(slot);
                let waits = found.is_some_and(|found| {
                    let stands = match how {
                        Standing::Reserved => found.state == State::Reserved,
                        Standing::Kept => found.state == State::Resident,
                        Standing::Ended => !found.is_live(),
                    };
                    let its = self.books.clients.domain_key(found.domain) == former.domain;
                    stands && found.owner == NONE && its
                });
                ensure(waits && !self.books.continuity.has(slot), "slot that waits", slot)?;
                self.books.continuity.enter(slot, former, how);
            }
            if is_complete {
                self.books.continuity.complete(former);
            }
        }
        let all = self.books.allocations.iter_from(0);
        let reserved = all.filter(|(_, allocation)| allocation.state == State::Reserved).count();
        ensure(reserved == self.reserved() as usize, "reserved for ever", reserved as u64)?;
        for slot in self.books.allocations.full() {
            if self.may_linger(slot) {
                self.books.continuity.linger(slot);
            }
        }
        if until.is_some() || !self.books.continuity.is_empty() {
            self.books.continuity.set_grace(until.map_or(Grace::Ending(0), Grace::Until));
            until.into_iter().for_each(|until| self.books.timers.set(until, Timer::Grace));
        }
        Ok(())
    }

    /// Whether it has ended under an owner that had it before a crash, and has not been told that
    /// it is drained.
    fn may_linger(&self, slot: u32) -> bool {
        let allocation = &self.books.allocations[slot];
        let is_former =
            self.books.allocations.generation(slot) < self.books.config.first_generation;
        let is_owned = allocation.owner != NONE && !allocation.drained;
        is_former && is_owned && !allocation.is_live()
    }

    /// An ended allocation stays for its leases, or for its owner to be told. Each domain and each
    /// job is of some client or allocation.
    fn check_uses(&self) -> Check {
        for (slot, allocation) in self.books.allocations.iter_from(0) {
            let has_leases = !allocation.leases.is_empty();
            ensure(!allocation.drained || !has_leases, "drained", slot)?;
            let is_pinned = self.books.ended_file_of(slot).is_none() || has_leases;
            ensure(is_pinned, "file of what nobody has", slot)?;
            let owner = self.books.clients.find(allocation.owner);
            let freed_later = allocation.drained || owner.is_some_and(|owner| owner.gone);
            let lingers = self.books.continuity.has(slot) || self.may_linger(slot);
            let is_used = allocation.is_live() || has_leases || freed_later || lingers;
            ensure(is_used, "ended, and not freed", slot)?;
        }
        for (number, domain) in self.books.clients.domains(0) {
            ensure(self.is_used(domain), "domain of nobody", number)?;
        }
        for (number, job) in self.books.clients.jobs(0) {
            ensure(job.is_used(), "job of nobody", number)?;
        }
        Ok(())
    }

    fn restore_peaks(&mut self, saved: &[Vec<u128>], table: u64) -> Check {
        let scopes = self.scopes();
        ensure(scopes.len() == saved.len(), "peaks", saved.len() as u64)?;
        for (scope, peaks) in scopes.into_iter().zip(saved) {
            ensure(self.books.ledger.raise_peaks(scope, peaks), "peaks", peaks.len() as u64)?;
        }
        self.books.ledger.raise_table_peak(table);
        Ok(())
    }
}
