//! What to remember outside the broker, for one after a crash. Must never change anything.

use crate::api::{
    ClientId, Deposit, GroupId, JobKey, JobName, Judged, Kept, KeptGroup, KeptObject, NONE,
    OwnerKey, Record, Touch,
};
use crate::books::objects::groups::{Group, Member};
use crate::core::Core;
use fdbroker_protocol::{AllocationId, ErrorCode};

impl Core {
    /// What to remember of the live allocation in a slot, for a broker after a crash.
    pub fn record(&self, slot: u32) -> Option<(AllocationId, Record)> {
        let allocation = self.books.allocations.in_slot(slot)?;
        let owner = self.books.clients.find(allocation.owner);
        let record = Record {
            domain: self.books.clients.domain_key(allocation.domain),
            gid: self.books.gid_of(slot)?,
            kind: allocation.traits.kind(),
            gpu: self.books.allocations.facts(slot).gpu,
            size_bytes: allocation.size_bytes,
            share: allocation.traits.share(),
            recallable: allocation.traits.is_recallable(),
            owner: owner.map_or(OwnerKey::default(), |owner| owner.key),
        };
        allocation.is_live().then(|| (self.books.allocations.id_of(slot), record))
    }

    /// Why an allocation has ended; `None` while it lives. A handle that is older than its slot's
    /// last allocation is stale.
    pub fn end_of(&self, id: AllocationId) -> Option<ErrorCode> {
        match self.books.allocations.find(id) {
            Some(allocation) => allocation.ended(),
            None => Some(self.books.end_of_former(id)),
        }
    }

    /// What to remember with the fd of a slot that is in the service manager's store: for
    /// [`Effect::Keep`](crate::Effect::Keep). `None` when the slot is not kept, or its fd is not
    /// here.
    pub fn kept(&self, slot: u32) -> Option<Kept> {
        let allocation = self.books.allocations.in_slot(slot).filter(|it| it.outlives_owner())?;
        Some(Kept {
            id: self.books.allocations.id_of(slot),
            domain: self.books.clients.domain_key(allocation.domain),
            gid: self.books.gid_of(slot)?,
            job: self.books.job_of_slot(slot).map(|job| self.named_job(job)),
            deposit: self.deposit_of(slot),
        })
    }

    fn named_job(&self, number: u32) -> (JobKey, JobName) {
        (self.books.clients.job_key(number), self.books.clients.job(number).name)
    }

    /// The allocation in a slot as its owner has deposited it.
    fn deposit_of(&self, slot: u32) -> Judged {
        let allocation = &self.books.allocations[slot];
        let traits = allocation.traits;
        let claimed = Deposit {
            facts: self.books.allocations.facts(slot),
            share: traits.share(),
            recallable: traits.is_recallable(),
            keep: traits.is_to_be_kept(),
            base: allocation.base,
            driver_data: self.books.allocations.driver_data(slot).copied(),
            virtual_fd: traits.has_virtual_fd(),
        };
        Judged { claimed, file: self.books.file_of(slot) }
    }

    /// The last version that was given.
    pub fn last_version(&self) -> u64 {
        self.books.objects.version
    }

    /// A group that outlives the broker; `None`: there is none of this number any more.
    pub fn kept_group(&self, group: GroupId) -> Option<KeptGroup<'_>> {
        let number = self.books.objects.groups.find(group)?;
        let found = &self.books.objects.groups[number];
        let is_there = found.is_kept && found.version() > 0 && found.allocation != NONE;
        is_there.then(|| self.as_kept(found))
    }

    /// The group that a client makes, if it is to outlive the broker once it is sealed.
    pub fn group_to_keep(&self, client: ClientId, group: GroupId) -> Option<KeptGroup<'_>> {
        self.books.clients.find(client.0)?;
        let found = &self.books.objects.groups[self.books.making(client.0, group).ok()?];
        let (keep_us, pin) = self.books.lasting(found);
        (keep_us.is_some() || pin).then(|| KeptGroup { keep_us, pin, ..self.as_kept(found) })
    }

    /// The groups of a touch that are to outlive the broker once it is done, and do not yet.
    pub fn groups_to_keep(&self, client: ClientId, touch: &Touch<'_>) -> Vec<KeptGroup<'_>> {
        let known = self.books.clients.find(client.0);
        let scope = known.and_then(|_| self.books.names_of(client.0, touch.of_job).ok());
        let Some(scope) = scope.filter(|_| touch.keeps()) else { return Vec::new() };
        let found = touch.names.iter().filter_map(|name| self.books.sealed(scope, name));
        let mut numbers: Vec<u32> = found.map(|(place, _)| place.group).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let groups = numbers.into_iter().map(|number| &self.books.objects.groups[number]);
        groups.filter(|group| !group.is_kept).map(|group| self.as_kept(group)).collect()
    }

    /// All groups that outlive the broker.
    pub fn kept_groups(&self) -> impl Iterator<Item = GroupId> {
        let kept = self.books.objects.groups.iter_from(0).filter(|(_, group)| group.is_kept);
        kept.map(|(number, _)| self.books.objects.groups.id_of(number))
    }

    fn as_kept<'a>(&'a self, group: &'a Group) -> KeptGroup<'a> {
        let slot = group.allocation;
        let named = group.members.iter().filter(|member| member.is_named);
        let object = |member: &'a Member| KeptObject {
            name: &member.name,
            offset: member.offset,
            size_bytes: member.size_bytes,
            metadata: &member.metadata,
        };
        KeptGroup {
            version: group.version(),
            id: self.books.allocations.id_of(slot),
            domain: self.books.clients.domain_key(group.domain),
            job: group.job.map(|job| self.named_job(job)),
            creator_pid: group.creator_pid,
            keep_us: group.keep_us,
            pin: group.pin,
            evictable: group.evictable,
            since: group.since,
            deposit: self.deposit_of(slot),
            objects: named.map(object).collect(),
        }
    }
}
