//! Begins anew after a crash: what was live is reserved for its owners. Must never believe what it
//! reads.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{
    Config, ConfigError, Deposit, DomainKey, Former, FormerLife, FormerSlot, JobKey, JobName,
    Judged, Kept, KeptGroup, KeptObject, NONE, Now, Record,
};
use crate::books::continuity::{DRAINED, FormerOwner, Standing};
use crate::books::objects::groups::{Expect, Group, GroupState};
use crate::books::objects::names::{NameScope, Place};
use crate::books::registry::Registry;
use crate::books::{Allocation, Books, Grace, Orphan, State, Timer};
use crate::core::Core;
use fdbroker_protocol::limits::{MAX_GROUP, METADATA_BYTES};
use fdbroker_protocol::{AllocationId, ErrorCode, Facts, Gpu, is_object_name};

const UNKNOWN: &str = "is not one of the former generation page";
const WRONG_DOMAIN: &str = "was another domain's";
const TWICE: &str = "has a name of another one";

impl KeptGroup<'_> {
    /// Whether it can be one: a table outside the broker may be damaged.
    fn is_sound(&self, last_version: u64) -> bool {
        let is_object = |object: &KeptObject<'_>| {
            let end = object.offset.checked_add(object.size_bytes);
            is_object_name(object.name)
                && object.metadata.len() <= METADATA_BYTES
                && end.is_some_and(|end| end <= self.deposit.facts.size_bytes)
        };
        (1..=last_version).contains(&self.version)
            && (self.keep_us.is_some() || self.pin)
            && (1..=MAX_GROUP).contains(&self.objects.len())
            && self.objects.iter().all(is_object)
    }
}

impl Former<'_> {
    /// What of all that is kept cannot have been, and why: it would be refused, and everything with
    /// it.
    pub fn doubtful(&self) -> Vec<(AllocationId, &'static str)> {
        let live = self.slots.iter().filter_map(|slot| match &slot.life {
            FormerLife::Live { record, .. } => Some((slot.id, record.domain)),
            FormerLife::Leased { .. } | FormerLife::Ended(_) => None,
        });
        let mut domains: BTreeMap<AllocationId, DomainKey> = live.collect();
        let mut names = BTreeSet::new();
        let mut doubt = |id, domain, deposit: &Judged, is_sound: bool| match domains.remove(&id) {
            Some(its) if its != domain => Some(WRONG_DOMAIN),
            Some(_) if is_sound && deposit.has_sound_range() => None,
            _ => Some(UNKNOWN),
        };
        let of_kept = self.kept.iter().filter_map(|Kept { id, domain, deposit, .. }| {
            Some((*id, doubt(*id, *domain, deposit, deposit.keep)?))
        });
        let mut all: Vec<_> = of_kept.collect();
        for group in self.groups {
            let is_sound = group.is_sound(self.last_version);
            let mut own = group.objects.iter().map(|object| (group.domain, object.name));
            match doubt(group.id, group.domain, &group.deposit, is_sound) {
                None if own.all(|name| names.insert(name)) => {}
                why => all.push((group.id, why.unwrap_or(TWICE))),
            }
        }
        all
    }
}

impl Core {
    /// Begins anew after a broker that was killed: what was live is reserved for its owners, who
    /// may name it within `grace_us`; what it kept lives on without its owner for `keep_ttl_us`;
    /// what nobody can bring back has ended, and its holders may declare it in that time.
    /// `first_generation` must be above every generation of `former`.
    ///
    /// # Errors
    /// When a number of the configuration cannot work, or `former` does not fit it; the message
    /// says which.
    pub fn after_crash(config: Config, former: Former<'_>, now: Now) -> Result<Core, ConfigError> {
        let mut core = Core::new(config)?;
        let mut kept: BTreeSet<AllocationId> = former.kept.iter().map(|kept| kept.id).collect();
        let of_groups: BTreeSet<AllocationId> =
            former.groups.iter().map(|group| group.id).collect();
        kept.extend(&of_groups);
        let values = former.slots.iter().map(|FormerSlot { id, life }| {
            (id.slot, id.generation, core.former_allocation(life, kept.contains(id), now))
        });
        let values: Vec<_> = values.collect();
        let (most, first) = (core.books.config.max_slots, core.books.config.first_generation);
        core.books.allocations = Registry::holding(most, first, values.into_iter()).ok_or_else(|| {
            ConfigError(format!(
                "the former generation page does not fit max_slots = {most} and first_generation = {first}: \
                 keep max_slots as it was, or remove the page to begin anew"
            ))
        })?;
        for FormerSlot { id, life } in former.slots {
            let (record, how) = match life {
                FormerLife::Live { record, .. } if kept.contains(id) => (record, Standing::Kept),
                FormerLife::Live { record, owner_lives } => {
                    match (owner_lives, record.recallable) {
                        (true, true) => (record, Standing::Reserved),
                        _ => (record, Standing::Ended),
                    }
                }
                FormerLife::Leased { record, .. } => (record, Standing::Ended),
                FormerLife::Ended(_) => continue,
            };
            core.count_former(life, how);
            core.name_former_gpu(*id, record.gpu);
            // A group of objects waits for nobody.
            if core.books.allocations.is_full(id.slot) && !of_groups.contains(id) {
                let Record { domain, gid, owner: key, .. } = *record;
                core.books.continuity.enter(id.slot, FormerOwner { domain, gid, key }, how);
            }
        }
        for kept in former.kept {
            core.keep_former(kept, now)?;
        }
        core.books.objects.version = former.last_version;
        for group in former.groups {
            core.take_in_group(group, former.last_version, now)?;
        }
        core.recount();
        let (needed, _, has) = core.books.ledger.table();
        if needed > has {
            return Err(ConfigError(format!(
                "with all kept allocations table_fds = {needed} are needed, there are {has}: raise RLIMIT_NOFILE"
            )));
        }
        if core.books.allocations.len() > 0 {
            // There may be more than the caps allow now: they stay until they end.
            core.books.caps_changed(*core.books.ledger.caps());
        }
        if !core.books.continuity.is_empty() {
            let until = now.after(core.books.config.grace_us);
            core.books.continuity.set_grace(Grace::Until(until));
            core.books.timers.set(until, Timer::Grace);
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
        let (record, state) = match life {
            FormerLife::Ended(code) => return Err(*code as u16 | DRAINED),
            FormerLife::Leased { record, code, .. } => (record, State::Ended(*code)),
            FormerLife::Live { record, owner_lives } => match (owner_lives, record.recallable) {
                _ if is_kept => (record, State::Reserved),
                (true, true) => (record, State::Reserved),
                // Without its owner, or its owner's way to export it again, its fd is lost.
                (true, false) => (record, State::Ended(ErrorCode::Lost)),
                (false, _) => (record, State::Ended(ErrorCode::OwnerGone)),
            },
        };
        let code = if let State::Ended(code) = state { code } else { ErrorCode::Lost };
        let domain = self.books.domain(record.domain).ok_or(code as u16)?;
        let Record { kind, size_bytes, share, recallable, .. } = *record;
        let deposit = Deposit { share, recallable, ..Facts::new(kind, size_bytes).into() };
        Ok(Allocation::new(&deposit, NONE, domain, state, now))
    }

    /// Its slot goes by the GPU that its owner has named; a table that is damaged names too many.
    fn name_former_gpu(&mut self, id: AllocationId, gpu: Gpu) {
        let found = self.books.allocations.find(id).map(|it| it.domain);
        if found.is_some_and(|domain| self.books.may_name(domain, gpu).is_ok()) {
            self.books.enter_gpu(id.slot, gpu);
        }
    }

    /// What was live and cannot come back is lost.
    fn count_former(&mut self, life: &FormerLife, how: Standing) {
        let FormerLife::Live { owner_lives, .. } = life else { return };
        let comeback = &mut self.books.continuity.comeback;
        match (how, owner_lives) {
            (Standing::Reserved, _) => return,
            (Standing::Kept, _) => comeback.named += 1,
            (Standing::Ended, true) => comeback.not_recallable += 1,
            (Standing::Ended, false) => comeback.without_owner += 1,
        }
        let is_lost = how == Standing::Ended;
        self.books.counters.lost += u64::from(is_lost);
        self.books.counters.named_again += u64::from(!is_lost);
    }

    /// The fd of a slot has outlived the crash: it lives on without its owner.
    fn keep_former(&mut self, kept: &Kept, now: Now) -> Result<(), ConfigError> {
        let Kept { id, domain: key, gid, job, deposit } = kept;
        self.hold_former(*id, *key, deposit, deposit.keep, now)
            .map_err(|why| ConfigError(format!("the kept allocation {id} {why}")))?;
        let until = now.after(self.books.config.keep_ttl_us);
        let job = self.former_job(*key, *job);
        self.books.add_orphan(id.slot, Orphan { until, gid: *gid, job });
        Ok(())
    }

    /// The number of a job of a domain that is there.
    fn former_job(&mut self, of: DomainKey, job: Option<(JobKey, JobName)>) -> Option<u32> {
        let Books { clients, ledger, .. } = &mut self.books;
        job.map(|(job, name)| clients.job_of((of, job), name, ledger))
    }

    /// Memory whose fd has outlived the crash is held by nobody but its domain, which is given.
    fn hold_former(
        &mut self,
        id: AllocationId,
        key: DomainKey,
        deposit: &Judged,
        is_sound: bool,
        now: Now,
    ) -> Result<u32, &'static str> {
        let found = self.books.allocations.find(id).filter(|it| it.state == State::Reserved);
        let domain = match found {
            Some(found) if is_sound && deposit.has_sound_range() => found.domain,
            _ => return Err(UNKNOWN),
        };
        if self.books.may_name(domain, deposit.facts.gpu).is_err() {
            return Err("is on a GPU beyond those that a domain may name");
        }
        if self.books.clients.domain_key(domain) != key {
            return Err(WRONG_DOMAIN);
        }
        let allocation = Allocation::new(deposit, NONE, domain, State::Resident, now);
        self.books.allocations.replace(id.slot, allocation, deposit.driver_data);
        self.books.enter_gpu(id.slot, deposit.facts.gpu);
        self.books.pin(id.slot, deposit.file, 0);
        Ok(domain)
    }

    /// Takes in a group that has outlived a broker, in the slot that its memory had there. Its time
    /// begins again: the table does not hear of each use.
    fn take_in_group(
        &mut self,
        kept: &KeptGroup<'_>,
        last_version: u64,
        now: Now,
    ) -> Result<(), ConfigError> {
        let wrong = |why| ConfigError(format!("the kept group of version {} {why}", kept.version));
        let is_sound = kept.is_sound(last_version);
        let domain =
            self.hold_former(kept.id, kept.domain, &kept.deposit, is_sound, now).map_err(wrong)?;
        let job = self.former_job(kept.domain, kept.job);
        let scope = NameScope::Domain(domain);
        let size = kept.deposit.facts.size_bytes;
        let number = self.books.objects.groups.insert(Group {
            job,
            is_host: kept.deposit.facts.is_of_host(),
            state: GroupState::Sealed(kept.version),
            keep_us: kept.keep_us,
            pin: kept.pin,
            evictable: kept.evictable,
            is_kept: true,
            since: kept.since.min(now),
            ..Group::new(domain, scope, (NONE, 0), kept.creator_pid, size, now)
        });
        self.books.objects.groups.set_memory(number, kept.id.slot);
        for (member, object) in (0..).zip(&kept.objects) {
            if self.books.objects.names.find(scope, object.name).is_some() {
                return Err(wrong(TWICE));
            }
            let place = Place { group: number, member };
            let name = self.books.objects.names.enter(scope, object.name, place);
            self.books.objects.names.seal(scope, &name, place);
            let place = (object.offset, object.size_bytes);
            let group = &mut self.books.objects.groups[number];
            group.add_member(name, place, Expect::Any, object.metadata);
            job.into_iter().for_each(|job| self.books.clients.add_object(job));
        }
        self.books.time_group(number);
        self.books.order_group(number);
        Ok(())
    }
}
