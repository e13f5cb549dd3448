//! Groups that outlive the broker itself: a table outside it has them, and hears of each change; after a crash the broker
//! takes them in again. Must never tell of a group before it is sealed, nor take in a group whose memory is not here.

use super::api::{GroupId, Inherits, KeptChange, KeptGroup, KeptObject, Touch};
use super::groups::{Expect, Group, GroupState, Member};
use super::names::{NameScope, Place};
use crate::Core;
use crate::allocation::{Allocation, State};
use crate::api::{ClientId, Deposit, Lane};
use crate::config::ConfigError;
use crate::lists::Link;
use crate::slots::NONE;
use fdbroker_protocol::limits::{MAX_GROUP, METADATA_BYTES};
use fdbroker_protocol::{Share, is_object_name};

impl KeptGroup<'_> {
    /// Whether it can be one: a table outside the broker may be damaged.
    fn is_sound(&self, last_version: u64) -> bool {
        let is_object = |object: &KeptObject<'_>| {
            let end = object.offset.checked_add(object.size_bytes);
            is_object_name(object.name)
                && object.metadata.len() <= METADATA_BYTES
                && end.is_some_and(|end| end <= self.deposit.size_bytes)
        };
        (1..=last_version).contains(&self.version)
            && (self.keep_us.is_some() || self.pin)
            && (1..=MAX_GROUP).contains(&self.objects.len())
            && self.deposit.has_sound_range()
            && self.objects.iter().all(is_object)
    }
}

impl Core {
    /// The last version that was given.
    pub fn last_version(&self) -> u64 {
        self.objects.version
    }

    /// A group that outlives the broker; `None`: there is none of this number any more.
    pub fn kept_group(&self, group: GroupId) -> Option<KeptGroup<'_>> {
        let number = self.objects.groups.find(group)?;
        let found = &self.objects.groups[number];
        let is_there = found.is_kept && found.version() > 0 && found.allocation != NONE;
        is_there.then(|| self.as_kept(found))
    }

    /// The group that a client makes, if it is to outlive the broker once it is sealed.
    pub fn group_to_keep(&self, client: ClientId, group: GroupId) -> Option<KeptGroup<'_>> {
        self.clients.find(client.0)?;
        let found = &self.objects.groups[self.making(client.0, group).ok()?];
        let (keep_us, pin) = self.lasting(found);
        (keep_us.is_some() || pin).then(|| KeptGroup { keep_us, pin, ..self.as_kept(found) })
    }

    /// The groups of a touch that are to outlive the broker once it is done, and do not yet.
    pub fn groups_to_keep(&self, client: ClientId, touch: &Touch<'_>) -> Vec<KeptGroup<'_>> {
        let known = self.clients.find(client.0);
        let scope = known.and_then(|_| self.names_of(client.0, touch.of_job).ok());
        let Some(scope) = scope.filter(|_| touch.keeps()) else { return Vec::new() };
        let found = touch.names.iter().filter_map(|name| self.sealed(scope, name));
        let mut numbers: Vec<u32> = found.map(|(place, _)| place.group).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let groups = numbers.into_iter().map(|number| &self.objects.groups[number]);
        groups.filter(|group| !group.is_kept).map(|group| self.as_kept(group)).collect()
    }

    /// All groups that outlive the broker.
    pub fn kept_groups(&self) -> impl Iterator<Item = GroupId> {
        let kept = self.objects.groups.iter_from(0).filter(|(_, group)| group.is_kept);
        kept.map(|(number, _)| self.objects.groups.id_of(number))
    }

    fn as_kept<'a>(&'a self, group: &'a Group) -> KeptGroup<'a> {
        let slot = group.allocation;
        let allocation = &self.allocations[slot];
        let named = group.members.iter().filter(|member| member.is_named);
        let object = |member: &'a Member| KeptObject {
            name: &member.name,
            offset: member.offset,
            size_bytes: member.size_bytes,
            metadata: &member.metadata,
        };
        KeptGroup {
            version: group.version(),
            id: self.allocations.id_of(slot),
            domain: self.clients.domain_key(group.domain),
            creator_pid: group.creator_pid,
            keep_us: group.keep_us,
            pin: group.pin,
            evictable: group.evictable,
            since: group.since,
            deposit: Deposit {
                checked: Ok(()),
                lane: Lane::Accepted,
                file: self.file_of(slot),
                kind: allocation.traits.kind(),
                share: Share::Uid,
                recallable: false,
                keep: false,
                device: allocation.device,
                size_bytes: allocation.size_bytes,
                fd_offset: allocation.fd_offset,
                owner_allocation_id: allocation.owner_allocation_id,
                base: 0,
                driver_data: self.allocations.driver_data(slot).copied(),
                virtual_fd: false,
            },
            objects: named.map(object).collect(),
        }
    }

    /// The table hears of a kept group after this step.
    pub(super) fn tell_kept(&mut self, change: KeptChange) {
        self.objects.changes.push(change);
    }

    /// Takes in a group that has outlived a broker, in the slot that its memory had there. Its time begins again: the table
    /// does not hear of each use.
    pub(crate) fn take_in_group(
        &mut self,
        kept: &KeptGroup<'_>,
        last_version: u64,
    ) -> Result<(), ConfigError> {
        let slot = kept.id.slot;
        let wrong =
            |why| ConfigError::new(format!("the kept group of version {} {why}", kept.version));
        let found = self.allocations.find(kept.id).filter(|found| found.state == State::Reserved);
        let domain = match found.map(|found| found.domain) {
            Some(domain) if self.clients.domain_key(domain) == kept.domain => domain,
            Some(_) => return Err(wrong("was another domain's")),
            None => return Err(wrong("is not on the former generation page")),
        };
        if !kept.is_sound(last_version) {
            return Err(wrong("cannot have been one"));
        }
        let allocation = Allocation::new(&kept.deposit, NONE, domain, State::Resident, self.now);
        self.allocations.replace(slot, allocation, kept.deposit.driver_data);
        self.pin(slot, kept.deposit.file, 0);
        let scope = NameScope::Domain(domain);
        let number = self.objects.groups.insert(Group {
            scope,
            domain,
            allocation: NONE,
            creator: (NONE, 0),
            creator_pid: kept.creator_pid,
            state: GroupState::Sealed(kept.version),
            replace: false,
            keep_us: kept.keep_us,
            pin: kept.pin,
            inherits: Inherits::default(),
            outlives: false,
            is_refused: false,
            evictable: kept.evictable,
            is_kept: true,
            due: None,
            size_bytes: kept.deposit.size_bytes,
            since: kept.since.min(self.now),
            used: self.now,
            members: Vec::with_capacity(kept.objects.len()),
            names: 0,
            swept: 0,
            place: None,
            link: Link::OUT,
        });
        self.objects.groups.set_memory(number, slot);
        for (member, object) in (0..).zip(&kept.objects) {
            if self.objects.names.find(scope, object.name).is_some() {
                return Err(wrong("has a name of another one"));
            }
            let place = Place { group: number, member };
            let name = self.objects.names.enter(scope, object.name, place);
            self.objects.names.seal(scope, &name, place);
            let place = (object.offset, object.size_bytes);
            let group = &mut self.objects.groups[number];
            group.add_member(name, place, Expect::Any, object.metadata);
        }
        self.time_group(number);
        self.order_group(number);
        Ok(())
    }
}
