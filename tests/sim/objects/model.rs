//! What there should be: a map of names and a list of groups, too simple to be wrong. Must never
//! look into the core.

use super::action::New;
use crate::tally::Proofs;
use fdbroker_core::limits::{EVENT_IN_LOG_BYTES, EVENTS_IN_LOG};
use fdbroker_core::{Caps, DomainKey, GroupId, Inherits, JobKey};
use fdbroker_protocol::object::ObjectEvent;
use fdbroker_protocol::{AllocationId, Resource};
use std::collections::{BTreeMap, VecDeque};

/// Whose names: those of a domain, or of a job in it.
pub type Scope = (DomainKey, Option<JobKey>);

/// A group by its index, and an object of it.
pub type Place = (usize, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Making,
    Sealed(u64),
    Ended,
}

#[derive(Clone, Debug)]
pub struct Group {
    pub id: GroupId,
    pub scope: Scope,
    pub creator_pid: u32,
    pub replace: bool,
    pub keep_us: Option<u64>,
    pub pin: bool,
    pub inherits: Inherits,
    pub outlives: bool,
    /// A seal has found others under its names.
    pub is_refused: bool,
    pub evictable: bool,
    pub size_bytes: u64,
    pub state: State,
    pub objects: Vec<New>,
    /// Of each object, whether it has its name, or is made under it.
    pub named: Vec<bool>,
    pub used: u64,
    /// When it was used last, or its last lease ended.
    pub idle_since: u64,
    /// Known once it has been granted.
    pub allocation: Option<AllocationId>,
}

#[derive(Clone, Debug, Default)]
pub struct Name {
    pub sealed: Option<Place>,
    pub makers: Vec<Place>,
}

/// A get that waits.
#[derive(Clone, Debug)]
pub struct Get {
    pub scope: Scope,
    pub names: Vec<Vec<u8>>,
    pub deadline: u64,
}

#[derive(Clone, Debug)]
pub struct Client {
    pub scope: Scope,
    pub pid: u32,
    pub sendable: bool,
    pub gets: BTreeMap<u64, Get>,
    /// Each with its group.
    pub leases: BTreeMap<u64, usize>,
    /// Prefixes of names that it watches.
    pub watches: Vec<(Scope, Vec<u8>)>,
}

/// What happened to a name.
pub type News = (ObjectEvent, u64, Vec<u8>);

#[derive(Debug, Default)]
pub struct Model {
    pub names: BTreeMap<(Scope, Vec<u8>), Name>,
    pub groups: Vec<Group>,
    pub clients: BTreeMap<u32, Client>,
    pub version: u64,
    pub now: u64,
    pub domain: Caps,
    pub client_leases: u64,
    pub object_ttl_us: u64,
    /// The core had nothing left over before the step: then its charges are exact.
    pub was_idle: bool,
    /// Leases that others give back would let the request in: they are asked, and it is to ask
    /// again.
    pub asks: bool,
    /// What has happened since nothing was left over.
    pub news: Vec<(Scope, News)>,
    /// Bytes of the events of each scope that is watched.
    pub logs: BTreeMap<Scope, VecDeque<u64>>,
    pub proofs: Proofs,
}

/// What a domain is charged with: names, metadata, kept fds, kept bytes, permanent bytes.
pub type Charges = [u64; 5];

/// The resources of these.
pub const CHARGED: [Resource; 5] = [
    Resource::ObjectNames,
    Resource::MetadataBytes,
    Resource::KeptFds,
    Resource::KeptBytes,
    Resource::PermanentBytes,
];

impl Model {
    /// The object that a name leads to, with its version.
    pub fn sealed(&self, scope: Scope, name: &[u8]) -> Option<(Place, u64)> {
        let place = self.names.get(&(scope, name.to_vec()))?.sealed?;
        match self.groups[place.0].state {
            State::Sealed(version) => Some((place, version)),
            other => panic!("{name:?} leads to {other:?}"),
        }
    }

    /// The first that makes an object under a name.
    pub fn maker(&self, scope: Scope, name: &[u8]) -> Option<&Group> {
        let maker = self.names.get(&(scope, name.to_vec()))?.makers.first()?;
        Some(&self.groups[maker.0])
    }

    /// An object is made under its name.
    pub fn enter(&mut self, group: usize, object: &New) {
        let scope = self.groups[group].scope;
        let place = (group, self.groups[group].objects.len());
        self.groups[group].objects.push(object.clone());
        self.groups[group].named.push(true);
        self.names.entry((scope, object.name.clone())).or_default().makers.push(place);
    }

    /// Something happened to a name.
    fn tell(&mut self, scope: Scope, event: ObjectEvent, version: u64, name: &[u8]) {
        self.news.push((scope, (event, version, name.to_vec())));
        if let Some(log) = self.logs.get_mut(&scope) {
            log.push_back(EVENT_IN_LOG_BYTES + name.len() as u64);
            if log.len() > EVENTS_IN_LOG {
                log.pop_front();
            }
        }
    }

    /// Scopes that nobody watches have no log.
    pub fn drop_logs(&mut self) {
        let clients = &self.clients;
        let is_watched = |scope: &Scope| {
            clients.values().any(|client| client.watches.iter().any(|(of, _)| of == scope))
        };
        self.logs.retain(|scope, _| is_watched(scope));
    }

    /// How long a group lasts if it is sealed now, and whether it is pinned.
    pub fn lasting(&self, group: usize) -> (Option<u64>, bool) {
        let it = &self.groups[group];
        let found = it.objects.iter().filter_map(|object| self.sealed(it.scope, &object.name));
        let replaced: Vec<&Group> = found.map(|((group, _), _)| &self.groups[group]).collect();
        let longest = replaced.iter().filter_map(|former| former.keep_us).max();
        let inherited = longest.filter(|_| it.inherits.keep);
        let pin = it.pin || it.inherits.pin && replaced.iter().any(|former| former.pin);
        let most = (it.outlives && !pin).then_some(u64::MAX);
        (it.keep_us.or(inherited).or(most), pin)
    }

    /// All names of a group lead to it.
    pub fn seal(&mut self, group: usize) -> u64 {
        self.version += 1;
        self.groups[group].state = State::Sealed(self.version);
        (self.groups[group].used, self.groups[group].idle_since) = (self.now, self.now);
        let scope = self.groups[group].scope;
        for (at, object) in self.groups[group].objects.clone().into_iter().enumerate() {
            let key = (scope, object.name.clone());
            let name = self.names.get_mut(&key).expect("it was entered");
            name.makers.retain(|maker| *maker != (group, at));
            let former = name.sealed.replace((group, at));
            let event = if former.is_some() { ObjectEvent::Replaced } else { ObjectEvent::Sealed };
            former.into_iter().for_each(|former| self.lose(former));
            self.tell(scope, event, self.version, &object.name);
        }
        if self.groups[group].objects.is_empty() {
            self.end(group);
        }
        self.version
    }

    /// Another object has the name; with the last one the group ends.
    fn lose(&mut self, (group, at): Place) {
        self.groups[group].named[at] = false;
        if !self.groups[group].named.contains(&true) {
            self.end(group);
        }
    }

    /// A name leads nowhere.
    pub fn delete(&mut self, scope: Scope, name: &[u8]) {
        let (place, version) = self.sealed(scope, name).expect("it is there");
        self.leave(scope, name, place);
        self.lose(place);
        self.tell(scope, ObjectEvent::Deleted, version, name);
    }

    fn leave(&mut self, scope: Scope, name: &[u8], place: Place) {
        let key = (scope, name.to_vec());
        let known = self.names.get_mut(&key).expect("it was entered");
        known.makers.retain(|maker| *maker != place);
        known.sealed.take_if(|sealed| *sealed == place);
        if known.sealed.is_none() && known.makers.is_empty() {
            self.names.remove(&key);
        }
    }

    /// Nothing of a group is known any more.
    pub fn end(&mut self, group: usize) {
        self.end_by(group, ObjectEvent::Deleted);
    }

    /// The same; what is told of its objects, if it is sealed.
    pub fn end_by(&mut self, group: usize, event: ObjectEvent) {
        let scope = self.groups[group].scope;
        let (event, version) = match self.groups[group].state {
            State::Sealed(version) => (event, version),
            State::Making | State::Ended => (ObjectEvent::Aborted, 0),
        };
        for at in 0..self.groups[group].objects.len() {
            if std::mem::take(&mut self.groups[group].named[at]) {
                let name = self.groups[group].objects[at].name.clone();
                self.leave(scope, &name, (group, at));
                if version > 0 || !self.groups[group].is_refused {
                    self.tell(scope, event, version, &name);
                }
            }
        }
        self.groups[group].state = State::Ended;
    }

    pub fn is_kept(&self, group: &Group) -> bool {
        matches!(group.state, State::Sealed(_)) && (group.keep_us.is_some() || group.pin)
    }

    /// A client is gone: so is what it made and did not keep.
    pub fn gone(&mut self, client: u32) {
        let Some(Client { pid, leases, .. }) = self.clients.remove(&client) else { return };
        leases.into_values().for_each(|group| self.groups[group].idle_since = self.now);
        self.drop_logs();
        for group in 0..self.groups.len() {
            let it = &self.groups[group];
            if it.creator_pid == pid && it.state != State::Ended && !self.is_kept(it) {
                self.end(group);
            }
        }
    }

    /// The broker is killed: what is kept lives on, and its time begins again. All else is gone.
    pub fn crash(&mut self, last_version: u64) {
        self.clients.clear();
        self.logs.clear();
        self.version = last_version;
        for group in 0..self.groups.len() {
            let it = &self.groups[group];
            match self.is_kept(it) {
                true => {
                    (self.groups[group].used, self.groups[group].idle_since) = (self.now, self.now);
                }
                false if it.state != State::Ended => self.end(group),
                false => {}
            }
        }
    }

    pub fn is_leased(&self, group: usize) -> bool {
        let mut leases = self.clients.values().flat_map(|client| client.leases.values());
        leases.any(|of| *of == group)
    }

    /// Ends what is kept and was not used for its time; leased is used.
    pub fn expire(&mut self) {
        for group in 0..self.groups.len() {
            let it = &self.groups[group];
            let (Some(keep_us), true, false) = (it.keep_us, self.is_kept(it), it.pin) else {
                continue;
            };
            if it.used + keep_us.min(self.object_ttl_us) > self.now {
                continue;
            }
            if self.is_leased(group) { self.groups[group].used = self.now } else { self.end(group) }
        }
    }

    /// The group of a number that has not ended, if this connection has begun it.
    pub fn group_of(&self, client: u32, id: GroupId) -> Option<usize> {
        let pid = self.clients.get(&client)?.pid;
        let its = |it: &Group| it.id == id && it.creator_pid == pid && it.state != State::Ended;
        self.groups.iter().rposition(its)
    }

    /// What a domain is charged with.
    pub fn charges(&self, domain: DomainKey) -> Charges {
        let mut sums = [0; 5];
        let of_domain = self.groups.iter().filter(|group| group.scope.0 == domain);
        for group in of_domain.filter(|group| group.state != State::Ended) {
            for (object, _) in group.objects.iter().zip(&group.named).filter(|it| *it.1) {
                sums[0] += 1;
                sums[1] += object.charged_bytes();
            }
            if self.is_kept(group) {
                sums[2] += 1;
                sums[3] += group.size_bytes;
                sums[4] += if group.pin { group.size_bytes } else { 0 };
            }
        }
        let logs = self.logs.iter().filter(|(scope, _)| scope.0 == domain);
        sums[1] += logs.flat_map(|(_, log)| log).sum::<u64>();
        let clients = self.clients.values().filter(|client| client.scope.0 == domain);
        for get in clients.flat_map(|client| client.gets.values()) {
            sums[1] += get.names.iter().map(|name| name.len() as u64).sum::<u64>();
        }
        sums
    }

    /// The first resource of which a domain may not have so much more.
    pub fn full(&self, domain: DomainKey, more: Charges) -> Option<Resource> {
        let Caps { object_names, metadata_bytes, kept_fds, kept_bytes, permanent_bytes, .. } =
            self.domain;
        let caps = [object_names, metadata_bytes, kept_fds, kept_bytes, permanent_bytes];
        let sums = self.charges(domain).into_iter().zip(more);
        let mut all = CHARGED.into_iter().zip(sums.zip(caps));
        let is_full = |((sum, more), cap): ((u64, u64), u64)| more > 0 && sum + more > cap;
        all.find(|(_, one)| is_full(*one)).map(|(resource, _)| resource)
    }
}
