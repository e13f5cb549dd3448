//! A world of objects: a core, the model, virtual time, and what clients do. Must never correct
//! what the core does.

use super::action::Action;
use super::judge::Due;
use super::model::{Client, Model, News, Scope};
use super::table::Table;
use crate::judge::ensure;
use crate::model::Check;
use crate::report::{Stats, Trace};
use crate::rig::{arrived, deposit, sized};
use crate::rng::Rng;
use crate::setups;
use crate::tally::Promise;
use fdbroker_core::{
    Body, Caps, ClientId, Config, Core, Create, Deleted, DomainKey, Effect, Effects, Events,
    GroupId, Input, JobKey, KeptChange, LeaseId, NewObject, Now, ObjectNews, Peer, RequestId,
    Ticket, Touch, work,
};
use fdbroker_protocol::object::ObjectEvent;
use fdbroker_protocol::{NO_CAP, Status};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most requests of a client that wait at once.
pub const PARKED: usize = 4;

/// Polls at one instant before the core is said to spin.
const MOST_POLLS: usize = 2_000;

#[derive(Debug)]
pub struct World {
    pub core: Core,
    pub model: Model,
    pub rng: Rng,
    pub now: u64,
    /// The daemon does not always poll before the next input.
    pub is_hurried: bool,
    /// No cap loses events, and what happens is told before the next thing happens.
    pub may_watch: bool,
    /// What clients that watch have been told since nothing was left over.
    news: BTreeMap<u32, Vec<News>>,
    /// Fds in the closers.
    pub closing: BTreeSet<u32>,
    /// Client numbers that the core has not forgotten.
    pub used: BTreeSet<u32>,
    pub stats: Stats,
    pub trace: Trace,
    /// What outlives a crash.
    table: Table,
    config: Config,
    effects: Effects,
    requests: u64,
    pids: u32,
}

impl World {
    /// Nobody there.
    pub fn new(seed: u64, trace: Trace) -> Self {
        let mut rng = Rng::new(seed);
        let mut config = setups::named("none", &mut rng).expect("a setup of that name").config;
        let is_hurried = rng.chance(300);
        let is_capped = !is_hurried && rng.chance(500);
        config.max_clients = 64;
        config.table_fds = 4096;
        config.max_slots = 4096;
        config.max_parked_per_client = PARKED as u32;
        config.base_credits = 4;
        config.object_ttl_us = 15_000;
        if is_capped && rng.chance(500) {
            // Groups that may go make room for others, and nothing else is short.
            config.domain = Caps { kept_bytes: 4096 * rng.between(2, 4), ..Caps::NONE };
        } else if is_capped {
            config.domain = Caps {
                object_names: rng.between(3, 30),
                metadata_bytes: rng.between(1, 5_000),
                kept_bytes: 4096 * rng.between(0, 5),
                kept_fds: rng.between(2, 8),
                permanent_bytes: 4096 * rng.between(0, 2),
                ..Caps::NONE
            };
        }
        config.client.open_leases = if rng.chance(500) { rng.between(1, 3) } else { NO_CAP };
        let model = Model {
            domain: config.domain,
            client_leases: config.client.open_leases,
            object_ttl_us: config.object_ttl_us,
            ..Model::default()
        };
        World {
            core: Core::new(config.clone()).expect("the numbers can work"),
            model,
            rng,
            now: 1,
            is_hurried,
            may_watch: !is_hurried && !is_capped,
            news: BTreeMap::new(),
            closing: BTreeSet::new(),
            used: BTreeSet::new(),
            stats: Stats { worlds: 1, ..Stats::default() },
            trace,
            table: Table::default(),
            config,
            effects: Effects::default(),
            requests: 1,
            pids: 100,
        }
    }

    /// Runs about so many steps; then all clients leave.
    pub fn run(&mut self, steps: u64) -> Check {
        while self.stats.steps < steps {
            if !self.is_hurried || self.rng.chance(500) {
                self.rest()?;
            }
            let wait = self.rng.skewed(0, 300);
            self.advance(self.now + wait)?;
            let action = self.choose();
            self.feed(&action)?;
        }
        for client in self.model.clients.keys().copied().collect::<Vec<_>>() {
            self.feed(&Action::Gone { client })?;
        }
        self.rest()?;
        self.advance(self.now + self.config.object_ttl_us)?;
        self.rest()?;
        let pinned = self.model.groups.iter().filter(|group| self.model.is_kept(group)).count();
        let held = self.core.totals().gauges.stored_fds;
        ensure!(held == pinned as u64, "in the end {held} fds are held, and {pinned} groups kept");
        Ok(())
    }

    pub fn next_request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    pub fn draw_scope(&mut self) -> Scope {
        let domain = DomainKey::new(0, 1000 + self.rng.below(2) as u32);
        let job = self.rng.chance(600).then(|| JobKey(1 + self.rng.below(2)));
        (domain, job)
    }

    /// Polls until nothing is left over; then all must be as the model says.
    fn rest(&mut self) -> Check {
        for _ in 0..MOST_POLLS {
            if self.core.poll_timeout().is_none_or(|due| due.0 > self.now) {
                self.compare_news()?;
                return self.model.idle(&self.core);
            }
            self.feed(&Action::Poll)?;
        }
        Err("the core wants to be polled again and again".into())
    }

    /// Clients that watch have been told all that has happened, once each.
    fn compare_news(&mut self) -> Check {
        for client in self.model.clients.keys() {
            let mut told = self.news.remove(client).unwrap_or_default();
            told.sort();
            let due = self.model.due_news(*client);
            ensure!(told == due, "client {client} is told {told:?}, and must be {due:?}");
            self.model.proofs.count(Promise::Events, told.len());
        }
        self.news.clear();
        self.model.news.clear();
        Ok(())
    }

    /// Lets time pass, with polls when they are due.
    fn advance(&mut self, to: u64) -> Check {
        for _ in 0..MOST_POLLS {
            let due = self.core.poll_timeout().filter(|due| due.0 > 0 && due.0 <= to);
            let Some(due) = due else {
                self.now = to;
                return Ok(());
            };
            self.now = self.now.max(due.0);
            self.feed(&Action::Poll)?;
            self.rest()?;
        }
        Err("time does not pass".into())
    }

    /// One step, judged.
    fn feed(&mut self, action: &Action) -> Check {
        self.stats.steps += 1;
        self.trace.step(|| format!("{} {action:?}", self.now));
        self.model.now = self.now;
        self.model.was_idle = self.core.poll_timeout().is_none_or(|due| due.0 > self.now);
        self.effects.clear();
        if let Action::Connect { client, scope } = action {
            self.connect(*client, *scope);
        }
        match action {
            Action::Restart => self.core.settle_parked(Now(self.now), &mut self.effects),
            Action::Crash => {}
            Action::Poll => self.core.poll(Now(self.now), &mut self.effects),
            action => step(&mut self.core, self.now, action, &mut self.effects),
        }
        self.stats.longest = self.stats.longest.max(work::last());
        self.model.proofs.count(Promise::Work, 1);
        let mut ended: VecDeque<u64> = self.effects.kept.iter().filter_map(ended_version).collect();
        let due = self.model.begin(action, &mut ended)?;
        self.settle(action, due)?;
        match action {
            Action::Restart => self.restart()?,
            Action::Crash => self.crash()?,
            _ => {}
        }
        self.table.check(&self.model)?;
        self.core.check_invariants();
        self.model.lists(&self.core)
    }

    fn connect(&mut self, client: u32, scope: Scope) {
        self.pids += 1;
        let pid = self.pids;
        let (domain, job) = scope;
        let peer = Peer { domain, job: job.map(crate::jobs::named), pid, gid: 100, groups: &[] };
        let now = Now(self.now);
        self.core.step(now, Input::Connect { client: ClientId(client), peer }, &mut self.effects);
        self.used.insert(client);
        let (gets, leases, watches) = Default::default();
        let new = Client { scope, pid, sendable: true, gets, leases, watches };
        self.model.clients.insert(client, new);
    }

    /// Judges the effects of a step, and does what the daemon would.
    fn settle(&mut self, action: &Action, due: Option<Due>) -> Check {
        let effects = std::mem::take(&mut self.effects);
        let (arrived, mut placed) = (usize::from(matches!(action, Action::Create { .. })), 0);
        self.table.hear(&effects.kept, &self.core);
        for effect in &effects.list {
            self.trace.note(|| format!("{effect:?}"));
            match effect {
                Effect::Publish { slot, generation } => self.table.publish(*slot, *generation),
                Effect::StoreArrived { .. } => placed += 1,
                Effect::CloseArrived { ticket, .. } => {
                    placed += 1;
                    self.closing.insert(ticket.0);
                }
                Effect::CloseHeld { ticket, .. } => _ = self.closing.insert(ticket.0),
                Effect::Forget { client } => _ = self.used.remove(&client.0),
                Effect::Disconnect { client, status } => {
                    return Err(format!("client {} is disconnected: {status}", client.0));
                }
                Effect::Events { client } => self.take_events(*client)?,
                _ => {}
            }
        }
        ensure!(placed == arrived, "{placed} of {arrived} fds are stored or closed");
        let outcome = self.model.effects(action, due, &effects);
        self.effects = effects;
        outcome
    }

    fn take_events(&mut self, client: ClientId) -> Check {
        while let Some(events) = self.core.take_events(client) {
            let Events::Objects(news) = events else { continue };
            let told = self.news.entry(client.0).or_default();
            for ObjectNews { event, version, name } in news {
                ensure!(event != ObjectEvent::Lost, "{version} events are lost");
                told.push((event, version, name.to_vec()));
            }
        }
        Ok(())
    }

    /// A successor goes on with the saved state.
    fn restart(&mut self) -> Check {
        let saved = self.core.save();
        let restored = Core::restore(self.config.clone(), saved.clone(), Now(self.now));
        self.core = restored.map_err(|error| error.to_string())?;
        ensure!(self.core.save() == saved, "what was restored is not what was saved");
        // Every client may have events to take.
        for client in self.model.clients.keys().copied().collect::<Vec<_>>() {
            self.take_events(ClientId(client))?;
        }
        self.closing.clear();
        self.model.proofs.count(Promise::Lives, 1);
        Ok(())
    }
}

impl World {
    /// The broker is killed, and another one begins with what outlives it. No client comes back.
    fn crash(&mut self) -> Check {
        let last_version = self.model.version + self.rng.below(5);
        self.core = self.table.begin(&mut self.config, last_version, Now(self.now))?;
        self.model.crash(last_version);
        for group in self.model.groups.iter_mut() {
            let scope = (group.scope.0, &group.objects[..], &group.named[..]);
            group.id = Table::id_of(&self.core, scope).unwrap_or(GroupId(0));
        }
        self.closing.clear();
        self.used.clear();
        self.model.proofs.count(Promise::Lives, 1);
        Ok(())
    }
}

/// Hands an input to the core.
fn step(core: &mut Core, now: u64, action: &Action, fx: &mut Effects) {
    let now = Now(now);
    let of = |client: &u32, request: &u64| (ClientId(*client), RequestId(*request));
    match action {
        Action::Connect { client, .. } => {
            let (client, request) = of(client, &1);
            core.step(now, Body::Hello { own_fds: 0, deadline: now }.by(client, request), fx);
        }
        Action::Create { client, request, how, objects } => {
            let (client, request) = of(client, request);
            let objects: Vec<NewObject<'_>> = objects.iter().map(borrowed).collect();
            let create = &Create {
                of_job: how.of_job,
                replace: how.replace,
                keep_us: how.keep_us,
                pin: how.pin,
                inherits: how.inherits,
                outlives: how.outlives,
                evictable: how.evictable,
                deposit: arrived(sized(how.size_bytes, deposit(0))),
                credits_wanted: 0,
                objects: &objects,
            };
            core.step(now, Body::CreateObjects { create }.by(client, request), fx);
        }
        Action::Add { client, request, group, objects } => {
            let (client, request) = of(client, request);
            let objects: Vec<NewObject<'_>> = objects.iter().map(borrowed).collect();
            let (group, objects) = (*group, &objects[..]);
            core.step(now, Body::AddObjects { group, objects }.by(client, request), fx);
        }
        Action::Seal { client, request, group, checked } => {
            let (client, request) = of(client, request);
            let (group, checked) = (*group, checked.map_err(Status::from));
            core.step(now, Body::SealObjects { group, checked }.by(client, request), fx);
        }
        Action::Abort { client, request, group } => {
            let (client, request) = of(client, request);
            core.step(now, Body::AbortObjects { group: *group }.by(client, request), fx);
        }
        Action::Get { client, request, of_job, names, deadline } => {
            let ((client, request), of_job) = (of(client, request), *of_job);
            let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
            let (names, deadline) = (&names[..], Now(*deadline));
            let input = Body::GetObjects { of_job, names, deadline }.by(client, request);
            core.step(now, input, fx);
        }
        Action::Delete { client, request, of_job, names } => {
            let ((client, request), of_job) = (of(client, request), *of_job);
            let objects: Vec<Deleted<'_>> =
                names.iter().map(|(name, version)| Deleted { name, version: *version }).collect();
            let input = Body::DeleteObjects { of_job, objects: &objects }.by(client, request);
            core.step(now, input, fx);
        }
        Action::Touch { client, request, touch, names } => {
            let (client, request) = of(client, request);
            let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
            let super::action::Touch { of_job, keep_us, pin } = *touch;
            let touch = &Touch { of_job, keep_us, pin, names: &names };
            core.step(now, Body::TouchObjects { touch }.by(client, request), fx);
        }
        Action::Watch { client, request, of_job, prefix, is_wanted } => {
            let (client, request) = of(client, request);
            let (of_job, is_wanted) = (*of_job, *is_wanted);
            let input = Body::WatchObjects { of_job, prefix, is_wanted }.by(client, request);
            core.step(now, input, fx);
        }
        Action::Cancel { client, request } => {
            let (client, request) = of(client, request);
            core.step(now, Body::Cancel.by(client, request), fx);
        }
        Action::Release { client, lease } => {
            let (client, leases) = (ClientId(*client), &[LeaseId(*lease)]);
            core.step(now, Body::Release { leases }.by(client, RequestId::ONE_WAY), fx);
        }
        Action::Sendable { client, sendable } => {
            let (client, sendable) = (ClientId(*client), *sendable);
            core.step(now, Input::Sendable { client, sendable }, fx);
        }
        Action::Gone { client } => core.step(now, Input::Gone { client: ClientId(*client) }, fx),
        Action::Closed { ticket } => core.step(now, Input::Closed { ticket: Ticket(*ticket) }, fx),
        Action::Poll | Action::Restart | Action::Crash => {}
    }
}

fn ended_version(change: &KeptChange) -> Option<u64> {
    match change {
        KeptChange::Ended(version) => Some(*version),
        _ => None,
    }
}

fn borrowed(object: &super::action::New) -> NewObject<'_> {
    NewObject {
        name: &object.name,
        offset: object.offset,
        size_bytes: object.size_bytes,
        expect: object.expect,
        metadata: &object.metadata,
    }
}
