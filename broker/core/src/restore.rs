//! Takes saved state in again: every number checked, every sum counted anew. Must never believe what it reads,
//! nor panic at it: the data may come from anywhere.

use std::collections::BTreeSet;

use crate::Core;
use crate::acts::Draining;
use crate::api::{Config, Deposit, DomainKey, File, FileId, JobKey, Lane, Now, OwnerKey};
use crate::clients::{CONNECTION, DOMAIN};
use crate::config::ConfigError;
use crate::continuity::{FormerOwner, Grace};
use crate::fairness::Rooms;
use crate::job_name::JobName;
use crate::ledger::{Charge, ScopeId};
use crate::limits::{CLIENT_NUMBERS, MOST_GROUPS, SLOTS_BEFORE_REUSE};
use crate::saved::{
    Saved, SavedAllocation, SavedClient, SavedDomain, SavedJob, SavedLease, SavedOrphan,
    SavedOwner, SavedState,
};
use crate::slots::{NONE, Slots};
use crate::state::{
    Allocation, AllocationList, Client, Domain, Lease, Orphan, Recall, State, Timer,
};
use fdbroker_protocol::limits::DRIVER_DATA_BYTES;
use fdbroker_protocol::{
    ByCounter, Counter, ErrorCode, MAX_BATCH, MemoryKind, Resource, Scope, Share,
};

/// Why saved data is not gone on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The new configuration cannot work, with any data.
    Config(ConfigError),
    /// The data contradicts itself: what is wrong, and the number of what it is wrong with.
    Broken(&'static str, u64),
    /// The data is sound, but needs more places in the fd table than there are: needed, there.
    Table(u64, u64),
}

impl std::fmt::Display for RestoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RestoreError::Config(error) => error.fmt(f),
            RestoreError::Broken(what, number) => write!(
                f,
                "the state handed over is damaged ({what}: {number}); it is given up, and clients begin anew"
            ),
            RestoreError::Table(needed, has) => write!(
                f,
                "the state handed over needs table_fds = {needed}, there are {has}: raise RLIMIT_NOFILE"
            ),
        }
    }
}

impl std::error::Error for RestoreError {}

impl From<(&'static str, u64)> for RestoreError {
    fn from((what, number): (&'static str, u64)) -> Self {
        RestoreError::Broken(what, number)
    }
}

type Check<T = ()> = Result<T, RestoreError>;

/// Fails unless what is said of a thing holds.
fn ensure(holds: bool, what: &'static str, number: impl Into<u64>) -> Check {
    match holds {
        true => Ok(()),
        false => Err(RestoreError::Broken(what, number.into())),
    }
}

impl Core {
    /// Goes on where [`Core::save`] was called. `config` may be another one: `first_generation` is that of the data,
    /// and `max_slots` must be that of the page gone on with. Every client may have events to take.
    ///
    /// # Errors
    /// When the data contradicts itself, or needs more than the configuration has.
    pub fn restore(mut config: Config, saved: Saved, now: Now) -> Check<Core> {
        config.first_generation = saved.allocations.first_generation;
        let mut core = Core::new(config).map_err(RestoreError::Config)?;
        ensure(saved.can_count_on(), "counts", 0u32)?;
        // A counter that is newer than the predecessor begins at 0.
        ensure(saved.counters.len() <= Counter::COUNT, "counters", saved.counters.len() as u64)?;
        let count = |counter: Counter| saved.counters.get(counter.index()).copied().unwrap_or(0);
        core.counters = ByCounter::from_fn(count);
        (core.arrivals, core.serials) = (saved.arrivals, saved.serials);
        (core.now, core.rooms) = (now, Rooms::after(saved.turns));
        core.restore_domains(&saved.domains, saved.turns)?;
        for client in &saved.clients {
            core.restore_client(client)?;
        }
        let (most, mut beside) = (core.config.max_slots, Vec::new());
        core.allocations =
            Slots::restore(most, SLOTS_BEFORE_REUSE, saved.allocations, |slot, allocation| {
                beside.push((slot, Beside::of(&allocation)));
                core.restored_allocation(slot, allocation)
            })?;
        let mut to_tell = BTreeSet::new();
        core.leases = Slots::restore(NONE, 0, saved.leases, |slot, lease| {
            to_tell.extend(lease.to_tell.then_some(slot));
            core.restored_lease(slot, &lease, now)
        })?;
        for (slot, beside) in beside {
            core.restore_beside(slot, beside)?;
        }
        core.restore_leases(&to_tell)?;
        core.restore_dying(&saved.dying)?;
        core.restore_continuity(&saved.owners, saved.grace_until)?;
        core.check_ends()?;
        core.restore_sums()?;
        core.restore_peaks(&saved.clients, &saved.domains, &saved.node_peaks)?;
        core.restore_jobs(&saved.jobs)?;
        core.ledger.raise_table_peak(saved.table_peak);
        core.draining = saved.draining.map(|serials| Draining { serials, next: Now(0) });
        // The caps may be other ones.
        core.caps_changed(*core.ledger.caps());
        Ok(core)
    }

    fn restore_domains(&mut self, saved: &[SavedDomain], turns: u64) -> Check {
        // Those there are stay, whatever the new limit.
        let most = u32::try_from(saved.len()).unwrap_or(NONE).max(self.config.max_domains);
        self.domains = Slots::new(most, 1, 0);
        for domain in saved {
            let key = DomainKey { listener: domain.listener, uid: domain.uid };
            ensure(!self.domain_by_key.contains_key(&key), "two domains of one uid", key.uid)?;
            ensure(domain.turn <= turns, "domain's turn", domain.turn)?;
            let domain = Domain { turn: domain.turn, ..Domain::new(key) };
            let (number, _) = self.domains.insert(domain).ok_or(("domains", 0))?;
            self.domains[number].scope = self.ledger.open(Scope::Domain, number, ScopeId::NODE);
            self.domain_by_key.insert(key, number);
            self.ledger.add(ScopeId::NODE, DOMAIN);
        }
        Ok(())
    }

    fn restore_client(&mut self, saved: &SavedClient) -> Check {
        let number = saved.number;
        let ascends = self.clients.len() <= number as usize;
        ensure(ascends && number < CLIENT_NUMBERS, "client", number)?;
        ensure(saved.domain < self.domains.slots(), "client's domain", number)?;
        let sorted = saved.groups.is_sorted() && saved.groups.len() <= MOST_GROUPS;
        ensure(sorted, "client's groups", number)?;
        let unused = saved.credits == 0 && saved.own_fds == 0;
        ensure(unused || saved.welcome && !saved.gone, "client's places", number)?;
        let few = saved.credits <= MAX_BATCH as u64 && u32::try_from(saved.own_fds).is_ok();
        ensure(few, "client's number of places", number)?;
        ensure((1..=self.serials).contains(&saved.serial), "client's serial", number)?;
        let key = self.domains[saved.domain].key;
        let job = saved.job.map(|job| self.job((key, JobKey(job)), JobName::NONE));
        let scope = self.open_client(number, saved.domain, job);
        let mut client = Client::new(saved.serial, scope, saved.domain, job, saved.pid);
        let (pid, started, random) = saved.key;
        client.key = OwnerKey { pid, started, random };
        client.gid = saved.gid;
        client.groups = saved.groups.as_slice().into();
        (client.welcome, client.gone) = (saved.welcome, saved.gone);
        (client.silent, client.sendable) = (saved.silent, saved.sendable);
        (client.credits, client.own_fds) = (saved.credits, saved.own_fds);
        client.keeps_asked = saved.keeps_asked;
        self.clients.resize_with(number as usize + 1, || None);
        self.clients[number as usize] = Some(Box::new(client));
        self.domains[saved.domain].clients += 1;
        if let Some(job) = job {
            self.jobs[job].clients += 1;
        }
        Ok(())
    }

    fn restored_allocation(&self, slot: u32, saved: SavedAllocation) -> Check<Allocation> {
        let state = match saved.state {
            SavedState::Held => State::Held,
            SavedState::Resident => State::Resident,
            SavedState::Evicted => State::Evicted,
            SavedState::Recalling { .. } => State::Recalling,
            SavedState::Reserved => State::Reserved,
            SavedState::Ended(code) => {
                let code = ErrorCode::from_number(code);
                State::Ended(code.ok_or(("ended allocation's code", slot.into()))?)
            }
        };
        let owner = saved.owner.unwrap_or(NONE);
        let kind = MemoryKind::from_number(saved.kind);
        let share = Share::from_number(saved.share);
        let deposit = Deposit {
            checked: Ok(()),
            lane: Lane::Accepted,
            file: None,
            kind: kind.ok_or(("allocation's kind", slot.into()))?,
            share: share.ok_or(("allocation's share", slot.into()))?,
            recallable: saved.recallable,
            keep: saved.keep,
            device: saved.device,
            size_bytes: saved.size_bytes,
            fd_offset: saved.fd_offset,
            owner_allocation_id: saved.owner_allocation_id,
            base: saved.base,
            driver_data: (!saved.driver_data.is_empty()).then_some((0, [0; DRIVER_DATA_BYTES])),
        };
        let (registrations, drained) = (saved.registrations, saved.drained);
        let allocation = Allocation::new(&deposit, owner, saved.domain, state);
        let allocation =
            Allocation { registrations, drained, file: saved.file_pages, ..allocation };
        self.check_allocation(slot, &allocation, saved.orphan.is_some())?;
        Ok(allocation)
    }

    /// What must hold of one by itself, and of its owner and its domain.
    fn check_allocation(&self, slot: u32, allocation: &Allocation, is_orphan: bool) -> Check {
        let Allocation { owner, domain, state, traits, .. } = *allocation;
        let (recallable, keep) = (traits.is_recallable(), traits.is_to_be_kept());
        let is_live = allocation.is_live();
        let ends = [allocation.base, allocation.fd_offset];
        let is_bounded = ends.iter().all(|at| at.checked_add(allocation.size_bytes).is_some());
        let is_former = matches!(state, State::Reserved | State::Ended(_)) && owner == NONE;
        let is_sized = allocation.size_bytes > 0 || is_former;
        ensure(is_bounded && is_sized, "allocation's range", slot)?;
        let of_client = self.clients.get(owner as usize).and_then(Option::as_deref);
        let owned = of_client.is_some_and(|client| client.domain == domain);
        let ownerless = owner == NONE && domain < self.domains.slots();
        ensure(owned || ownerless, "allocation's owner", slot)?;
        let is_left = is_live && ownerless && state != State::Reserved;
        ensure(is_orphan == is_left, "allocation's keeper", slot)?;
        let sound = match state {
            State::Held => owned && recallable && !keep,
            State::Resident => keep || owned && !recallable,
            State::Evicted | State::Recalling => owned && recallable,
            State::Reserved => owner == NONE && !keep,
            State::Ended(_) => true,
        };
        ensure(sound, "allocation's state", slot)?;
        ensure(owned || !allocation.drained, "allocation's notice", slot)?;
        ensure(!is_live || !owned || allocation.registrations > 0, "allocation's count", slot)?;
        ensure(!is_live || !allocation.drained, "drained, and lives", slot)
    }

    fn restored_lease(&self, slot: u32, saved: &SavedLease, now: Now) -> Check<Lease> {
        ensure(saved.since <= now.0, "lease of the future", slot)?;
        let found = saved.allocation < self.allocations.slots()
            && self.allocations.is_full(saved.allocation);
        ensure(found, "lease's allocation", slot)?;
        let holder = self.clients.get(saved.client as usize).and_then(Option::as_deref);
        ensure(holder.is_some(), "lease's holder", slot)?;
        Ok(Lease {
            since: Now(saved.since),
            allocation: saved.allocation,
            client: saved.client,
            asked: saved.asked,
            mapped: saved.mapped,
            ended: !self.allocations[saved.allocation].is_live(),
            links: Lease::UNLINKED,
        })
    }

    /// The leases, in the order in which they were granted.
    fn restore_leases(&mut self, to_tell: &BTreeSet<u32>) -> Check {
        let all = self.leases.iter_from(0).map(|(number, lease)| (lease.since, number));
        let mut all: Vec<(Now, u32)> = all.collect();
        all.sort_unstable();
        for (_, number) in all {
            let Lease { allocation, client, asked, mapped, ended, .. } = self.leases[number];
            self.enter_lists(number, allocation, mapped);
            if to_tell.contains(&number) {
                ensure(ended || asked != 0, "lease to ask for", number)?;
                self.with_event_list(client, !ended, |list, links| list.push(links, number));
            }
        }
        Ok(())
    }

    /// Enters a live allocation by its address: live ranges of one owner do not overlap.
    fn restore_base(&mut self, slot: u32) -> Check {
        let allocation = &self.allocations[slot];
        let (owner, base, size) = (allocation.owner, allocation.base, allocation.size_bytes);
        let device = allocation.device;
        if !allocation.is_live() || base == 0 {
            return Ok(());
        }
        let by_base = &self.client_mut(owner).by_base;
        let before = by_base.last_before((device, base + size));
        let overlaps = before.is_some_and(|slot| {
            let before = &self.allocations[slot];
            before.base + before.size_bytes > base
        });
        ensure(!overlaps, "allocations that overlap", slot)?;
        self.client_mut(owner).by_base.insert((device, base), slot);
        Ok(())
    }

    /// What of an allocation is kept beside its record.
    fn restore_beside(&mut self, slot: u32, beside: Beside) -> Check {
        let Beside { driver_data, orphan, recall, file } = beside;
        if self.allocations[slot].owner != NONE {
            self.link(slot, AllocationList::Owned);
            self.restore_base(slot)?;
            if self.allocations[slot].drained {
                self.link(slot, AllocationList::Event);
            }
        }
        if !driver_data.is_empty() {
            ensure(driver_data.len() <= DRIVER_DATA_BYTES, "driver data", slot)?;
            let mut bytes = [0; DRIVER_DATA_BYTES];
            bytes[..driver_data.len()].copy_from_slice(&driver_data);
            let length = u8::try_from(driver_data.len()).expect("at most 64");
            self.driver_data.insert(slot, (length, bytes));
        }
        if let Some(SavedOrphan { until, gid, job }) = orphan {
            // It has a domain: that was checked with its record.
            let key = self.domains[self.allocations[slot].domain].key;
            let job = job.map(|job| self.job((key, JobKey(job)), JobName::NONE));
            self.add_orphan(slot, Orphan { until: Now(until), gid, job });
        }
        if let Some((deadline, overdue, to_tell)) = recall {
            self.restore_recall(slot, deadline.map(Now), overdue);
            if to_tell {
                self.link(slot, AllocationList::Event);
            }
        }
        let is_held = self.allocations[slot].is_held();
        ensure(file.is_none() || is_held, "file of what is not held", slot)?;
        if is_held {
            let file = file.map(|(device, inode, pinned_bytes)| File {
                id: FileId { device, inode },
                pinned_bytes,
            });
            self.pin(slot, file, 0);
        }
        self.lru_insert(slot);
        Ok(())
    }

    fn restore_recall(&mut self, slot: u32, deadline: Option<Now>, overdue: bool) {
        // Of one that is overdue it is not known any more: counted from here on.
        let timeout = self.config.recall_timeout_us;
        let since = deadline.map_or(self.now, |at| Now(at.0.saturating_sub(timeout)));
        let recall = Recall { deadline, overdue, ..Recall::begun(since) };
        let (number, _) = self.recalls.insert(recall).expect("recalls are fewer than slots");
        self.allocations[slot].recall = number;
        self.set_recall_timer(slot, deadline);
        let owner = self.allocations[slot].owner;
        self.client_mut(owner).overdue += u32::from(overdue);
    }

    fn restore_dying(&mut self, dying: &[u32]) -> Check {
        for number in dying {
            let client = self.clients.get(*number as usize).and_then(Option::as_deref);
            let fits = client.is_some_and(|client| client.gone) && !self.dying.contains(number);
            ensure(fits, "client being torn down", *number)?;
            self.dying.push_back(*number);
        }
        let gone = self.clients.iter().flatten().filter(|client| client.gone).count();
        ensure(gone == self.dying.len(), "clients gone", gone as u64)
    }

    fn restore_continuity(&mut self, saved: &[SavedOwner], until: u64) -> Check {
        for owner in saved {
            let SavedOwner { listener, uid, gid, key: (pid, started, random), .. } = *owner;
            let (domain, key) = (DomainKey { listener, uid }, OwnerKey { pid, started, random });
            let former = FormerOwner { domain, gid, key };
            for (slot, kept) in &owner.slots {
                let (slot, kept) = (*slot, *kept);
                let found = self.allocations.is_full(slot).then(|| &self.allocations[slot]);
                let waits = found.is_some_and(|found| {
                    let state = if kept { State::Resident } else { State::Reserved };
                    let its = self.domains[found.domain].key == domain;
                    found.state == state && found.owner == NONE && its
                });
                ensure(waits && !self.continuity.has(slot), "slot that waits", slot)?;
                self.continuity.enter(slot, former, kept);
            }
            if owner.is_complete {
                self.continuity.complete(former);
            }
        }
        let all = self.allocations.iter_from(0);
        let reserved = all.filter(|(_, allocation)| allocation.state == State::Reserved).count();
        ensure(reserved == self.reserved() as usize, "reserved for ever", reserved as u64)?;
        if self.continuity.is_empty() {
            return Ok(());
        }
        self.continuity.set_grace(match until {
            0 => Grace::Ending(0),
            until => Grace::Until(Now(until)),
        });
        if until != 0 {
            self.timers.insert((Now(until), Timer::Grace));
        }
        Ok(())
    }

    /// What has ended is there for its leases, or for its owner to be told.
    fn check_ends(&self) -> Check {
        for (slot, allocation) in self.allocations.iter_from(0) {
            let has_leases = !allocation.leases.is_empty();
            ensure(!allocation.drained || !has_leases, "drained", slot)?;
            let owner = self.clients.get(allocation.owner as usize).and_then(Option::as_deref);
            let freed_later = allocation.drained || owner.is_some_and(|owner| owner.gone);
            let is_used = allocation.is_live() || has_leases || freed_later;
            ensure(is_used, "ended, and not freed", slot)?;
        }
        Ok(())
    }

    /// Counts every charge.
    fn restore_sums(&mut self) -> Check {
        let numbers = (0..).zip(&self.clients).filter(|(_, client)| client.is_some());
        let numbers: Vec<u32> = numbers.map(|(number, _)| number).collect();
        for number in numbers {
            let client = self.client_mut(number);
            let (credits, own) = (client.credits, client.own_fds);
            self.charge_uncapped(number, Charge(Resource::HeldFds, credits));
            self.charge_uncapped(number, Charge(Resource::OwnFds, own));
            self.charge_uncapped(number, CONNECTION);
        }
        for slot in 0..self.allocations.slots() {
            if self.allocations.is_full(slot) {
                self.restore_charges(slot);
            }
        }
        for slot in 0..self.leases.slots() {
            if self.leases.is_full(slot) {
                let Lease { allocation, client, mapped, .. } = self.leases[slot];
                let charge = if mapped {
                    Charge(Resource::MappedLeases, 1)
                } else {
                    Charge(Resource::OpenLeases, 1)
                };
                self.charge_uncapped(client, charge);
                if !self.allocations[allocation].is_live() {
                    let charge =
                        Charge(Resource::PinnedBytes, self.allocations[allocation].size_bytes);
                    let scope = self.scope_of(client);
                    self.ledger.add_below(Scope::Node, scope, charge);
                }
            }
        }
        let is_zero = |scope: ScopeId| self.ledger[scope].account.is_zero();
        let unused = |domain: &Domain| domain.clients == 0 && is_zero(domain.scope);
        let unused = self.domains.iter_from(0).find(|(_, domain)| unused(domain));
        ensure(unused.is_none(), "domain of nobody", unused.map_or(0, |(number, _)| number))?;
        let (needed, has) = (self.ledger.table_now(), self.config.table_fds);
        match needed <= has {
            true => Ok(()),
            false => Err(RestoreError::Table(needed, has)),
        }
    }

    fn restore_charges(&mut self, slot: u32) {
        let allocation = &self.allocations[slot];
        let (owner, domain, size) = (allocation.owner, allocation.domain, allocation.size_bytes);
        let is_recalled = allocation.state == State::Recalling;
        let has_place = allocation.is_held() || is_recalled;
        let is_kept = allocation.is_kept();
        self.held_now += u64::from(allocation.is_held());
        if !allocation.is_live() && !allocation.leases.is_empty() {
            self.ledger.add(ScopeId::NODE, Charge(Resource::PinnedBytes, size));
        }
        let scope = self.payer(owner, domain);
        let mut charges = vec![Charge(Resource::Allocations, 1)];
        if has_place {
            charges.push(Charge(Resource::HeldFds, 1));
        }
        if is_recalled {
            charges.push(Charge(Resource::HeldBytes, self.bytes_to_recall(slot)));
        }
        if is_kept {
            charges.push(Charge(Resource::KeptAllocations, 1));
        }
        for charge in charges {
            self.ledger.add(scope, charge);
        }
    }

    fn restore_peaks(
        &mut self,
        clients: &[SavedClient],
        domains: &[SavedDomain],
        node: &[u128],
    ) -> Check {
        let of_clients = clients.iter().map(|it| (self.scope_of(it.number), &it.peaks[..]));
        let mut all: Vec<_> = of_clients.collect();
        let of_domains = (0..).zip(domains);
        all.extend(of_domains.map(|(number, it)| (self.domains[number].scope, &it.peaks[..])));
        all.push((ScopeId::NODE, node));
        for (scope, peaks) in all {
            ensure(self.ledger.raise_peaks(scope, peaks), "peaks", peaks.len() as u64)?;
        }
        Ok(())
    }

    /// Names and peaks of the jobs that clients and kept allocations are of: each is there, once.
    fn restore_jobs(&mut self, jobs: &[SavedJob]) -> Check {
        ensure(self.jobs.len() == jobs.len(), "jobs", jobs.len() as u64)?;
        let mut seen = BTreeSet::new();
        for job in jobs {
            let key = (DomainKey { listener: job.listener, uid: job.uid }, JobKey(job.key));
            let number = self.job_by_key.get(&key).copied().filter(|_| seen.insert(key));
            let found = &mut self.jobs[number.ok_or(("job", job.key))?];
            found.name = JobName::new(&job.name);
            ensure(self.ledger.raise_peaks(found.scope, &job.peaks), "job's peaks", job.key)?;
        }
        Ok(())
    }
}

impl Saved {
    /// Whether every count can go on for the life of a broker.
    fn can_count_on(&self) -> bool {
        let others = [self.arrivals, self.serials, self.turns];
        let mut counts = self.counters.iter().chain(&others);
        counts.all(|count| *count < u64::MAX / 2)
    }
}

/// What of a saved allocation is not in its record.
struct Beside {
    driver_data: Vec<u8>,
    orphan: Option<SavedOrphan>,
    recall: Option<(Option<u64>, bool, bool)>,
    file: Option<(u64, u64, u64)>,
}

impl Beside {
    fn of(saved: &SavedAllocation) -> Self {
        Beside {
            driver_data: saved.driver_data.clone(),
            orphan: saved.orphan,
            recall: match saved.state {
                SavedState::Recalling { deadline, overdue, to_tell } => {
                    Some((deadline, overdue, to_tell))
                }
                _ => None,
            },
            file: saved.file,
        }
    }
}
