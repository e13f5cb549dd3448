//! Names and memory of groups end, or outlive their creators. Must never take away memory that was
//! not the group's.

use crate::api::{KeptChange, NONE};
use crate::books::objects::Objects;
use crate::books::objects::charges::{of_kept, of_member};
use crate::books::objects::get::Standing;
use crate::books::objects::groups::{Group, GroupLinks, GroupState};
use crate::books::objects::names::{Name, Place};
use crate::books::{Books, Timer, Wish};
use crate::limits::{MEMBERS_PER_MEMORY, MEMBERS_SWEPT_PER_STEP, MEMBERS_SWEPT_PER_TURN};
use crate::moves::Step;
use fdbroker_protocol::ErrorCode;
use fdbroker_protocol::object::ObjectEvent;

impl Books {
    /// Takes an object off the names; it is charged still. Its name.
    pub(crate) fn take_off(&mut self, number: u32, member: usize) -> Name {
        let group = &self.objects.groups[number];
        let (scope, name) = (group.scope, group.members[member].name.clone());
        let place = Place { group: number, member: u16::try_from(member).expect("of a group") };
        self.objects.names.leave(scope, &name, place);
        name
    }

    /// Its name leads an object's domain elsewhere, or nowhere. With the last one the group ends.
    pub(crate) fn lose_name(&mut self, Place { group: number, member }: Place) {
        let group = &self.objects.groups[number];
        let name = &group.members[usize::from(member)].name;
        let lost = group.is_kept.then(|| KeptChange::Lost(group.version(), name.clone()));
        match group.names {
            1 => self.end_group(number, false),
            _ => self.objects.changes.extend(lost),
        }
        self.unname(number, member.into());
    }

    /// Its domain is charged for an object of a group no more.
    pub(crate) fn unname(&mut self, number: u32, member: usize) {
        let group = &mut self.objects.groups[number];
        group.members[member].is_named = false;
        group.names -= 1;
        let (domain, charges, job) = (group.domain, of_member(&group.members[member]), group.job);
        self.take_from_job(job, 1);
        self.release_objects(domain, &charges);
    }

    /// So many objects of a job have their names no more.
    fn take_from_job(&mut self, job: Option<u32>, names: u32) {
        let Some(job) = job else { return };
        self.clients.take_objects(job, names);
        self.forget_job_if_unused(job);
    }

    /// A group is known no more; the sweep comes to the rest of it.
    pub(crate) fn end_group(&mut self, number: u32, is_evicted: bool) {
        let group = &mut self.objects.groups[number];
        if group.is_ended() {
            return;
        }
        let (version, is_kept) = (group.version(), group.is_kept);
        group.state = GroupState::Ended { version, is_evicted };
        let (domain, names, job) = (group.domain, group.names, group.job.take());
        self.take_from_job(job, names);
        self.order_group(number);
        if is_kept {
            self.objects.changes.push(KeptChange::Ended(version));
        }
        let links = &mut GroupLinks(&mut self.objects.groups);
        self.objects.ending.push(domain, links, number);
    }

    /// The memory in a slot has ended. The one place where the registry tells objects of an end.
    pub(crate) fn memory_ended(&mut self, slot: u32) {
        let Some(number) = self.objects.groups.take_memory(slot) else { return };
        self.end_group(number, false);
        let group = &mut self.objects.groups[number];
        if let Some(at) = group.due.take() {
            let timer = Timer::Object(number, self.objects.groups.generation(number));
            self.timers.cancel(at, timer);
        }
        let group = &mut self.objects.groups[number];
        if std::mem::take(&mut group.is_kept) {
            let charges = of_kept(group.size_bytes, group.is_host, group.pin);
            let domain = group.domain;
            self.release_objects(domain, &charges);
        }
    }

    /// A sealed group outlives its creator from now on: its domain alone is charged for its fd and
    /// memory, as for a kept allocation whose owner is gone.
    pub(crate) fn keep_group(&mut self, number: u32) {
        self.leave_owner(self.objects.groups[number].allocation);
        self.objects.groups[number].is_kept = true;
        self.objects.changes.push(KeptChange::Began(self.objects.groups.id_of(number)));
        self.time_group(number);
    }

    /// Looks at a kept group again when its time may be over.
    pub(crate) fn time_group(&mut self, number: u32) {
        let timer = Timer::Object(number, self.objects.groups.generation(number));
        let until = self.until(&self.objects.groups[number]);
        let former = std::mem::replace(&mut self.objects.groups[number].due, until);
        former.into_iter().for_each(|at| self.timers.cancel(at, timer));
        until.into_iter().for_each(|at| self.timers.set(at, timer));
    }

    /// The time of a kept group may be over: it has been used since, or is leased, or it ends.
    pub(crate) fn object_overdue(&mut self, number: u32, generation: u32, step: &mut Step) {
        let Some(group) = self.objects.groups.get(number, generation) else { return };
        let Some(until) = self.until(group) else { return };
        let (is_over, now) = (until <= step.now, step.now);
        let is_leased = !self.allocations[group.allocation].leases.is_empty();
        let group = &mut self.objects.groups[number];
        group.due = None;
        match (is_over, is_leased) {
            (true, false) => return self.end_group(number, false),
            (true, true) => group.used = now,
            (false, _) => {}
        }
        self.time_group(number);
    }

    /// The first part of it alone: what a request has ended is not current any more when it is
    /// answered, unless much else ends.
    pub(crate) fn end_before_answer(&mut self, step: &mut Step) {
        let mut left = MEMBERS_SWEPT_PER_STEP;
        while left > 0
            && let Some(number) = self.objects.ending.first()
        {
            let turn = left.min(MEMBERS_SWEPT_PER_TURN);
            left = left.saturating_sub(self.sweep_group(number, turn, step));
            self.objects.ending.end_turn();
        }
    }

    /// Sweeps a group, at most so many members of it; the work in members.
    fn sweep_group(&mut self, number: u32, most: usize, step: &mut Step) -> usize {
        if self.objects.groups[number].allocation != NONE {
            self.end_memory(self.objects.groups[number].allocation, step);
        }
        let mut done = 0;
        while done < most
            && let Some(member) = self.next_to_sweep(number)
        {
            let name = self.take_off(number, member);
            self.unname(number, member);
            let group = &self.objects.groups[number];
            let (scope, (event, version)) = (group.scope, end_of(group));
            if !group.is_refused {
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
    pub(crate) fn end_memory(&mut self, slot: u32, step: &mut Step) {
        self.end(slot, ErrorCode::Stale, step);
        self.leave_owner_ended(slot);
    }

    /// A parked get stands at these of its names from now on.
    pub(crate) fn stand_at(&mut self, seq: u64, at: Standing) {
        let Books { parked, objects: Objects { waits, .. }, .. } = self;
        let parked = parked.get_mut(&seq).expect("it is parked");
        let Wish::Get(get, stands) = &mut parked.wish else { return };
        let former = std::mem::replace(stands, at);
        if former != at {
            get.names_at(former).iter().for_each(|name| waits.leave(get.scope, name, seq));
            get.names_at(at).iter().for_each(|name| waits.enter(get.scope, name, seq));
        }
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
