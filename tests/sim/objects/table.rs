//! What outlives a crash, as the daemon has it: a table of kept groups, kept up by what the core
//! tells of them alone, and the generation page. Must never look at the core but for a group that
//! it is told of.

use super::action::New;
use super::model::{Model, State};
use crate::judge::ensure;
use crate::model::Check;
use fdbroker_core::{
    Config, Core, DomainKey, Former, FormerLife, FormerSlot, GroupId, JobKey, JobName, Judged,
    KeptChange, KeptGroup, KeptObject, Now, OwnerKey, Record,
};
use fdbroker_protocol::{AllocationId, ErrorCode, Gpu, MemoryKind, Share};
use std::collections::BTreeMap;

/// A group of the table.
#[derive(Debug)]
struct Kept {
    id: AllocationId,
    domain: DomainKey,
    job: Option<(JobKey, JobName)>,
    creator_pid: u32,
    keep_us: Option<u64>,
    pin: bool,
    evictable: bool,
    since: Now,
    deposit: Judged,
    /// Name, offset, size, metadata.
    objects: Vec<(Vec<u8>, u64, u64, Vec<u8>)>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Table {
    /// By version.
    groups: BTreeMap<u64, Kept>,
    /// The last generation of each slot, and whether it is live.
    slots: BTreeMap<u32, (u32, bool)>,
}

impl Table {
    /// What the core says after a step.
    pub fn hear(&mut self, changes: &[KeptChange], core: &Core) {
        for change in changes {
            match change {
                KeptChange::Began(group) | KeptChange::Changed(group) => {
                    let kept = core.kept_group(*group).map(|kept| (kept.version, Kept::of(&kept)));
                    self.groups.extend(kept);
                }
                KeptChange::Lost(version, name) => {
                    if let Some(group) = self.groups.get_mut(version) {
                        group.objects.retain(|object| *object.0 != **name);
                    }
                }
                KeptChange::Ended(version) => _ = self.groups.remove(version),
            }
        }
    }

    /// What the page shows of a slot from now on.
    pub fn publish(&mut self, slot: u32, generation: u32) {
        let entry = self.slots.entry(slot).or_default();
        *entry = if generation == 0 { (entry.0, false) } else { (generation, true) };
    }

    /// The table has the groups that are kept, with their time, pin and the names that they have,
    /// and no other.
    pub fn check(&self, model: &Model) -> Check {
        let kept = model.groups.iter().filter(|group| model.is_kept(group));
        let right = kept.filter_map(|group| {
            let named = group.objects.iter().zip(&group.named).filter(|it| *it.1);
            let names: Vec<_> = named.map(|it| it.0.name.clone()).collect();
            match group.state {
                State::Sealed(version) => Some((version, (group.keep_us, group.pin, names))),
                _ => None,
            }
        });
        let right: BTreeMap<_, (_, _, Vec<_>)> = right.collect();
        let facts = |kept: &Kept| {
            let names = kept.objects.iter().map(|object| object.0.clone());
            (kept.keep_us, kept.pin, names.collect())
        };
        let is: BTreeMap<_, _> =
            self.groups.iter().map(|(version, kept)| (*version, facts(kept))).collect();
        ensure!(is == right, "the table of kept groups is {is:?}, and must be {right:?}");
        Ok(())
    }

    /// A broker that begins with it.
    pub fn begin(&mut self, config: &mut Config, last_version: u64, now: Now) -> Check<Core> {
        let highest = self.slots.values().map(|(generation, _)| *generation).max().unwrap_or(0);
        config.first_generation = config.first_generation.max(highest + 1);
        let domains: BTreeMap<AllocationId, DomainKey> =
            self.groups.values().map(|kept| (kept.id, kept.domain)).collect();
        let slots = self.slots.iter().map(|(slot, (generation, is_live))| {
            let id = AllocationId { slot: *slot, generation: *generation };
            // Whose others were does not matter: nobody can give them again.
            let domain = domains.get(&id).copied().unwrap_or(DomainKey::new(0, 1000));
            let (share, recallable, owner) = (Share::Uid, false, OwnerKey::default());
            let (kind, gpu, size_bytes) = (MemoryKind::Memfd, Gpu::NONE, 4096);
            let record =
                Record { domain, gid: 100, kind, gpu, size_bytes, share, recallable, owner };
            let life = if *is_live {
                FormerLife::Live { record, owner_lives: false }
            } else {
                FormerLife::Ended(ErrorCode::Stale)
            };
            FormerSlot { id, life }
        });
        let slots: Vec<FormerSlot> = slots.collect();
        let groups: Vec<KeptGroup<'_>> =
            self.groups.iter().map(|(version, kept)| kept.as_group(*version)).collect();
        let former = Former { slots: &slots, groups: &groups, last_version, ..Former::default() };
        let core = Core::after_crash(config.clone(), former, now);
        for (slot, (generation, is_live)) in &mut self.slots {
            let id = AllocationId { slot: *slot, generation: *generation };
            *is_live = domains.contains_key(&id);
        }
        core.map_err(|error| error.to_string())
    }

    /// The number that a new core has given to a group with these objects.
    pub fn id_of(
        core: &Core,
        (domain, objects, named): (DomainKey, &[New], &[bool]),
    ) -> Option<GroupId> {
        let (object, _) = objects.iter().zip(named).find(|it| *it.1)?;
        core.kept_groups().find(|group| {
            let is_it = |it: &KeptObject<'_>| it.name == object.name;
            let kept = core.kept_group(*group).filter(|kept| kept.domain == domain);
            kept.is_some_and(|kept| kept.objects.iter().any(is_it))
        })
    }
}

impl Kept {
    fn of(kept: &KeptGroup<'_>) -> Kept {
        let object = |it: &KeptObject<'_>| {
            (it.name.to_vec(), it.offset, it.size_bytes, it.metadata.to_vec())
        };
        Kept {
            id: kept.id,
            domain: kept.domain,
            job: kept.job,
            creator_pid: kept.creator_pid,
            keep_us: kept.keep_us,
            pin: kept.pin,
            evictable: kept.evictable,
            since: kept.since,
            deposit: kept.deposit,
            objects: kept.objects.iter().map(object).collect(),
        }
    }

    fn as_group(&self, version: u64) -> KeptGroup<'_> {
        let objects = self.objects.iter().map(|(name, offset, size_bytes, metadata)| KeptObject {
            name,
            offset: *offset,
            size_bytes: *size_bytes,
            metadata,
        });
        KeptGroup {
            version,
            id: self.id,
            domain: self.domain,
            job: self.job,
            creator_pid: self.creator_pid,
            keep_us: self.keep_us,
            pin: self.pin,
            evictable: self.evictable,
            since: self.since,
            deposit: self.deposit,
            objects: objects.collect(),
        }
    }
}
