//! Groups in the making: begun with their memory, filled, sealed or given up. Must never do a part
//! of what was asked.

use crate::api::{Asker, Create, Deposit, Effect, GroupId, Judged, NewObject, StatusReply};
use crate::books::Client;
use crate::books::objects::charges::of_new;
use crate::books::objects::groups::{Expect, Group, GroupState};
use crate::books::objects::names::Place;
use crate::core::Core;
use crate::limits::MAKERS_PER_NAME;
use crate::moves::Step;
use fdbroker_protocol::limits::{MAX_GROUP, METADATA_BYTES};
use fdbroker_protocol::object::ObjectEvent;
use fdbroker_protocol::{AllocationId, ErrorCode, Resource, Status, is_object_name};

impl Core {
    pub(crate) fn create_objects(&mut self, by: Asker, create: &Create<'_>, step: &mut Step) {
        let Asker { client, request } = by;
        let lane = create.deposit.lane;
        if !self.admit(by, std::slice::from_ref(&create.deposit), step) {
            return;
        }
        if !self.give_places(client.0, 1) {
            self.books.close_unreserved(client, (0, lane), step);
            return step.fail(by, ErrorCode::Again.into());
        }
        let begun = self.begin_group(client.0, create, step);
        match begun {
            Ok((_, id)) => step.fx.list.push(Effect::StoreArrived { index: 0, slot: id.slot }),
            Err(_) => self.books.close_arrived(client.0, 0, lane, step),
        }
        // A client whose create has failed does not know of the credits, and asks when it has none
        // left.
        let wanted = u64::from(create.credits_wanted).min(self.books.config.max_credits.into());
        let deposit_credits = self.adjust_credits(client.0, wanted);
        step.fx.list.push(match begun {
            Ok((group, _)) => Effect::ObjectsCreated { client, request, group, deposit_credits },
            Err(status) => Effect::Failed { client, request, status },
        });
    }

    fn begin_group(
        &mut self,
        client: u32,
        create: &Create<'_>,
        step: &mut Step,
    ) -> Result<(GroupId, AllocationId), Status> {
        let scope = self.books.names_of(client, create.of_job)?;
        if create.of_job && (create.keep_us.is_some() || create.pin || create.outlives) {
            return Err(ErrorCode::NotSupported.into());
        }
        let Client { domain, serial, pid, job, .. } = self.books.clients[client];
        let Create { replace, keep_us, pin, inherits, outlives, evictable, .. } = *create;
        let deposit = create.deposit.judged?;
        let size = deposit.facts.size_bytes;
        let is_host = deposit.facts.is_of_host();
        let new = Group::new(domain, scope, (client, serial), pid, size, step.now);
        let group =
            Group { job, is_host, replace, keep_us, pin, inherits, outlives, evictable, ..new };
        let number = self.books.objects.groups.insert(group);
        let begun = self.fill(client, number, create.objects);
        let stored = begun.and_then(|()| self.store_group(client, deposit, step));
        match stored {
            Ok(id) => {
                self.books.objects.groups.set_memory(number, id.slot);
                Ok((self.books.objects.groups.id_of(number), id))
            }
            Err(status) => {
                self.empty(number, 0);
                self.books.objects.groups.remove(number);
                Err(status)
            }
        }
    }

    /// The memory of a group becomes an allocation of its creator, which nobody has a handle of.
    fn store_group(
        &mut self,
        client: u32,
        Judged { claimed, file }: Judged,
        step: &mut Step,
    ) -> Result<AllocationId, Status> {
        let claimed = Deposit { driver_data: claimed.driver_data, ..claimed.facts.into() };
        let (id, is_kept) = self.deposit(client, &Judged { claimed, file }, step)?;
        assert!(is_kept, "{id} has no address, and is not evictable");
        Ok(id)
    }

    pub(crate) fn add_objects(
        &mut self,
        by: Asker,
        group: GroupId,
        objects: &[NewObject<'_>],
        step: &mut Step,
    ) {
        let done = self.books.making(by.client.0, group);
        match done.and_then(|number| self.fill(by.client.0, number, objects)) {
            Ok(()) => Self::answer_objects(by, [Ok(())], step),
            Err(status) => step.fail(by, status),
        }
    }

    /// Adds objects to a group, all of them or none.
    pub(crate) fn fill(
        &mut self,
        client: u32,
        number: u32,
        objects: &[NewObject<'_>],
    ) -> Result<(), Status> {
        let before = self.books.objects.groups[number].members.len();
        if before + objects.len() > MAX_GROUP {
            return Err(Status::with_value(ErrorCode::TooLong, MAX_GROUP as u64));
        }
        for (index, object) in objects.iter().enumerate() {
            self.check_new(&self.books.objects.groups[number], object)
                .map_err(|code| at(code, index))?;
        }
        self.books.charge_objects(client, &of_new(objects))?;
        for (index, object) in objects.iter().enumerate() {
            if !self.enter_object(number, object) {
                self.empty(number, before);
                let domain = self.books.objects.groups[number].domain;
                self.books.release_objects(domain, &of_new(&objects[index..]));
                return Err(at(ErrorCode::Protocol, index));
            }
        }
        Ok(())
    }

    fn check_new(&self, group: &Group, object: &NewObject<'_>) -> Result<(), ErrorCode> {
        let end = object.offset.checked_add(object.size_bytes);
        if !is_object_name(object.name) || end.is_none_or(|end| end > group.size_bytes) {
            return Err(ErrorCode::Protocol);
        }
        if object.metadata.len() > METADATA_BYTES {
            return Err(ErrorCode::TooLong);
        }
        let Some(entry) = self.books.objects.names.find(group.scope, object.name) else {
            return Ok(());
        };
        let has_maker = || self.books.makers(entry).next().is_some();
        let is_taken = || self.books.sealed_of(entry).is_some() || has_maker();
        if !group.replace && object.expect.is_none() && is_taken() {
            return Err(ErrorCode::Exists);
        }
        // Ended ones are swept soon.
        if entry.makers.len() >= MAKERS_PER_NAME {
            return Err(ErrorCode::Again);
        }
        Ok(())
    }

    /// Enters an object that its domain is charged for; `false`: its group has one of this name.
    fn enter_object(&mut self, number: u32, object: &NewObject<'_>) -> bool {
        let group = &self.books.objects.groups[number];
        let (scope, replace) = (group.scope, group.replace);
        let entry = self.books.objects.names.find(scope, object.name);
        if entry.is_some_and(|entry| entry.makers.iter().any(|maker| maker.group == number)) {
            return false;
        }
        let member = u16::try_from(group.members.len()).expect("at most MAX_GROUP");
        let name =
            self.books.objects.names.enter(scope, object.name, Place { group: number, member });
        let expect = match object.expect {
            Some(version) => Expect::Version(version),
            None if replace => Expect::Any,
            None => Expect::Free,
        };
        let place = (object.offset, object.size_bytes);
        let group = &mut self.books.objects.groups[number];
        group.add_member(name, place, expect, object.metadata);
        group.job.into_iter().for_each(|job| self.books.clients.add_object(job));
        true
    }

    /// Takes back the objects of a group in the making from this one on.
    fn empty(&mut self, number: u32, from: usize) {
        while let Some(last) = self.books.objects.groups[number].members.len().checked_sub(1)
            && last >= from
        {
            self.books.take_off(number, last);
            self.books.unname(number, last);
            self.books.objects.groups[number].members.pop();
        }
    }

    pub(crate) fn seal_objects(
        &mut self,
        by: Asker,
        group: GroupId,
        checked: Result<(), Status>,
        step: &mut Step,
    ) {
        let Asker { client, request } = by;
        let sealed = self.books.making(client.0, group).and_then(|number| {
            let sealed = checked.and_then(|()| self.seal(client.0, number, step));
            sealed.map_err(|status| self.with_cause(number, status))
        });
        match sealed {
            Ok(version) => {
                self.books.end_before_answer(step);
                step.fx.list.push(Effect::ObjectsSealed { client, request, version });
            }
            Err(status) => step.fail(by, status),
        }
    }

    /// Whether the names of a group lead to what its maker expects.
    fn check_expected(&self, number: u32) -> Result<(), Status> {
        let group = &self.books.objects.groups[number];
        for (index, member) in group.members.iter().enumerate() {
            let now = self.books.sealed(group.scope, &member.name).map(|(_, version)| version);
            match member.expect {
                Expect::Free if now.is_some() => return Err(at(ErrorCode::Exists, index)),
                Expect::Version(version) if version != now.unwrap_or(0) => {
                    return Err(Status::with_value(ErrorCode::Version, now.unwrap_or(0)));
                }
                Expect::Free | Expect::Any | Expect::Version(_) => {}
            }
        }
        Ok(())
    }

    /// A cap that a group meets for what its maker has not asked says so.
    fn with_cause(&self, number: u32, status: Status) -> Status {
        let group = &self.books.objects.groups[number];
        let is_asked = if status.resource == Resource::PermanentBytes as u8 {
            group.pin
        } else {
            group.pin || group.keep_us.is_some() || group.outlives
        };
        let is_full = status.result() == Err(ErrorCode::NoQuota);
        if is_full && !is_asked { status.of_inherited() } else { status }
    }

    /// All names of a group lead to it from now on, or none.
    pub(crate) fn seal(
        &mut self,
        client: u32,
        number: u32,
        step: &mut Step,
    ) -> Result<u64, Status> {
        let expected = self.check_expected(number);
        self.books.objects.groups[number].is_refused = expected.is_err();
        expected?;
        let group = &self.books.objects.groups[number];
        let (domain, scope, count) = (group.domain, group.scope, group.members.len());
        // Before others make room for it, or lose their names.
        let memory = (group.size_bytes, group.is_host);
        let (keep_us, pin) = self.books.lasting(group);
        let keeps = keep_us.is_some() || pin;
        if keeps {
            let aside = self.books.set_expected_aside(number);
            let charged = self.books.charge_kept(client, memory, pin, step);
            aside.into_iter().for_each(|expected| self.books.order_group(expected));
            charged?;
        }
        self.books.objects.version += 1;
        let version = self.books.objects.version;
        let group = &mut self.books.objects.groups[number];
        (group.state, group.since, group.used) = (GroupState::Sealed(version), step.now, step.now);
        (group.keep_us, group.pin) = (keep_us, pin);
        for member in (0..).take(count) {
            let name = self.books.objects.groups[number].members[usize::from(member)].name.clone();
            let place = Place { group: number, member };
            let former = self.books.objects.names.seal(scope, &name, place);
            let event = if former.is_some() { ObjectEvent::Replaced } else { ObjectEvent::Sealed };
            former.into_iter().for_each(|former| self.books.lose_name(former));
            self.books.tell(scope, event, version, &name);
            self.books.objects.waits.wake(domain, scope, &name);
        }
        if keeps {
            // After others have lost their names: the table never has two of one name.
            self.books.keep_group(number);
        }
        self.books.order_group(number);
        if count == 0 {
            // Nobody can ever name it.
            self.books.end_group(number, false);
        }
        Ok(version)
    }

    pub(crate) fn abort_objects(&mut self, by: Asker, group: GroupId, step: &mut Step) {
        let made = self.books.making(by.client.0, group);
        Self::answer_objects(by, [made.map(|number| self.books.end_group(number, false))], step);
    }

    pub(crate) fn answer_objects(
        by: Asker,
        done: impl IntoIterator<Item = Result<(), Status>>,
        step: &mut Step,
    ) {
        let begin = step.fx.statuses.len();
        let statuses = done.into_iter().map(|done| done.err().unwrap_or(Status::OK));
        step.fx.statuses.extend(statuses);
        step.answer(by, StatusReply::Objects, begin);
    }
}

/// The status of an object that is in the way of a request: its index is said.
fn at(code: ErrorCode, index: usize) -> Status {
    Status::with_value(code, index as u64)
}
