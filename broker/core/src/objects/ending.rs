//! Ends of groups: a group without names, or whose memory ends, is unknown at once; its members, and its memory, are swept
//! in portions, the domains in turn. Must never end memory that a lease pins, but for the broker's own fd of it.

use super::api::{Deleted, KeptChange};
use super::charges::{of_kept, of_member};
use super::groups::{Group, GroupLinks, GroupState};
use super::names::{Name, Place};
use crate::Core;
use crate::allocation::Allocation;
use crate::api::{ClientId, Effects, Now, RequestId};
use crate::ledger::Charge;
use crate::limits::{
    MEMBERS_PER_MEMORY, MEMBERS_SWEPT_PER_STEP, MEMBERS_SWEPT_PER_TURN, WAITERS_WOKEN_PER_STEP,
    WATCHERS_WOKEN_PER_STEP,
};
use crate::slots::NONE;
use crate::timers::Timer;
use fdbroker_protocol::object::ObjectEvent;
use fdbroker_protocol::{ErrorCode, Resource, Status};

impl Core {
    // --- names --------------------------------------------------------------------------------------

    pub(crate) fn delete_objects(
        &mut self,
        client: ClientId,
        request: RequestId,
        of_job: bool,
        objects: &[Deleted<'_>],
        fx: &mut Effects,
    ) {
        let statuses: Vec<Status> = objects
            .iter()
            .map(|object| match self.delete_object(client.0, of_job, object) {
                Ok(()) => Status::OK,
                Err(status) => status,
            })
            .collect();
        self.end_before_answer(fx);
        self.answer_objects(client, request, &statuses, fx);
    }

    fn delete_object(
        &mut self,
        client: u32,
        of_job: bool,
        object: &Deleted<'_>,
    ) -> Result<(), Status> {
        let scope = self.names_of(client, of_job)?;
        let Some((place, version)) = self.sealed(scope, object.name) else {
            return Err(self.missing(scope, object.name, 0));
        };
        if object.version != 0 && object.version != version {
            return Err(Status::with_value(ErrorCode::Version, version));
        }
        let name = self.take_off(place.group, place.member.into());
        self.lose_name(place);
        self.tell(scope, ObjectEvent::Deleted, version, &name);
        Ok(())
    }

    /// Takes an object off the names; it is charged still. Its name.
    pub(super) fn take_off(&mut self, number: u32, member: usize) -> Name {
        let group = &self.objects.groups[number];
        let (scope, name) = (group.scope, group.members[member].name.clone());
        let place = Place { group: number, member: u16::try_from(member).expect("of a group") };
        self.objects.names.leave(scope, &name, place);
        name
    }

    /// Its name leads an object's domain elsewhere, or nowhere. With the last one the group ends.
    pub(super) fn lose_name(&mut self, place: Place) {
        let group = &mut self.objects.groups[place.group];
        let (domain, version) = (group.domain, group.version());
        let member = &mut group.members[usize::from(place.member)];
        member.is_named = false;
        group.names -= 1;
        let charges = of_member(member);
        let lost = group.is_kept.then(|| KeptChange::Lost(version, member.name.clone()));
        match group.names {
            0 => self.end_group(place.group),
            _ => lost.into_iter().for_each(|change| self.tell_kept(change)),
        }
        self.release_objects(domain, &charges);
    }

    // --- groups -------------------------------------------------------------------------------------

    /// A group is known no more; the sweep comes to the rest of it.
    pub(super) fn end_group(&mut self, number: u32) {
        self.end_group_by(number, false);
    }

    /// The same; whether to make room.
    pub(super) fn end_group_by(&mut self, number: u32, is_evicted: bool) {
        let group = &mut self.objects.groups[number];
        if group.is_ended() {
            return;
        }
        let (version, is_kept) = (group.version(), group.is_kept);
        group.state = GroupState::Ended { version, is_evicted };
        let domain = group.domain;
        self.order_group(number);
        if is_kept {
            self.tell_kept(KeptChange::Ended(version));
        }
        let links = &mut GroupLinks(&mut self.objects.groups);
        self.objects.ending.push(domain, links, number);
    }

    /// The memory in a slot has ended. The one place where the registry tells objects of an end.
    pub(crate) fn memory_ended(&mut self, slot: u32) {
        let Some(number) = self.objects.groups.take_memory(slot) else { return };
        self.end_group(number);
        let group = &mut self.objects.groups[number];
        if let Some(at) = group.due.take() {
            let timer = Timer::Object(number, self.objects.groups.generation(number));
            self.timers.cancel(at, timer);
        }
        let group = &mut self.objects.groups[number];
        if std::mem::take(&mut group.is_kept) {
            let (domain, charges) = (group.domain, of_kept(group.size_bytes, group.pin));
            self.release_objects(domain, &charges);
        }
    }

    /// A sealed group outlives its creator from now on: its domain alone is charged for its fd and memory, as for a kept
    /// allocation whose owner is gone.
    pub(super) fn keep_group(&mut self, number: u32) {
        let slot = self.objects.groups[number].allocation;
        let Allocation { owner, size_bytes, .. } = self.allocations[slot];
        let claimed = if self.has_file(slot) { 0 } else { size_bytes };
        let charges = [
            Charge(Resource::HeldFds, 1),
            Charge(Resource::HeldBytes, claimed),
            Charge(Resource::Allocations, 1),
        ];
        charges.into_iter().for_each(|charge| self.leave_to_domain(owner, charge));
        self.move_pin(slot, NONE);
        self.allocations.take_from_owner(slot);
        self.objects.groups[number].is_kept = true;
        self.tell_kept(KeptChange::Began(self.objects.groups.id_of(number)));
        self.time_group(number);
    }

    /// Looks at a kept group again when its time may be over.
    pub(super) fn time_group(&mut self, number: u32) {
        let timer = Timer::Object(number, self.objects.groups.generation(number));
        let until = self.until(&self.objects.groups[number]);
        let former = std::mem::replace(&mut self.objects.groups[number].due, until);
        former.into_iter().for_each(|at| self.timers.cancel(at, timer));
        until.into_iter().for_each(|at| self.timers.set(at, timer));
    }

    /// When a kept group ends if nobody uses it.
    pub(super) fn until(&self, group: &Group) -> Option<Now> {
        let keep_us = group.keep_us.filter(|_| group.is_kept && !group.pin)?;
        Some(group.used.after(keep_us.min(self.config.object_ttl_us)))
    }

    /// The time of a kept group may be over: it has been used since, or is leased, or it ends.
    pub(crate) fn object_overdue(&mut self, number: u32, generation: u32) {
        let Some(group) = self.objects.groups.get(number, generation) else { return };
        let Some(until) = self.until(group) else { return };
        let (is_over, now) = (until <= self.now, self.now);
        let is_leased = !self.allocations[group.allocation].leases.is_empty();
        let group = &mut self.objects.groups[number];
        group.due = None;
        match (is_over, is_leased) {
            (true, false) => return self.end_group(number),
            (true, true) => group.used = now,
            (false, _) => {}
        }
        self.time_group(number);
    }

    // --- the sweep ----------------------------------------------------------------------------------

    /// Ends the memory of ended groups, and takes their objects off the names; and wakes clients that watch, and requests that wait
    /// for names which were sealed.
    pub(crate) fn sweep_objects(&mut self, fx: &mut Effects) {
        self.end_before_answer(fx);
        for _ in 0..WATCHERS_WOKEN_PER_STEP {
            let Some(client) = self.objects.watches.next_woken() else { break };
            self.eventful.push(ClientId(client));
        }
        for _ in 0..WAITERS_WOKEN_PER_STEP {
            let Some(seq) = self.objects.waits.next_woken() else { return };
            self.wake_get(seq);
        }
    }

    /// The first part of it alone: what a request has ended is not current any more when it is answered, unless much else ends.
    pub(super) fn end_before_answer(&mut self, fx: &mut Effects) {
        let mut left = MEMBERS_SWEPT_PER_STEP;
        while left > 0
            && let Some(number) = self.objects.ending.first()
        {
            let turn = left.min(MEMBERS_SWEPT_PER_TURN);
            left = left.saturating_sub(self.sweep_group(number, turn, fx));
            self.objects.ending.end_turn();
        }
    }

    /// Sweeps a group, at most so many members of it; the work in members.
    fn sweep_group(&mut self, number: u32, most: usize, fx: &mut Effects) -> usize {
        if self.objects.groups[number].allocation != NONE {
            self.end_memory(self.objects.groups[number].allocation, fx);
        }
        let mut done = 0;
        while done < most
            && let Some(member) = self.next_to_sweep(number)
        {
            let name = self.take_off(number, member);
            let group = &mut self.objects.groups[number];
            group.members[member].is_named = false;
            group.names -= 1;
            let (domain, charges) = (group.domain, of_member(&group.members[member]));
            let (scope, is_told, (event, version)) =
                (group.scope, !group.is_refused, end_of(group));
            self.release_objects(domain, &charges);
            if is_told {
                self.tell(scope, event, version, &name);
            }
            done += 1;
        }
        if self.objects.groups[number].names == 0 {
            let domain = self.objects.groups[number].domain;
            let links = &mut GroupLinks(&mut self.objects.groups);
            self.objects.ending.remove(domain, links, number);
            self.objects.groups.remove(number);
        }
        done + MEMBERS_PER_MEMORY
    }

    /// The next object of an ended group that has its name still.
    fn next_to_sweep(&mut self, number: u32) -> Option<usize> {
        let group = &mut self.objects.groups[number];
        while group.names > 0 && !group.members.get(group.swept)?.is_named {
            group.swept += 1;
        }
        (group.names > 0).then_some(group.swept)
    }

    /// Ends the memory of a group for everybody. Its creator made it for the group: it is not told.
    pub(super) fn end_memory(&mut self, slot: u32, fx: &mut Effects) {
        let owner = self.allocations[slot].owner;
        self.end(slot, ErrorCode::Stale, fx);
        if owner != NONE {
            self.allocations.take_from_owner(slot);
            self.leave_to_domain(owner, Charge(Resource::Allocations, 1));
        }
        self.drain_if_done(slot);
    }
}

/// What watchers are told of the objects of an ended group.
fn end_of(group: &Group) -> (ObjectEvent, u64) {
    match group.state {
        GroupState::Ended { version: 0, .. } => (ObjectEvent::Aborted, 0),
        GroupState::Ended { version, is_evicted: true } => (ObjectEvent::Evicted, version),
        GroupState::Ended { version, is_evicted: false } => (ObjectEvent::Deleted, version),
        GroupState::Making | GroupState::Sealed(_) => unreachable!("it is swept"),
    }
}
