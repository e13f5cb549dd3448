//! Gets: all names are resolved in one moment, then a lease of each group is granted; or the
//! request waits, for the first name that it misses, for room, or for its client to read. Must
//! never grant anything while a name is missing.

use std::sync::Arc;

use crate::api::{Asker, Effect, GotObject, Now};
use crate::books::objects::get::{Get, Standing};
use crate::books::objects::names::{Name, NameScope, Place};
use crate::books::{Charge, FOR_LEASE, Wait, Wish};
use crate::core::Core;
use crate::limits::PLACES_AT_ONCE;
use crate::moves::Step;
use crate::requests::turn::Attempt;
use fdbroker_protocol::limits::MAX_OBJECT_MESSAGE_BYTES;
use fdbroker_protocol::named::got_bytes;
use fdbroker_protocol::{ErrorCode, Resource, Status};
use rustc_hash::FxHashMap;

impl Core {
    pub(crate) fn get_objects(
        &mut self,
        by: Asker,
        of_job: bool,
        names: &[&[u8]],
        deadline: Now,
        step: &mut Step,
    ) {
        let scope = match self.books.names_of(by.client.0, of_job) {
            Ok(scope) => scope,
            Err(status) => return step.fail(by, status),
        };
        let attempt = Attempt::new(by, self.books.arrival(), deadline);
        let Some((wait, at)) = self.look_at_get(attempt, scope, names, step) else { return };
        if deadline <= step.now {
            let status = match at {
                Standing::At(index) => self.missing(scope, names[index], index),
                Standing::Nowhere | Standing::Everywhere => self.why_not(by.client.0, wait),
            };
            return step.fail(by, status);
        }
        let get = Get { scope, names: names.iter().map(|name| Name::from(*name)).collect() };
        self.park_get(attempt, get, (wait, at), step);
    }

    fn park_get(&mut self, attempt: Attempt, get: Get, to: (Wait, Standing), step: &mut Step) {
        let (by, charge, (wait, at)) = (attempt.by, get.charge(), to);
        let client = by.client.0;
        if let Err(status) = self.may_wait(client) {
            return self.books.refuse(by, status, step);
        }
        if let Err(status) = self.books.charge_objects(client, &[charge]) {
            return step.fail(by, status);
        }
        let wish = Wish::Get(Arc::new(get), Standing::Nowhere);
        match self.park(attempt, wish, wait, step) {
            Ok(()) => self.books.stand_at(attempt.seq, at),
            Err(status) => {
                self.books.release_objects(self.books.clients[client].domain, &[charge]);
                self.books.refuse(by, status, step);
            }
        }
    }

    /// The deadline of a get has passed that was parked.
    pub(crate) fn get_too_late(&mut self, attempt: Attempt, get: &Get, step: &mut Step) {
        // What it waited for may have come in this very moment.
        let looked = self.look_at_get(attempt, get.scope, &get.names, step);
        let Some((wait, at)) = looked else { return };
        let status = match at {
            Standing::At(index) => {
                let missing = self.missing(get.scope, &get.names[index], index);
                Status { code: Status::error(ErrorCode::TimedOut).code, ..missing }
            }
            Standing::Nowhere | Standing::Everywhere => self.why_not(attempt.by.client.0, wait),
        };
        step.fail(attempt.by, status);
    }

    /// NOT_FOUND, or NOT_SEALED with the pid of the maker.
    pub(crate) fn missing(&self, scope: NameScope, name: &[u8], index: usize) -> Status {
        let entry = self.books.objects.names.find(scope, name);
        let maker = entry.and_then(|entry| self.books.makers(entry).next());
        let (code, pid) = match maker {
            Some(maker) => {
                (ErrorCode::NotSealed, self.books.objects.groups[maker.group].creator_pid)
            }
            None => (ErrorCode::NotFound, 0),
        };
        Status { pid, ..Status::with_value(code, index as u64) }
    }

    /// Why a request that waits for this is given up.
    pub(crate) fn why_not(&mut self, client: u32, wait: Wait) -> Status {
        match wait {
            Wait::Room(blocked) | Wait::Space(blocked) => self.books.refusal(client, blocked),
            Wait::Recall | Wait::Reader => ErrorCode::Again.into(),
        }
    }

    /// Answers a get if all can be had; else says what it waits for, and where it stands: at the
    /// name that it misses, or where it may come to need fewer leases.
    pub(crate) fn look_at_get(
        &mut self,
        attempt: Attempt,
        scope: NameScope,
        names: &[impl AsRef<[u8]>],
        step: &mut Step,
    ) -> Option<(Wait, Standing)> {
        let Attempt { by, turn, first, .. } = attempt;
        let mut found = Vec::new();
        for (index, name) in names.iter().enumerate() {
            match self.books.sealed(scope, name.as_ref()) {
                Some((place, _)) => found.push(place),
                None => return Some((Wait::Recall, Standing::At(index))),
            }
        }
        if !self.books.client_mut(by.client.0).sendable {
            return Some((Wait::Reader, Standing::Nowhere));
        }
        let (groups, grants) = groups_of(&found);
        if let Some(status) = self.too_long(&groups, found.len()) {
            step.fail(by, status);
            return None;
        }
        let charge = Charge(Resource::OpenLeases, groups.len() as u64);
        let charged = match self.ahead(turn, by.client.0, FOR_LEASE) {
            Some(ahead) => Err(ahead),
            None => self.books.charge_share(by.client.0, charge),
        };
        if let Err(blocked) = charged {
            if first || self.books.may_make_room(blocked) {
                self.books.evict_for(blocked, groups.len().min(PLACES_AT_ONCE), step);
            }
            // More than one at a time would hold up others that could be served.
            return Some(match groups.len() {
                1 => (Wait::Room(blocked), Standing::Nowhere),
                _ => (Wait::Space(blocked), Standing::Everywhere),
            });
        }
        self.grant_objects(by, &found, (&groups, &grants), step);
        None
    }

    /// Why so many names in these groups are more than one answer can have.
    fn too_long(&self, groups: &[u32], names: usize) -> Option<Status> {
        if groups.len() > self.books.most_granted {
            return Some(Status::with_value(ErrorCode::Again, self.books.most_granted as u64));
        }
        let slots = groups.iter().map(|group| self.books.objects.groups[*group].allocation);
        let blocks =
            slots.filter(|slot| self.books.allocations[*slot].traits.has_driver_data()).count();
        let bytes = got_bytes(names, groups.len(), blocks);
        let most = MAX_OBJECT_MESSAGE_BYTES;
        (bytes > most).then(|| Status::with_value(ErrorCode::TooLong, most as u64))
    }

    fn grant_objects(
        &mut self,
        Asker { client, request }: Asker,
        found: &[Place],
        (groups, grants): (&[u32], &[u16]),
        step: &mut Step,
    ) {
        let (first_object, first_grant) = (step.fx.objects.len(), step.fx.granted.len());
        for number in groups {
            let slot = self.books.objects.groups[*number].allocation;
            let lease = self.books.charged_lease(client.0, slot, step);
            let wanted = Ok(self.books.allocations.id_of(slot));
            self.books.allocations.mark_used(slot, step.now);
            step.fx.granted.push(self.books.allocations.granted(slot, wanted, lease));
            self.books.objects.groups[*number].used = step.now;
        }
        let got = found.iter().zip(grants).map(|(place, grant)| self.got(*place, *grant));
        step.fx.objects.extend(got);
        let (objects, grants) =
            (first_object..step.fx.objects.len(), first_grant..step.fx.granted.len());
        step.fx.list.push(Effect::ObjectsGot { client, request, objects, grants });
    }

    fn got(&self, place: Place, grant: u16) -> GotObject {
        let group = &self.books.objects.groups[place.group];
        let member = &group.members[usize::from(place.member)];
        GotObject {
            version: group.version(),
            offset: member.offset,
            size_bytes: member.size_bytes,
            grant,
            metadata_len: u16::try_from(member.metadata.len()).unwrap_or(u16::MAX),
            place: (self.books.objects.groups.id_of(place.group), place.member),
        }
    }

    /// The metadata of an object that was just got.
    pub fn metadata_of(&self, got: &GotObject) -> &[u8] {
        let (group, member) = got.place;
        let found =
            self.books.objects.groups.find(group).map(|number| &self.books.objects.groups[number]);
        let member = found.and_then(|group| group.members.get(usize::from(member)));
        member.map_or(&[], |member| &member.metadata)
    }
}

/// The groups of some places, each once, in the order in which they come first; and for each place
/// the index of its group.
fn groups_of(places: &[Place]) -> (Vec<u32>, Vec<u16>) {
    let (mut groups, mut indices) = (Vec::new(), Vec::with_capacity(places.len()));
    let mut known = FxHashMap::default();
    for place in places {
        let next = u16::try_from(groups.len()).expect("at most as many as a message has items");
        let index = match groups.last() {
            // Mostly one group.
            Some(last) if *last == place.group => next - 1,
            _ => *known.entry(place.group).or_insert(next),
        };
        if index == next {
            groups.push(place.group);
        }
        indices.push(index);
    }
    (groups, indices)
}
