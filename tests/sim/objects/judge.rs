//! Judges the answers of each step by the model, and the core's views when nothing is left over.
//! Must never correct the model by what the core says, but for numbers that are the core's to
//! choose.

use super::action::{Action, How, New, Touch};
use super::model::{CHARGED, Get, Group, Model, Name, News, Scope, State};
use crate::judge::ensure;
use crate::model::Check;
use crate::tally::Promise;
use fdbroker_core::limits::{MAKERS_PER_NAME, WATCHES_PER_CLIENT};
use fdbroker_core::{Caps, ClientId, Core, Effect, Effects, GotObject, Granted};
use fdbroker_protocol::object::{ObjectEvent, ObjectState};
use fdbroker_protocol::{ErrorCode, NO_CAP, Resource, Status};
use std::collections::VecDeque;

/// What a request must be answered with at once.
#[derive(Clone, Debug, PartialEq)]
pub enum Due {
    Created(How, Scope, Vec<New>),
    Sealed(u64),
    Statuses(Vec<Status>),
    /// Code, value and pid; of NO_QUOTA the resource instead of the value.
    Failed(ErrorCode, u64, u32),
    /// A get: when it can be granted now, it is, unless leases are short.
    Got,
}

fn failed(code: ErrorCode, value: usize) -> Due {
    Due::Failed(code, value as u64, 0)
}

fn no_quota(resource: Resource) -> Due {
    failed(ErrorCode::NoQuota, resource as usize)
}

impl Model {
    /// Whose names a client means.
    pub fn scope_of(&self, client: u32, of_job: bool) -> Option<Scope> {
        let (domain, job) = self.clients[&client].scope;
        if of_job { job.map(|job| (domain, Some(job))) } else { Some((domain, None)) }
    }

    /// Changes the model as the input asks, and says what the answer must be. `ended`: versions of
    /// kept groups that the core says have ended, those that made room first.
    pub fn begin(&mut self, action: &Action, ended: &mut VecDeque<u64>) -> Check<Option<Due>> {
        self.asks = false;
        Ok(match action {
            Action::Create { client, how, objects, .. } => {
                Some(self.create(*client, *how, objects))
            }
            Action::Add { client, group, objects, .. } => {
                let found = self.making(*client, *group);
                Some(
                    found
                        .and_then(|group| self.fill(group, objects))
                        .map_or_else(|due| due, |()| Due::Statuses(vec![Status::OK])),
                )
            }
            Action::Seal { client, group, checked, .. } => match self.making(*client, *group) {
                Ok(group) => Some(self.try_seal(group, *checked, ended)?.unwrap_or_else(|due| due)),
                Err(due) => Some(due),
            },
            Action::Abort { client, group, .. } => Some(match self.making(*client, *group) {
                Ok(group) => {
                    self.end(group);
                    Due::Statuses(vec![Status::OK])
                }
                Err(Due::Failed(code, ..)) => Due::Statuses(vec![code.into()]),
                Err(other) => other,
            }),
            Action::Get { client, request, of_job, names, deadline } => {
                let Some(scope) = self.scope_of(*client, *of_job) else {
                    return Ok(Some(failed(ErrorCode::NotSupported, 0)));
                };
                let get = Get { scope, names: names.clone(), deadline: *deadline };
                if let Some(client) = self.clients.get_mut(client) {
                    client.gets.insert(*request, get);
                }
                Some(Due::Got)
            }
            Action::Touch { client, touch, names, .. } => {
                let mut statuses = Vec::new();
                for name in names {
                    statuses.push(self.try_touch(*client, *touch, name, ended)?);
                }
                Some(Due::Statuses(statuses))
            }
            Action::Watch { client, of_job, prefix, is_wanted, .. } => {
                let scope = self.scope_of(*client, *of_job);
                let status = scope.map_or(ErrorCode::NotSupported.into(), |scope| {
                    self.watch(*client, scope, prefix, *is_wanted)
                });
                Some(Due::Statuses(vec![status]))
            }
            Action::Delete { client, of_job, names, .. } => {
                let scope = self.scope_of(*client, *of_job);
                let statuses = names.iter().map(|(name, version)| match scope {
                    Some(scope) => self.try_delete(scope, name, *version),
                    None => ErrorCode::NotSupported.into(),
                });
                Some(Due::Statuses(statuses.collect()))
            }
            Action::Release { client, lease } => {
                let state = self.clients.get_mut(client);
                if let Some(group) = state.and_then(|client| client.leases.remove(lease)) {
                    self.groups[group].idle_since = self.now;
                }
                None
            }
            Action::Sendable { client, sendable } => {
                if let Some(client) = self.clients.get_mut(client) {
                    client.sendable = *sendable;
                }
                None
            }
            Action::Gone { client } => {
                self.gone(*client);
                None
            }
            Action::Poll => {
                self.expire();
                None
            }
            Action::Connect { .. }
            | Action::Closed { .. }
            | Action::Cancel { .. }
            | Action::Restart
            | Action::Crash => None,
        })
    }

    fn making(&self, client: u32, group: fdbroker_core::GroupId) -> Result<usize, Due> {
        let found = self.group_of(client, group).ok_or(failed(ErrorCode::Aborted, 0))?;
        match self.groups[found].state {
            State::Making => Ok(found),
            _ => Err(failed(ErrorCode::Sealed, 0)),
        }
    }

    fn create(&mut self, client: u32, how: How, objects: &[New]) -> Due {
        let Some(scope) = self.scope_of(client, how.of_job) else {
            return failed(ErrorCode::NotSupported, 0);
        };
        if how.of_job && (how.keep_us.is_some() || how.pin || how.outlives) {
            return failed(ErrorCode::NotSupported, 0);
        }
        match self.refusal(scope, (how.replace, how.size_bytes), &[], objects) {
            Some(due) => due,
            None => Due::Created(how, scope, objects.to_vec()),
        }
    }

    fn fill(&mut self, group: usize, objects: &[New]) -> Result<(), Due> {
        let Group { scope, replace, size_bytes, .. } = self.groups[group];
        let before: Vec<_> = self.groups[group].objects.iter().map(|it| it.name.clone()).collect();
        if let Some(due) = self.refusal(scope, (replace, size_bytes), &before, objects) {
            return Err(due);
        }
        objects.iter().for_each(|object| self.enter(group, object));
        Ok(())
    }

    /// Why objects are not added to a group that has these.
    fn refusal(
        &self,
        scope: Scope,
        (replace, size_bytes): (bool, u64),
        before: &[Vec<u8>],
        objects: &[New],
    ) -> Option<Due> {
        if before.len() + objects.len() > 253 {
            return Some(failed(ErrorCode::TooLong, 253));
        }
        for (at, object) in objects.iter().enumerate() {
            if object.offset.checked_add(object.size_bytes).is_none_or(|end| end > size_bytes) {
                return Some(failed(ErrorCode::Protocol, at));
            }
            let Some(known) = self.names.get(&(scope, object.name.clone())) else { continue };
            if !replace && object.expect.is_none() {
                return Some(failed(ErrorCode::Exists, at));
            }
            if known.makers.len() >= MAKERS_PER_NAME {
                return Some(failed(ErrorCode::Again, at));
            }
        }
        let metadata = objects.iter().map(|object| object.charged_bytes()).sum();
        if let Some(full) = self.full(scope.0, [objects.len() as u64, metadata, 0, 0, 0]) {
            return Some(no_quota(full));
        }
        let is_twice = |at: &usize| {
            let name = &objects[*at].name;
            before.contains(name) || objects[..*at].iter().any(|it| it.name == *name)
        };
        (0..objects.len()).find(is_twice).map(|at| failed(ErrorCode::Protocol, at))
    }

    /// What is in the way of a group's names.
    fn unexpected(&self, group: usize) -> Option<Due> {
        let it = &self.groups[group];
        let mut all = it.objects.iter().enumerate();
        all.find_map(|(at, object)| {
            let now = self.sealed(it.scope, &object.name).map_or(0, |(_, version)| version);
            match object.expect {
                Some(version) if version != now => Some(Due::Failed(ErrorCode::Version, now, 0)),
                None if now != 0 && !it.replace => Some(failed(ErrorCode::Exists, at)),
                _ => None,
            }
        })
    }

    fn try_seal(
        &mut self,
        group: usize,
        checked: Result<(), ErrorCode>,
        ended: &mut VecDeque<u64>,
    ) -> Check<Result<Due, Due>> {
        if let Err(code) = checked {
            return Ok(Err(failed(code, 0)));
        }
        let unexpected = self.unexpected(group);
        self.groups[group].is_refused = unexpected.is_some();
        if let Some(due) = unexpected {
            return Ok(Err(due));
        }
        // Before a version that it replaces makes room for it.
        let Group { scope, size_bytes, .. } = self.groups[group];
        let (keep_us, pin) = self.lasting(group);
        if keep_us.is_some() || pin {
            let expects = |it: &&New| it.expect.is_some_and(|version| version > 0);
            let objects = self.groups[group].objects.iter().filter(expects);
            let found = objects.filter_map(|it| self.sealed(scope, &it.name));
            let expected: Vec<usize> = found.map(|(place, _)| place.0).collect();
            self.make_room(scope, (size_bytes, pin), &expected, ended)?;
            let pinned = if pin { size_bytes } else { 0 };
            if let Some(full) = self.full(scope.0, [0, 0, 1, size_bytes, pinned]) {
                return Ok(Err(no_quota(full)));
            }
        }
        let version = self.seal(group);
        (self.groups[group].keep_us, self.groups[group].pin) = (keep_us, pin);
        Ok(Ok(Due::Sealed(version)))
    }

    fn try_touch(
        &mut self,
        client: u32,
        touch: Touch,
        name: &[u8],
        ended: &mut VecDeque<u64>,
    ) -> Check<Status> {
        let keeps = touch.keep_us.is_some() || touch.pin == Some(true);
        let scope = self.scope_of(client, touch.of_job);
        let Some(scope) = scope.filter(|_| !(touch.of_job && keeps)) else {
            return Ok(ErrorCode::NotSupported.into());
        };
        let Some(((number, _), _)) = self.sealed(scope, name) else {
            return Ok(self.missing(scope, name, 0, false));
        };
        let group = &self.groups[number];
        let (was_kept, size, had_pin) = (self.is_kept(group), group.size_bytes, group.pin);
        let pin = touch.pin.unwrap_or(had_pin);
        let pinned = if pin && !had_pin { size } else { 0 };
        let more = match was_kept {
            true => [0, 0, 0, 0, pinned],
            false if keeps => {
                self.make_room(scope, (size, pin), &[], ended)?;
                [0, 0, 1, size, pinned]
            }
            false => [0; 5],
        };
        if let Some(full) = self.full(scope.0, more) {
            // Which cap it is, and whose, is for others to judge.
            return Ok(Status { resource: full as u8, ..ErrorCode::NoQuota.into() });
        }
        let pids: Vec<u32> = self.clients.values().map(|client| client.pid).collect();
        let (now, pid) = (self.now, self.clients[&client].pid);
        let group = &mut self.groups[number];
        if keeps && !pids.contains(&group.creator_pid) {
            group.creator_pid = pid;
        }
        (group.used, group.idle_since) = (now, now);
        if was_kept || keeps {
            group.pin = pin;
            group.keep_us = touch.keep_us.or(group.keep_us);
        }
        if had_pin && !pin {
            group.keep_us.get_or_insert(u64::MAX);
        }
        self.proofs.count(Promise::Objects, 1);
        Ok(Status::OK)
    }

    /// Ends the groups that the core has ended to keep so many bytes more in a domain: those that
    /// may go, as many as it needs, none that was used after another had been idle, none that the
    /// request expects, and none at all if the request is refused.
    fn make_room(
        &mut self,
        scope: Scope,
        (bytes, pin): (u64, bool),
        expected: &[usize],
        ended: &mut VecDeque<u64>,
    ) -> Check {
        loop {
            let may_go = |group: &Group| {
                let is_its = group.scope.0 == scope.0 && self.is_kept(group);
                is_its && group.evictable && !group.pin
            };
            let is_idle = |at: &usize| {
                may_go(&self.groups[*at]) && !self.is_leased(*at) && !expected.contains(at)
            };
            let idle: Vec<usize> = (0..self.groups.len()).filter(is_idle).collect();
            let spare: u64 = idle.iter().map(|at| self.groups[*at].size_bytes).sum();
            let [_, _, fds, kept, pinned] = self.charges(scope.0);
            let Caps { kept_fds, kept_bytes, permanent_bytes, .. } = self.domain;
            let may_come = |at: &usize| may_go(&self.groups[*at]) && !expected.contains(at);
            let all: Vec<usize> = (0..self.groups.len()).filter(may_come).collect();
            let spare_of_all = all.iter().map(|at| self.groups[*at].size_bytes).sum();
            let fits = |bytes_spare: u64, fds_spare: u64| {
                (kept + bytes).saturating_sub(bytes_spare) <= kept_bytes
                    && (fds + 1).saturating_sub(fds_spare) <= kept_fds
            };
            let is_hopeless = pin && pinned + bytes > permanent_bytes;
            if fits(0, 0) || is_hopeless || !fits(spare, idle.len() as u64) {
                self.asks |= !is_hopeless && fits(spare_of_all, all.len() as u64);
                return Ok(());
            }
            let version = ended.pop_front().ok_or("no group was evicted, and one may go")?;
            let found = idle.iter().find(|at| self.groups[**at].state == State::Sealed(version));
            let found = *found.ok_or_else(|| format!("{version} was evicted, and must not go"))?;
            let used = self.groups[found].used;
            let is_right = idle.iter().all(|at| used <= self.groups[*at].idle_since);
            ensure!(is_right, "{version} was evicted, and was used after another was idle");
            self.end_by(found, ObjectEvent::Evicted);
            self.proofs.count(Promise::Objects, 1);
        }
    }

    fn watch(&mut self, client: u32, scope: Scope, prefix: &[u8], is_wanted: bool) -> Status {
        let Some(state) = self.clients.get_mut(&client) else { return Status::OK };
        let known = state.watches.iter().position(|it| *it == (scope, prefix.to_vec()));
        match (is_wanted, known) {
            (true, Some(_)) => Status::OK,
            (true, None) if state.watches.len() >= WATCHES_PER_CLIENT => {
                Status::with_value(ErrorCode::TooLong, WATCHES_PER_CLIENT as u64)
            }
            (true, None) => {
                state.watches.push((scope, prefix.to_vec()));
                self.logs.entry(scope).or_default();
                Status::OK
            }
            (false, None) => ErrorCode::NotFound.into(),
            (false, Some(at)) => {
                state.watches.remove(at);
                self.drop_logs();
                Status::OK
            }
        }
    }

    /// What a client that watches must have been told since nothing was left over, sorted.
    pub fn due_news(&self, client: u32) -> Vec<News> {
        let watches = &self.clients[&client].watches;
        let is_its = |(scope, (_, _, name)): &&(Scope, News)| {
            watches.iter().any(|(of, prefix)| of == scope && name.starts_with(prefix))
        };
        let mut due: Vec<News> = self.news.iter().filter(is_its).map(|it| it.1.clone()).collect();
        due.sort();
        due
    }

    fn try_delete(&mut self, scope: Scope, name: &[u8], version: u64) -> Status {
        match self.sealed(scope, name) {
            Some((_, now)) if version != 0 && version != now => {
                Status::with_value(ErrorCode::Version, now)
            }
            Some(_) => {
                self.delete(scope, name);
                Status::OK
            }
            None => self.missing(scope, name, 0, false),
        }
    }

    /// What is said of a name that does not lead to an object.
    fn missing(&self, scope: Scope, name: &[u8], index: usize, is_late: bool) -> Status {
        let maker = self.maker(scope, name).map(|group| group.creator_pid);
        let code = match maker {
            _ if is_late => ErrorCode::TimedOut,
            Some(_) => ErrorCode::NotSealed,
            None => ErrorCode::NotFound,
        };
        let pid = maker.unwrap_or(0);
        Status { pid, ..Status::with_value(code, index as u64) }
    }

    // --- effects ---------------------------------------------------------------------------------

    /// Judges the answers among the effects of a step.
    pub fn effects(&mut self, action: &Action, mut due: Option<Due>, all: &Effects) -> Check {
        let asked = request_of(action);
        for effect in &all.list {
            match effect {
                Effect::ObjectsCreated { client, request, group, .. } => {
                    ensure!(asked == Some((client.0, request.0)), "created, and not asked");
                    let Some(Due::Created(how, scope, objects)) = due.take() else {
                        return Err(format!("created, and it must be {due:?}"));
                    };
                    self.created(client.0, *group, how, scope, &objects)?;
                }
                Effect::ObjectsSealed { client, request, version } => {
                    ensure!(asked == Some((client.0, request.0)), "sealed, and not asked");
                    ensure!(due.take() == Some(Due::Sealed(*version)), "sealed as {version}");
                    self.proofs.count(Promise::Objects, 1);
                }
                Effect::Statuses { client, request, range, .. }
                    if asked == Some((client.0, request.0)) =>
                {
                    let statuses = all.statuses[range.clone()].to_vec();
                    let right = due.take();
                    let is_right = match &right {
                        Some(Due::Statuses(right)) => is_same(right, &statuses, self.asks),
                        _ => false,
                    };
                    ensure!(is_right, "{statuses:?}, and it must be {right:?}");
                }
                Effect::ObjectsGot { client, request, objects, grants } => {
                    let get = self.take_get(client.0, request.0)?;
                    let got = &all.objects[objects.clone()];
                    self.got(client.0, &get, got, &all.granted[grants.clone()])?;
                    due.take_if(|_| asked == Some((client.0, request.0)));
                }
                Effect::Failed { client, request, status } => {
                    let is_it = asked == Some((client.0, request.0));
                    let now = due.take_if(|_| is_it);
                    self.failed(action, (client.0, request.0), *status, now)?;
                }
                _ => {}
            }
        }
        match due {
            None => Ok(()),
            // It waits: `idle` looks whether it may.
            Some(Due::Got) => Ok(()),
            Some(due) => Err(format!("no answer, and it must be {due:?}")),
        }
    }

    fn created(
        &mut self,
        client: u32,
        id: fdbroker_core::GroupId,
        how: How,
        scope: Scope,
        objects: &[New],
    ) -> Check {
        ensure!(self.groups.iter().all(|group| group.id != id), "{id:?} is given twice");
        let How { replace, keep_us, pin, inherits, outlives, evictable, size_bytes, .. } = how;
        self.groups.push(Group {
            id,
            scope,
            creator_pid: self.clients[&client].pid,
            replace,
            keep_us,
            pin,
            inherits,
            outlives,
            is_refused: false,
            evictable,
            size_bytes,
            state: State::Making,
            objects: Vec::new(),
            named: Vec::new(),
            used: self.now,
            idle_since: self.now,
            allocation: None,
        });
        let group = self.groups.len() - 1;
        objects.iter().for_each(|object| self.enter(group, object));
        Ok(())
    }

    fn take_get(&mut self, client: u32, request: u64) -> Check<Get> {
        let client = self.clients.get_mut(&client).ok_or("an answer to a client that is gone")?;
        client.gets.remove(&request).ok_or_else(|| format!("{request} is answered, and not asked"))
    }

    fn got(&mut self, client: u32, get: &Get, got: &[GotObject], grants: &[Granted]) -> Check {
        ensure!(got.len() == get.names.len(), "{} objects for {get:?}", got.len());
        ensure!(self.clients[&client].sendable, "granted to a client that does not read");
        let mut groups = Vec::new();
        for (name, got) in get.names.iter().zip(got) {
            let found = self.sealed(get.scope, name);
            let ((group, at), version) = found.ok_or_else(|| format!("{name:?} is not sealed"))?;
            let object = &self.groups[group].objects[at];
            let right = (version, object.offset, object.size_bytes, object.metadata.len());
            let is = (got.version, got.offset, got.size_bytes, usize::from(got.metadata_len));
            ensure!(is == right, "{name:?} is {is:?}, not {right:?}");
            if usize::from(got.grant) == groups.len() {
                groups.push(group);
            }
            let its = groups.get(usize::from(got.grant));
            ensure!(its == Some(&group), "{name:?} has the grant of another group");
            self.proofs.count(Promise::Objects, 1);
        }
        ensure!(groups.len() == grants.len(), "{} grants of {groups:?}", grants.len());
        for (group, grant) in groups.into_iter().zip(grants) {
            ensure!(grant.status.is_ok(), "a grant that is none");
            let id = grant.wanted.map_err(|code| code.name().to_owned())?;
            let known = self.groups[group].allocation.get_or_insert(id);
            ensure!(*known == id, "group {group} is in {id}, and was in {known}");
            let of_id = self.groups.iter().filter(|it| it.allocation == Some(id)).count();
            ensure!(of_id == 1, "{id} is of {of_id} groups");
            ensure!(
                grant.facts.size_bytes == self.groups[group].size_bytes,
                "size of group {group}"
            );
            (self.groups[group].used, self.groups[group].idle_since) = (self.now, self.now);
            let state = self.clients.get_mut(&client).ok_or("granted to a client that is gone")?;
            ensure!(state.leases.insert(grant.lease.0, group).is_none(), "a lease twice");
        }
        let open = self.clients[&client].leases.len() as u64;
        ensure!(open <= self.client_leases, "client {client} has {open} leases");
        Ok(())
    }

    fn failed(
        &mut self,
        action: &Action,
        (client, request): (u32, u64),
        status: Status,
        due: Option<Due>,
    ) -> Check {
        let code = status.result().err().ok_or("failed with OK")?;
        match due {
            Some(Due::Failed(right, value, pid)) => {
                let said =
                    if code == ErrorCode::NoQuota { status.resource.into() } else { status.value };
                let is = (code, said, status.pid);
                let asks = self.asks && (right, code) == (ErrorCode::NoQuota, ErrorCode::Again);
                ensure!(
                    is == (right, value, pid) || asks,
                    "{is:?}, and it must be {right:?} {value} {pid}"
                );
                self.proofs.count(Promise::Objects, 1);
                return Ok(());
            }
            None | Some(Due::Got) => {}
            // Makers that have ended are still to be swept.
            Some(Due::Created(..)) if code == ErrorCode::Again && !self.was_idle => return Ok(()),
            Some(other) => return Err(format!("{status}, and it must be {other:?}")),
        }
        let is_now = due.is_some();
        let get = self.take_get(client, request)?;
        let state = &self.clients[&client];
        match action {
            Action::Cancel { request: of, .. } if *of == request => {
                ensure!(code == ErrorCode::Cancelled, "cancelled, and {status}");
                return Ok(());
            }
            Action::Restart => {
                ensure!(code == ErrorCode::Again, "settled, and {status}");
                return Ok(());
            }
            _ => {}
        }
        let is_late = get.deadline <= self.now;
        if code == ErrorCode::NoQuota && is_now && !is_late {
            // No place to wait in, or none for its names.
            let bytes = get.names.iter().map(|name| name.len() as u64).sum();
            let full = self.full(get.scope.0, [0, bytes, 0, 0, 0]).is_some();
            let is_parked = status.resource == Resource::ParkedRequests as u8;
            let is_full = is_parked && state.gets.len() >= super::world::PARKED || full;
            ensure!(is_full, "{status}, and there is room");
            return Ok(());
        }
        ensure!(is_late, "{status} before its deadline");
        let missing = (0..).zip(&get.names).find(|it| self.sealed(get.scope, it.1).is_none());
        if let Some((index, name)) = missing {
            let right = self.missing(get.scope, name, index, !is_now);
            ensure!(status == right, "{status:?}, and it must be {right:?}");
        } else if !state.sendable {
            ensure!(code == ErrorCode::Again, "{status}, and its client does not read");
        } else {
            let is_short = self.needs(&get) + state.leases.len() as u64 > self.client_leases;
            let waits = !state.gets.is_empty();
            let is_it = code == ErrorCode::NoQuota && (is_short || waits);
            ensure!(is_it, "{status}, and all of it can be had");
        }
        self.proofs.count(Promise::Objects, 1);
        Ok(())
    }

    /// How many leases a get needs.
    fn needs(&self, get: &Get) -> u64 {
        let found = get.names.iter().filter_map(|name| self.sealed(get.scope, name));
        let mut groups: Vec<usize> = found.map(|((group, _), _)| group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.len() as u64
    }

    // --- views -----------------------------------------------------------------------------------

    /// What the core lists must be what there is, after every step.
    pub fn lists(&self, core: &Core) -> Check {
        for number in self.clients.keys() {
            for of_job in [false, true] {
                let Some(scope) = self.scope_of(*number, of_job) else { continue };
                let listed = core.names_for(ClientId(*number), of_job, b"", b"");
                let listed = listed.map_err(|status| status.to_string())?;
                let listed = listed.filter_map(|(_, view)| view).map(|view| {
                    let is_sealed = view.state == ObjectState::Sealed;
                    (
                        view.record.name.to_vec(),
                        is_sealed,
                        view.group.version(),
                        view.group.creator_pid,
                    )
                });
                let all = self.names.range((scope, Vec::new())..);
                let right = all.take_while(|((of, _), _)| *of == scope).map(|((_, name), it)| {
                    let (group, version) = self.shown(it);
                    (name.clone(), version > 0, version, self.groups[group].creator_pid)
                });
                let (listed, right): (Vec<_>, Vec<_>) = (listed.collect(), right.collect());
                ensure!(listed == right, "{scope:?} is listed as {listed:?}, it is {right:?}");
            }
        }
        self.proofs.count(Promise::Objects, 1);
        Ok(())
    }

    /// The group shown of a name, and its version.
    fn shown(&self, name: &Name) -> (usize, u64) {
        match name.sealed {
            Some((group, _)) => match self.groups[group].state {
                State::Sealed(version) => (group, version),
                _ => (group, 0),
            },
            None => (name.makers[0].0, 0),
        }
    }

    /// Nothing is left over: charges are exact, and no get waits that could be granted.
    pub fn idle(&self, core: &Core) -> Check {
        for (_, view, account) in core.domains(0) {
            let right = self.charges(view.key);
            let is = CHARGED.map(|resource| account.now(resource));
            ensure!(is == right, "{:?} is charged {is:?}, it is {right:?}", view.key);
            self.proofs.count(Promise::Ledger, CHARGED.len());
        }
        for (number, client) in self.clients.iter().filter(|(_, client)| client.sendable) {
            for (request, get) in &client.gets {
                ensure!(get.deadline > self.now, "get {request} of {number} is overdue");
                let all = get.names.iter().all(|name| self.sealed(get.scope, name).is_some());
                let open = client.leases.len() as u64;
                // Several stand in line: the first of them may need more.
                let fits = self.client_leases == NO_CAP
                    || client.gets.len() == 1 && open + self.needs(get) <= self.client_leases;
                ensure!(!(all && fits), "get {request} of {number} waits, and could be granted");
            }
        }
        self.proofs.count(Promise::Deadlines, 1);
        Ok(())
    }
}

/// The client and its request.
fn request_of(action: &Action) -> Option<(u32, u64)> {
    match action {
        Action::Create { client, request, .. }
        | Action::Add { client, request, .. }
        | Action::Seal { client, request, .. }
        | Action::Abort { client, request, .. }
        | Action::Get { client, request, .. }
        | Action::Delete { client, request, .. }
        | Action::Touch { client, request, .. }
        | Action::Watch { client, request, .. } => Some((*client, *request)),
        _ => None,
    }
}

/// Whether statuses are these; of NO_QUOTA only the resource must be right. `asks`: it may be AGAIN
/// as well.
fn is_same(right: &[Status], is: &[Status], asks: bool) -> bool {
    let is_one = |(right, is): (&Status, &Status)| match right.result() {
        Err(ErrorCode::NoQuota) if asks && *is == ErrorCode::Again.into() => true,
        Err(ErrorCode::NoQuota) => (right.code, right.resource) == (is.code, is.resource),
        _ => right == is,
    };
    right.len() == is.len() && right.iter().zip(is).all(is_one)
}
