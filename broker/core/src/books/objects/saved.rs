//! Objects as plain data for a successor, and taken in again: every number checked. Must never
//! believe what it reads.

use crate::api::NONE;
use crate::books::check::{Check, ensure};
use crate::books::lists::Link;
use crate::books::objects::Objects;
use crate::books::objects::groups::{Group, GroupState, Groups};
use crate::books::objects::names::{NameScope, Place};
use crate::books::objects::watches::{Log, Logged, Watcher};
use crate::books::slots::{Flat, SavedSlots};
use crate::limits::{EVENTS_IN_LOG, MAKERS_PER_NAME, WATCHES_PER_CLIENT};
use fdbroker_protocol::is_object_name;
use fdbroker_protocol::limits::{MAX_GROUP, METADATA_BYTES, NAME_OF_OBJECT_BYTES};
use fdbroker_protocol::object::ObjectEvent;
use serde::{Deserialize, Serialize};

/// All groups, none of them ended, and the last version given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedObjects {
    version: u64,
    groups: SavedSlots<Group>,
    /// Those in the making, the oldest of each name first.
    makers: Vec<Place>,
    logs: Vec<(NameScope, Log)>,
    /// With the number of the client.
    watchers: Vec<(u32, NameScope, Watcher)>,
}

impl Flat for Group {
    fn flat(&self) -> Self {
        Group { link: Link::OUT, due: None, swept: 0, place: None, ..self.clone() }
    }
}

impl Objects {
    /// Those that a successor goes on with: ended groups are swept before.
    pub fn save(&self) -> SavedObjects {
        let makers = self.names.all().flat_map(|(_, _, entry)| entry.makers.iter().copied());
        let (version, groups) = (self.version, self.groups.save(|_| true));
        let logs = self.watches.logs.iter().map(|(scope, log)| {
            let (domain, next, events) = (log.domain, log.next, log.events.clone());
            (*scope, Log { domain, next, events, ..Log::default() })
        });
        let watchers = self.watches.of.iter();
        let watchers = watchers.map(|((client, scope), it)| (*client, *scope, it.clone()));
        SavedObjects {
            version,
            groups,
            makers: makers.collect(),
            logs: logs.collect(),
            watchers: watchers.collect(),
        }
    }

    /// These again, found by their names and their memory; that is still to be looked at.
    pub fn restore(saved: SavedObjects) -> Check<Objects> {
        let SavedObjects { version, groups, makers, logs, watchers } = saved;
        ensure(version < u64::MAX / 2, "versions of objects", 0u32)?;
        let mut new = Objects { version, groups: Groups::restore(groups)?, ..Objects::default() };
        let mut in_the_making = 0;
        for number in new.groups.full() {
            new.restore_group(number)?;
            let group = &new.groups[number];
            in_the_making += if group.version() == 0 { group.members.len() } else { 0 };
        }
        ensure(makers.len() == in_the_making, "objects in the making", makers.len() as u64)?;
        for place in makers {
            let is_there = new.groups.is_full(place.group)
                && new.groups[place.group].state == GroupState::Making
                && usize::from(place.member) < new.groups[place.group].members.len();
            ensure(is_there, "object in the making", place.group)?;
            new.restore_name(place)?;
        }
        new.restore_watches(logs, watchers)?;
        Ok(new)
    }

    fn restore_watches(
        &mut self,
        logs: Vec<(NameScope, Log)>,
        watchers: Vec<(u32, NameScope, Watcher)>,
    ) -> Check {
        for (scope, mut log) in logs {
            let Log { domain, next, ref events, .. } = log;
            let is_event = |it: &Logged| {
                let is_known = ObjectEvent::from_number(it.event);
                is_known.is_some_and(|it| it != ObjectEvent::Lost) && is_object_name(&it.name)
            };
            let is_sound = next < u64::MAX / 2
                && events.len() <= EVENTS_IN_LOG
                && events.iter().is_sorted_by(|one, other| one.number < other.number)
                && events.back().is_none_or(|last| last.number < next)
                && events.iter().all(is_event);
            ensure(is_sound, "events of a scope", domain)?;
            log.bytes = events.iter().map(Logged::bytes).sum();
            let is_new = self.watches.logs.insert(scope, log).is_none();
            ensure(is_new, "log of a scope", domain)?;
        }
        for (client, scope, watcher) in watchers {
            let Watcher { next, ref prefixes } = watcher;
            let is_bounded = (1..=WATCHES_PER_CLIENT).contains(&prefixes.len())
                && prefixes.iter().all(|(prefix, _)| prefix.len() <= NAME_OF_OBJECT_BYTES);
            let is_new = !self.watches.of.contains_key(&(client, scope));
            let log = self.watches.logs.get(&scope).filter(|log| next <= log.next);
            let domain = log.map_or(NONE, |log| log.domain);
            ensure(domain != NONE && is_bounded && is_new, "watcher", client)?;
            *self.watches.enter(client, scope, domain) = watcher;
        }
        let of_nobody = self.watches.logs.values().find(|log| log.watchers == 0);
        of_nobody.map_or(Ok(()), |log| ensure(false, "log of nobody", log.domain))
    }

    fn restore_group(&mut self, number: u32) -> Check {
        let group = self.groups[number].clone();
        let is_live = match group.state {
            GroupState::Making => !group.is_kept,
            GroupState::Sealed(version) => (1..=self.version).contains(&version) && group.names > 0,
            GroupState::Ended { .. } => false,
        };
        let is_bounded = group.members.len() <= MAX_GROUP;
        ensure(is_live && is_bounded, "group of objects", number)?;
        let named = group.members.iter().filter(|member| member.is_named).count();
        ensure(named == group.names as usize, "names of a group", number)?;
        let is_whole = group.version() > 0 || named == group.members.len();
        ensure(is_whole, "names of a group in the making", number)?;
        for (at, member) in (0..).zip(&group.members) {
            let end = member.offset.checked_add(member.size_bytes);
            let is_sound = is_object_name(&member.name)
                && member.metadata.len() <= METADATA_BYTES
                && end.is_some_and(|end| end <= group.size_bytes);
            ensure(is_sound, "object", number)?;
            if member.is_named && group.version() > 0 {
                self.restore_name(Place { group: number, member: at })?;
            }
        }
        Ok(())
    }

    fn restore_name(&mut self, place: Place) -> Check {
        let group = &self.groups[place.group];
        let (scope, state) = (group.scope, group.state);
        let name = group.members[usize::from(place.member)].name.clone();
        let known = self.names.find(scope, &name);
        let is_free = known.is_none_or(|entry| match state {
            GroupState::Making => {
                entry.makers.len() < MAKERS_PER_NAME
                    && entry.makers.iter().all(|maker| maker.group != place.group)
            }
            GroupState::Sealed(_) | GroupState::Ended { .. } => entry.sealed.is_none(),
        });
        ensure(is_free, "objects of one name", place.group)?;
        let shared = self.names.enter(scope, &name, place);
        if state != GroupState::Making {
            self.names.seal(scope, &shared, place);
        }
        self.groups[place.group].members[usize::from(place.member)].name = shared;
        Ok(())
    }
}
