//! Gets: all names are resolved in one moment, then a lease of each group is granted; or the
//! request waits, for the first name that it misses, for room, or for its client to read. Must
//! never grant anything while a name is missing.

use std::sync::Arc;

use crate::api::{Asker, Effect, GotObject, Now};
use crate::books::objects::get::{Get, Standing};
use crate::books::objects::names::{Name, NameScope, Place};
use crate::books::{Blocked, Charge, FOR_LEASE, Parked, Wait, Wish};
use crate::core::Core;
use crate::limits::PLACES_AT_ONCE;
use crate::moves::Step;
use crate::requests::turn::Turn;
use fdbroker_protocol::limits::MAX_OBJECT_MESSAGE_BYTES;
use fdbroker_protocol::named::got_bytes;
use fdbroker_protocol::{ErrorCode, Resource, Status};
use rustc_hash::FxHashMap;

/// A get that is looked at.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// Whose it is.
    pub by: Asker,
    /// Whose names.
    pub scope: NameScope,
    /// Whom it stands behind.
    pub turn: Turn,
    /// It has not been looked at before.
    pub first: bool,
}

/// What is in the way of a get.
enum Lack {
    /// The name of this index is missing.
    Missing(usize),
    /// All names are there.
    Waits(Wait),
}

impl Lack {
    /// What a parked get waits for, and where it stands: at the name that it misses, or where it
    /// may come to need fewer leases.
    fn wait(&self) -> (Wait, Standing) {
        match *self {
            Lack::Missing(index) => (Wait::Recall, Standing::At(index)),
            Lack::Waits(wait @ Wait::Space(_)) => (wait, Standing::Everywhere),
            Lack::Waits(wait) => (wait, Standing::Nowhere),
        }
    }
}

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
        let seq = self.books.arrival();
        let asked = Asked { by, scope, turn: Turn::Last, first: true };
        let Some(lack) = self.look_at_get(asked, names.iter().copied(), step) else { return };
        if deadline <= step.now {
            let status = match lack {
                Lack::Missing(index) => self.missing(scope, names[index], index),
                Lack::Waits(wait) => self.why_not(by.client.0, wait),
            };
            return step.fail(by, status);
        }
        let get = Get { scope, names: names.iter().map(|name| Name::from(*name)).collect() };
        self.park_get(seq, (by, deadline), get, &lack, step);
    }

    fn park_get(
        &mut self,
        seq: u64,
        (by, deadline): (Asker, Now),
        get: Get,
        lack: &Lack,
        step: &mut Step,
    ) {
        let (client, charge) = (by.client.0, get.charge());
        if let Err(status) = self.may_wait(client) {
            return self.books.refuse(by, status, step);
        }
        if let Err(status) = self.books.charge_objects(client, &[charge]) {
            return step.fail(by, status);
        }
        let (wait, at) = lack.wait();
        let wish = Wish::Get(Arc::new(get), Standing::Nowhere);
        match self.park(seq, Parked::new(by, deadline, wish, wait), step) {
            Ok(()) => self.books.stand_at(seq, at),
            Err(status) => {
                self.books.release_objects(self.books.clients[client].domain, &[charge]);
                self.books.refuse(by, status, step);
            }
        }
    }

    /// A parked get is looked at again. `None`: it has been answered.
    pub(crate) fn retry_get(
        &mut self,
        seq: u64,
        asked: Asked,
        get: &Get,
        step: &mut Step,
    ) -> Option<Wait> {
        let lack = self.look_at_get(asked, get.names.iter().map(|name| &**name), step)?;
        let (wait, at) = lack.wait();
        self.books.stand_at(seq, at);
        Some(wait)
    }

    /// The deadline of a get has passed that was parked.
    pub(crate) fn get_too_late(&mut self, by: Asker, get: &Get, step: &mut Step) {
        let asked = Asked { by, scope: get.scope, turn: Turn::Last, first: false };
        // What it waited for may have come in this very moment.
        let status = match self.look_at_get(asked, get.names.iter().map(|name| &**name), step) {
            None => return,
            Some(Lack::Missing(index)) => {
                let missing = self.missing(get.scope, &get.names[index], index);
                Status { code: Status::error(ErrorCode::TimedOut).code, ..missing }
            }
            Some(Lack::Waits(wait)) => self.why_not(by.client.0, wait),
        };
        step.fail(by, status);
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
        Status { pid: pid.into(), ..Status::with_value(code, index as u64) }
    }

    /// Why a request that waits for this is given up.
    pub(crate) fn why_not(&mut self, client: u32, wait: Wait) -> Status {
        match wait {
            Wait::Room(blocked) | Wait::Space(blocked) => self.books.refusal(client, blocked),
            Wait::Recall | Wait::Reader => ErrorCode::Again.into(),
        }
    }

    /// Answers a get if all can be had; else says what is in the way.
    fn look_at_get<'n>(
        &mut self,
        asked: Asked,
        names: impl Iterator<Item = &'n [u8]>,
        step: &mut Step,
    ) -> Option<Lack> {
        let mut found = Vec::new();
        for (index, name) in names.enumerate() {
            match self.books.sealed(asked.scope, name) {
                Some((place, _)) => found.push(place),
                None => return Some(Lack::Missing(index)),
            }
        }
        if !self.books.client_mut(asked.by.client.0).sendable {
            return Some(Lack::Waits(Wait::Reader));
        }
        let (groups, grants) = groups_of(&found);
        if let Some(status) = self.too_long(&groups, found.len()) {
            step.fail(asked.by, status);
            return None;
        }
        if let Err(blocked) = self.charge_leases(asked, groups.len()) {
            if asked.first || self.books.may_make_room(blocked) {
                self.books.evict_for(blocked, groups.len().min(PLACES_AT_ONCE), step);
            }
            // More than one at a time would hold up others that could be served.
            return Some(Lack::Waits(match groups.len() {
                1 => Wait::Room(blocked),
                _ => Wait::Space(blocked),
            }));
        }
        self.grant_objects(asked, &found, (&groups, &grants), step);
        None
    }

    /// Charges a client for so many leases, behind those that stand before it.
    fn charge_leases(&mut self, asked: Asked, count: usize) -> Result<(), Blocked> {
        let client = asked.by.client.0;
        match self.ahead(asked.turn, client, FOR_LEASE) {
            Some(ahead) => Err(ahead),
            None => self.books.charge_share(client, Charge(Resource::OpenLeases, count as u64)),
        }
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
        asked: Asked,
        found: &[Place],
        (groups, grants): (&[u32], &[u16]),
        step: &mut Step,
    ) {
        let Asker { client, request } = asked.by;
        let (first_object, first_grant) = (step.fx.objects.len(), step.fx.granted.len());
        for number in groups {
            let slot = self.books.objects.groups[*number].allocation;
            let lease = self.books.charged_lease(client.0, slot, step);
            let granted =
                self.books.granted(Ok(self.books.allocations.id_of(slot)), slot, lease, step);
            step.fx.granted.push(granted);
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
