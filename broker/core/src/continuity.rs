//! Coming back after a crash: allocations of before it are reserved for their owners, and end when the owners do not name
//! them again. Must never give such a slot to another allocation, nor grant it before its owner has named it; nor call one
//! drained as long as a client may still declare a lease of it.

use std::collections::{BTreeSet, VecDeque};

use crate::Core;
use crate::allocation::{Allocation, Orphan, State};
use crate::api::{
    ClientId, Config, DomainKey, Effects, Former, FormerLife, FormerSlot, Kept, Now, OwnerKey,
    Record,
};
use crate::config::ConfigError;
use crate::limits::{RESERVED_ENDS_PER_STEP, RESERVED_LOOKS_PER_STEP};
use crate::registry::Registry;
use crate::slots::NONE;
use crate::timers::Timer;
use fdbroker_protocol::{AllocationId, ErrorCode, MemoryKind};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// In the note of a slot: the broker before the crash had drained its last allocation.
const DRAINED: u16 = 1 << 15;

/// An owner of before the crash: its domain, its group, and the client itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct FormerOwner {
    pub domain: DomainKey,
    pub gid: u32,
    pub key: OwnerKey,
}

/// The slots of an owner of before the crash.
#[derive(Debug)]
struct Estate {
    owner: FormerOwner,
    /// Slots that wait for the owner, and some that do not wait any more.
    slots: Vec<u32>,
    /// The owner has named all that is alive.
    is_complete: bool,
}

/// A slot that waits for an owner, by the owner's place in the list of estates.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    estate: u32,
    how: Standing,
}

/// How a slot stands that waits for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Standing {
    /// Its fd is lost: it ends unless its owner names it.
    Reserved,
    /// Its fd outlived the crash: it ends when its owner says so, and not because its owner says nothing.
    Kept,
    /// It has ended: its owner may want to hear when it is drained.
    Ended,
}

/// The time that owners have to name their slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Grace {
    /// Nothing waits for its owner.
    #[default]
    None,
    /// Owners have until this time to name what is alive.
    Until(Now),
    /// The time is over: slots that nobody has named end, from the owner at this place on.
    Ending(usize),
}

/// The allocations that wait for their owners. At most one entry for each slot.
#[derive(Debug, Default)]
pub(crate) struct Continuity {
    estates: Vec<Estate>,
    by_owner: FxHashMap<FormerOwner, u32>,
    awaited: FxHashMap<u32, Awaited>,
    /// Slots in `awaited` that are reserved.
    reserved: u32,
    /// Slots of before the crash that have ended under their owners in the grace time: not drained before it is over.
    lingering: Vec<u32>,
    grace: Grace,
    /// Places of the owners that have named all that is alive, and whose other slots have not all ended.
    complete: VecDeque<u32>,
}

impl Continuity {
    /// The slot waits for this owner from now on.
    pub fn enter(&mut self, slot: u32, owner: FormerOwner, how: Standing) {
        let next = u32::try_from(self.estates.len()).expect("owners are fewer than slots");
        let estate = *self.by_owner.entry(owner).or_insert(next);
        if estate == next {
            self.estates.push(Estate { owner, slots: Vec::new(), is_complete: false });
        }
        self.estates[estate as usize].slots.push(slot);
        self.awaited.insert(slot, Awaited { estate, how });
        self.reserved += u32::from(how == Standing::Reserved);
    }

    /// The owner has named the slot, or nobody waits for that any more.
    pub fn leave(&mut self, slot: u32) {
        if let Some(Awaited { how, .. }) = self.awaited.remove(&slot) {
            self.reserved -= u32::from(how == Standing::Reserved);
        }
    }

    /// The slot has ended. One that was reserved waits for its owner still, who may want to hear when it is drained.
    pub fn end(&mut self, slot: u32) {
        match self.awaited.get_mut(&slot) {
            Some(Awaited { how: how @ Standing::Reserved, .. }) => {
                *how = Standing::Ended;
                self.reserved -= 1;
            }
            _ => self.leave(slot),
        }
    }

    /// The slot has ended under its owner: it is not drained before the grace time is over.
    pub fn linger(&mut self, slot: u32) {
        self.lingering.push(slot);
    }

    pub fn has(&self, slot: u32) -> bool {
        self.awaited.contains_key(&slot)
    }

    pub fn is_empty(&self) -> bool {
        self.awaited.is_empty() && self.lingering.is_empty()
    }

    pub fn grace(&self) -> Grace {
        self.grace
    }

    pub fn set_grace(&mut self, grace: Grace) {
        self.grace = grace;
    }

    /// Whether slots are to be ended now.
    pub fn has_work(&self) -> bool {
        !self.complete.is_empty() || matches!(self.grace, Grace::Ending(_))
    }

    fn estate_of(&self, slot: u32) -> Option<(&Estate, Standing)> {
        let Awaited { estate, how } = *self.awaited.get(&slot)?;
        Some((&self.estates[estate as usize], how))
    }

    /// Why the slot can no longer be named: its owner has not named it in time.
    pub fn lost(&self, slot: u32) -> Option<ErrorCode> {
        let (estate, how) = self.estate_of(slot)?;
        match (self.grace, how) {
            (_, Standing::Ended) => None,
            _ if estate.is_complete => Some(ErrorCode::Stale),
            (Grace::Ending(_), Standing::Reserved) => Some(ErrorCode::OwnerGone),
            _ => None,
        }
    }

    /// The group of the slot's owner.
    pub fn gid_of(&self, slot: u32) -> Option<u32> {
        self.estate_of(slot).map(|(estate, _)| estate.owner.gid)
    }

    /// The owner's slots that still wait are to end. Once the time is over they end anyway.
    pub fn complete(&mut self, owner: FormerOwner) {
        if matches!(self.grace, Grace::Ending(_)) {
            return;
        }
        let Some(place) = self.by_owner.get(&owner).copied() else { return };
        let estate = &mut self.estates[place as usize];
        if !std::mem::replace(&mut estate.is_complete, true) {
            self.complete.push_back(place);
        }
    }

    /// The next slot to end, and why; or, without a reason, one that has ended and may be drained. Each entry looked at
    /// takes one of `looks`.
    fn next_lost(&mut self, looks: &mut usize) -> Option<(u32, Option<ErrorCode>)> {
        while *looks > 0 {
            let (place, is_complete) = match (self.complete.front(), self.grace) {
                (Some(place), _) => (*place, true),
                (None, Grace::Ending(place)) => (u32::try_from(place).ok()?, false),
                (None, _) => return None,
            };
            *looks -= 1;
            let estate = self.estates.get_mut(place as usize);
            if estate.is_none()
                && let Some(slot) = self.lingering.pop()
            {
                return Some((slot, None));
            }
            let Some(slot) = estate.and_then(|estate| estate.slots.pop()) else {
                self.next_estate(is_complete);
                continue;
            };
            let awaited = self.awaited.get(&slot).filter(|awaited| awaited.estate == place);
            match awaited {
                Some(Awaited { how: Standing::Ended, .. }) => return Some((slot, None)),
                Some(_) if is_complete => return Some((slot, Some(ErrorCode::Stale))),
                Some(Awaited { how: Standing::Kept, .. }) => self.leave(slot),
                Some(_) => return Some((slot, Some(ErrorCode::OwnerGone))),
                None => {}
            }
        }
        None
    }

    /// The owner at hand has no slots any more.
    fn next_estate(&mut self, is_complete: bool) {
        match self.grace {
            _ if is_complete => drop(self.complete.pop_front()),
            Grace::Ending(place) if place < self.estates.len() => {
                self.grace = Grace::Ending(place + 1);
            }
            _ => *self = Continuity::default(),
        }
    }

    /// Lets another owner's slots end next.
    fn turn(&mut self) {
        if self.complete.len() > 1 {
            self.complete.rotate_left(1);
        }
    }

    /// All owners that slots wait for: whether each has named all that is alive, and its slots.
    pub fn all(&self) -> impl Iterator<Item = (FormerOwner, bool, Vec<(u32, Standing)>)> {
        (0..).zip(&self.estates).filter_map(|(place, estate)| {
            let awaited = |slot: &u32| {
                let awaited = self.awaited.get(slot).filter(|awaited| awaited.estate == place)?;
                Some((*slot, awaited.how))
            };
            let slots: Vec<_> = estate.slots.iter().filter_map(awaited).collect();
            (!slots.is_empty()).then_some((estate.owner, estate.is_complete, slots))
        })
    }
}

impl Core {
    /// Begins anew after a broker that was killed: what was live is reserved for its owners, who may name it within
    /// `grace_us`; what it kept lives on without its owner for `keep_ttl_us`; what nobody can bring back has ended.
    /// `first_generation` must be above every generation of `former`.
    ///
    /// # Errors
    /// When a number of the configuration cannot work, or `former` does not fit it; the message says which.
    pub fn after_crash(config: Config, former: Former<'_>, now: Now) -> Result<Core, ConfigError> {
        let mut core = Core::new(config)?;
        core.now = now;
        let mut kept: BTreeSet<AllocationId> = former.kept.iter().map(|kept| kept.id).collect();
        let of_groups: BTreeSet<AllocationId> =
            former.groups.iter().map(|group| group.id).collect();
        kept.extend(&of_groups);
        let values = former.slots.iter().map(|FormerSlot { id, life }| {
            (id.slot, id.generation, core.former_allocation(life, kept.contains(id), now))
        });
        let values: Vec<_> = values.collect();
        let (most, first) = (core.config.max_slots, core.config.first_generation);
        core.allocations = Registry::holding(most, first, values.into_iter()).ok_or_else(|| {
            ConfigError::new(format!(
                "the former generation page does not fit max_slots = {most} and first_generation = {first}: \
                 keep max_slots as it was, or remove the page to begin anew"
            ))
        })?;
        for FormerSlot { id, life } in former.slots {
            let (record, how) = match life {
                FormerLife::Live { record, .. } if kept.contains(id) => (record, Standing::Kept),
                FormerLife::Live { record, .. } => (record, Standing::Reserved),
                FormerLife::Leased { record, .. } => (record, Standing::Ended),
                FormerLife::Ended(_) => continue,
            };
            // A group of objects waits for nobody.
            if core.allocations.is_full(id.slot) && !of_groups.contains(id) {
                core.continuity.enter(id.slot, record.former_owner(), how);
            }
        }
        for kept in former.kept {
            core.keep_former(kept, now)?;
        }
        core.objects.begin_above(former.last_version);
        for group in former.groups {
            core.take_in_group(group, former.last_version)?;
        }
        core.recount();
        let (needed, _, has) = core.ledger.table();
        if needed > has {
            return Err(ConfigError::new(format!(
                "with all kept allocations table_fds = {needed} are needed, there are {has}: raise RLIMIT_NOFILE"
            )));
        }
        if core.allocations.len() > 0 {
            // There may be more than the caps allow now: they stay until they end.
            core.caps_changed(*core.ledger.caps());
        }
        if !core.continuity.is_empty() {
            let until = now.after(core.config.grace_us);
            core.continuity.set_grace(Grace::Until(until));
            core.timers.set(until, Timer::Grace);
        }
        core.assert_invariants();
        Ok(core)
    }

    /// An allocation that waits for its owner; or why it has ended.
    fn former_allocation(
        &mut self,
        life: &FormerLife,
        is_kept: bool,
        now: Now,
    ) -> Result<Allocation, u16> {
        let (record, can_return, state, code) = match life {
            FormerLife::Ended(code) => return Err(*code as u16 | DRAINED),
            FormerLife::Leased { record, owner_lives, code } => {
                (record, *owner_lives, State::Ended(*code), *code)
            }
            // Without its owner, or its owner's way to export it again, its fd is lost.
            FormerLife::Live { record, owner_lives } => {
                let can_return = is_kept || *owner_lives && record.recallable;
                (record, can_return, State::Reserved, ErrorCode::OwnerGone)
            }
        };
        let domain = if can_return { self.domain(record.domain) } else { None };
        let domain = domain.ok_or(code as u16)?;
        Ok(Allocation::former(domain, record, state, now))
    }

    /// The fd of a slot has outlived the crash: it lives on without its owner.
    fn keep_former(&mut self, kept: &Kept, now: Now) -> Result<(), ConfigError> {
        let Kept { id, domain: key, gid, job, deposit } = kept;
        let found = self.allocations.find(*id);
        let is_reserved = found.is_some_and(|found| found.state == State::Reserved);
        let wrong = |why| ConfigError::new(format!("the kept allocation {id} {why}"));
        if !is_reserved || !deposit.keep || !deposit.has_sound_range() {
            return Err(wrong("is not one of the former generation page"));
        }
        let domain = self.allocations[id.slot].domain;
        if self.clients.domain_key(domain) != *key {
            return Err(wrong("was another domain's"));
        }
        let allocation = Allocation::new(deposit, NONE, domain, State::Resident, now);
        self.allocations.replace(id.slot, allocation, deposit.driver_data);
        self.pin(id.slot, deposit.file, 0);
        let until = now.after(self.config.keep_ttl_us);
        let Core { clients, ledger, .. } = self;
        let job = job.map(|(job, name)| clients.job_of((*key, job), name, ledger));
        self.add_orphan(id.slot, Orphan { until, gid: *gid, job });
        Ok(())
    }

    /// What to remember of the live allocation in a slot, for a broker after a crash.
    pub fn record(&self, slot: u32) -> Option<(AllocationId, Record)> {
        let allocation = self.allocations.in_slot(slot)?;
        let owner = self.clients.find(allocation.owner);
        let record = Record {
            domain: self.clients.domain_key(allocation.domain),
            gid: self.gid_of(slot)?,
            share: allocation.traits.share(),
            recallable: allocation.traits.is_recallable(),
            owner: owner.map_or(OwnerKey::default(), |owner| owner.key),
        };
        allocation.is_live().then(|| (self.allocations.id_of(slot), record))
    }

    /// Slots of before a crash that no owner has named again yet.
    pub fn reserved(&self) -> u32 {
        self.continuity.reserved
    }

    /// Whether the allocation waits for its owner of before a crash.
    pub fn is_reserved(&self, id: AllocationId) -> bool {
        let found = self.allocations.find(id);
        found.is_some_and(|found| found.state == State::Reserved)
    }

    /// Why an allocation has ended; `None` while it lives. A handle that is older than its slot's last allocation is stale.
    pub fn end_of(&self, id: AllocationId) -> Option<ErrorCode> {
        match self.allocations.find(id) {
            Some(allocation) => match allocation.state {
                State::Ended(code) => Some(code),
                _ => None,
            },
            None => Some(self.end_of_former(id)),
        }
    }

    /// The same of one whose slot is free or another's.
    pub(crate) fn end_of_former(&self, id: AllocationId) -> ErrorCode {
        let noted = self.allocations.note(id.slot, id.generation);
        let code = noted.and_then(|noted| ErrorCode::from_number(noted & !DRAINED));
        code.unwrap_or(ErrorCode::Stale)
    }

    /// Whether an allocation has ended and is not forgotten: it is leased, or its owner has not heard that it is drained.
    pub fn is_ended_here(&self, id: AllocationId) -> bool {
        let found = self.allocations.find(id);
        found.is_some_and(|allocation| !allocation.is_live())
    }

    /// Whether the broker before the crash had drained an allocation, and its slot is as it left it.
    pub(crate) fn was_drained(&self, id: AllocationId) -> bool {
        let noted = self.allocations.note(id.slot, id.generation);
        noted.is_some_and(|noted| noted & DRAINED != 0)
    }

    /// Whether an allocation that has ended may be leased without the broker's knowing: clients of before the crash can
    /// declare their leases of it, for its owner to hear when it is drained.
    pub(crate) fn lingers(&self, slot: u32) -> bool {
        let is_former = self.allocations.generation(slot) < self.config.first_generation;
        let is_time = matches!(self.continuity.grace(), Grace::Until(_));
        let owner = self.clients.find(self.allocations[slot].owner);
        let is_owned = owner.is_some_and(|owner| !owner.gone);
        self.continuity.has(slot) || is_owned && is_former && is_time
    }

    /// A client, as the daemon knows it over brokers and connections.
    pub(crate) fn identify(&mut self, client: ClientId, key: OwnerKey) {
        if let Some(record) = self.client(client) {
            record.key = key;
        }
    }

    /// An owner has named all that is alive of what it had before the crash: the rest ends.
    pub(crate) fn complete(&mut self, client: ClientId) {
        let record = self.client_mut(client.0);
        let (domain, gid, key) = (record.domain, record.gid, record.key);
        let domain = self.clients.domain_key(domain);
        if key != OwnerKey::default() {
            self.continuity.complete(FormerOwner { domain, gid, key });
        }
    }

    /// Ends slots that their owners have not named, a bounded number at a time, in turns between owners.
    pub(crate) fn end_lost(&mut self, fx: &mut Effects) {
        let mut looks = RESERVED_LOOKS_PER_STEP;
        for _ in 0..RESERVED_ENDS_PER_STEP {
            let Some((slot, lost)) = self.continuity.next_lost(&mut looks) else { break };
            self.continuity.leave(slot);
            if let Some(code) = lost {
                self.end(slot, code, fx);
            }
            // What has lingered may have been drained meanwhile, and its slot used again.
            if self.allocations.is_full(slot) && !self.allocations[slot].drained {
                self.drain_if_done(slot);
            }
        }
        self.continuity.turn();
    }
}

impl Record {
    fn former_owner(&self) -> FormerOwner {
        FormerOwner { domain: self.domain, gid: self.gid, key: self.owner }
    }
}

impl Allocation {
    /// An allocation that waits for its owner: its domain and share are known, and nothing else.
    fn former(domain: u32, record: &Record, state: State, now: Now) -> Self {
        let deposit = crate::api::Deposit {
            checked: Ok(()),
            lane: crate::api::Lane::Accepted,
            file: None,
            kind: MemoryKind::Memfd,
            share: record.share,
            recallable: record.recallable,
            keep: false,
            device: 0,
            size_bytes: 0,
            fd_offset: 0,
            owner_allocation_id: 0,
            base: 0,
            driver_data: None,
            virtual_fd: false,
        };
        Allocation::new(&deposit, NONE, domain, state, now)
    }
}
