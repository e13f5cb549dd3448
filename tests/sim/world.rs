//! The simulated daemon: virtual time, connections, closers, sockets that fill up. `feed` hands its
//! inputs to the core. Must never correct what the core does.

use crate::action::{Action, show_events};
use crate::agents::{Agent, Manners};
use crate::checks;
use crate::judge::ensure;
use crate::lives::Remembered;
use crate::model::{Check, Model, Phase};
use crate::reclaims::Reclaims;
use crate::report::{Stats, Trace};
use crate::rng::Rng;
use crate::setups::Setup;
use crate::sums::Ledger;
use crate::tally::{Fault, Promise};
use crate::turns::Turns;
use crate::watch::SlotWatch;
use fdbroker_core::{
    CapsOfScopes, ClientId, Config, Core, DomainKey, Effects, Events, FormerSlot, Granted, JobKey,
    Kept, OwnerKey, PodKey, Ticket,
};
use fdbroker_protocol::page::LAST_GENERATION;
use fdbroker_protocol::{AllocationId, ErrorCode};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Polls at one instant before the core is said to spin.
const MAX_POLLS_AT_ONCE: u64 = 512;

/// Something that happens at a set time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Todo {
    Spawn,
    Hello { client: u32, order: u64 },
    Act { client: u32, order: u64 },
    Deliver { client: u32, order: u64 },
    TakeEvents { client: u32, order: u64 },
    Supply { client: u32, order: u64 },
    GiveBack { client: u32, order: u64 },
    Sendable { client: u32, order: u64 },
    Gone { client: u32, order: u64 },
    Close { ticket: u32, token: u64 },
}

/// An answer of the core, kept for scenarios.
#[derive(Clone, Debug)]
pub enum Reply {
    Granted(Vec<Granted>),
    Registered(Vec<fdbroker_core::Registered>),
    Failed(fdbroker_protocol::Status),
}

fn caps_of(config: &Config) -> CapsOfScopes {
    let Config { node, domain, job, client, .. } = *config;
    CapsOfScopes { node, domain, job, client }
}

/// The daemon, its clients, the model, the core.
#[derive(Debug)]
pub struct World {
    pub setup: Setup,
    pub core: Core,
    pub model: Model,
    pub rng: Rng,
    pub now: u64,
    pub agents: BTreeMap<u32, Agent>,
    pub stats: Stats,
    pub trace: Trace,
    /// No faults: clients answer everything at once.
    pub quiet: bool,
    /// Handles that clients pass on; most of them are alive.
    pub known: Vec<AllocationId>,
    /// Handles of ended allocations.
    pub old: Vec<AllocationId>,
    /// The core's answers; only scenarios keep them.
    pub replies: Option<BTreeMap<(u32, u64), Reply>>,
    /// What clients remember from before a crash, and their domain.
    pub former: Vec<(AllocationId, DomainKey, Remembered)>,
    /// What is in the service manager's store, by slot.
    pub stored: BTreeMap<u32, Kept>,
    /// The daemon's private record of each slot that was ever used.
    pub records: BTreeMap<u32, FormerSlot>,
    /// Clients of before a crash that have not come back: domain, pid and key.
    pub returning: Vec<(DomainKey, u32, OwnerKey)>,
    /// Closing fds by ticket, each with the token of its `Todo::Close`.
    pub closing: BTreeMap<u32, u64>,
    /// Number of the grant sent last.
    pub last_seq: u64,
    pub effects: Effects,
    todos: BinaryHeap<Reverse<(u64, u64, Todo)>>,
    pub todo_count: u64,
    /// Until this time every send of fds fails with ETOOMANYREFS.
    pub refs_full_until: u64,
    /// Messages given to the core so far: they show which message has overtaken another.
    messages: u64,
    pub ledger: Ledger,
    pub turns: Turns,
    pub reclaims: Reclaims,
    /// The caps that this world began with.
    pub first_caps: CapsOfScopes,
    pub slot_watch: SlotWatch,
}

impl World {
    /// A world without clients.
    pub fn new(setup: Setup, seed: u64, trace: Trace) -> Self {
        let config = setup.config.clone();
        let mut world = World {
            core: Core::new(config.clone()).expect("the setups' numbers can work"),
            model: Model::new(config, setup.check_every == 1),
            rng: Rng::new(seed),
            now: 1,
            agents: BTreeMap::new(),
            stats: Stats { worlds: 1, ..Stats::default() },
            trace,
            quiet: false,
            known: Vec::new(),
            old: Vec::new(),
            replies: None,
            former: Vec::new(),
            stored: BTreeMap::new(),
            records: BTreeMap::new(),
            returning: Vec::new(),
            closing: BTreeMap::new(),
            last_seq: 0,
            effects: Effects::default(),
            todos: BinaryHeap::new(),
            todo_count: 0,
            refs_full_until: 0,
            messages: 0,
            ledger: Ledger::default(),
            turns: Turns::default(),
            reclaims: Reclaims::default(),
            first_caps: caps_of(&setup.config),
            slot_watch: SlotWatch::default(),
            setup,
        };
        for _ in 0..world.setup.clients {
            let wait = world.rng.below(500);
            world.schedule(wait, Todo::Spawn);
        }
        world
    }

    /// Runs until about `steps` steps are done, or all slots are used up.
    pub fn run(&mut self, steps: u64) -> Check {
        let mut rest_at = self.setup.rest_every;
        while self.stats.steps < steps && !self.is_used_up() {
            let Some(Reverse((time, _, todo))) = self.todos.pop() else { break };
            // A busy daemon comes late to its timer once in a while.
            if self.rng.chance(50) {
                let due = self.core.poll_timeout().is_some_and(|at| at.0 <= time);
                self.stats.faults(Fault::LatePoll, usize::from(due));
            } else {
                self.poll_until(time)?;
            }
            self.now = self.now.max(time);
            self.perform(todo)?;
            if self.rng.chance(self.setup.restarts) {
                self.restart()?;
            }
            if self.setup.files > 0 && self.rng.chance(20) {
                self.grow_file()?;
            }
            if self.rng.chance(self.setup.cap_changes) {
                self.change_caps()?;
                self.stats.faults(Fault::Draining, usize::from(!self.model.above.is_empty()));
            }
            if self.rng.chance(self.setup.acts) {
                self.administer()?;
            }
            if self.rng.chance(self.setup.crashes) {
                self.crash()?;
            }
            if self.stats.steps >= rest_at {
                rest_at = self.stats.steps + self.setup.rest_every;
                self.rest()?;
            }
        }
        self.rest()?;
        let retired = self.model.slots.iter().filter(|slot| slot.highest == LAST_GENERATION);
        self.stats.retired = retired.count() as u64;
        Ok(())
    }

    /// The counts of this world, with the checks of the model.
    pub fn total(&self) -> Stats {
        Stats { by_promise: self.model.proofs.counts(), ..self.stats }
    }

    /// Whether every slot has used up its generations.
    fn is_used_up(&self) -> bool {
        self.model.slots.iter().all(|slot| slot.highest == LAST_GENERATION && slot.published == 0)
    }

    /// Schedules something, `wait` us from now.
    pub fn schedule(&mut self, wait: u64, todo: Todo) {
        self.todo_count += 1;
        self.todos.push(Reverse((self.now + wait, self.todo_count, todo)));
    }

    /// Polls whenever the core asks for it, up to a time; then nothing may be overdue.
    pub fn poll_until(&mut self, time: u64) -> Check {
        let time = time.max(self.now);
        let (mut at_once, mut instant) = (0, self.now);
        while let Some(due) = self.core.poll_timeout().filter(|due| due.0 <= time) {
            self.now = self.now.max(due.0);
            if self.now != instant {
                (at_once, instant) = (0, self.now);
            }
            at_once += 1;
            self.model.proofs.count(Promise::Bounds, 1);
            ensure!(at_once <= MAX_POLLS_AT_ONCE, "the core wants to be polled again and again");
            self.feed(Action::Poll)?;
        }
        self.now = self.now.max(time);
        self.model.now = self.now;
        self.model.nothing_outstays(|id| self.core.is_ended_here(id))?;
        checks::nothing_overdue(&self.model, &self.core)
    }

    fn is_current(&self, client: u32, order: u64) -> bool {
        self.agents.get(&client).is_some_and(|agent| agent.order == order)
            && self.phase(client) != Some(Phase::Gone)
    }

    pub fn phase(&self, client: u32) -> Option<Phase> {
        self.model.clients.get(&client).map(|state| state.phase)
    }

    fn is_active(&self, client: u32, order: u64) -> bool {
        // Messages that a client sent before it was disconnected still arrive.
        self.is_current(client, order)
            && matches!(self.phase(client), Some(Phase::Active | Phase::Dropped))
    }

    fn perform(&mut self, todo: Todo) -> Check {
        match todo {
            Todo::Spawn => self.spawn(),
            Todo::Hello { client, order } if self.is_current(client, order) => self.hello(client),
            Todo::Act { client, order } if self.is_active(client, order) => self.act(client, order),
            Todo::Deliver { client, order } if self.is_active(client, order) => {
                self.deliver(client, order)
            }
            Todo::TakeEvents { client, order } if self.is_active(client, order) => {
                self.look_at_events(client)
            }
            Todo::Supply { client, order } if self.is_active(client, order) => self.supply(client),
            Todo::GiveBack { client, order } if self.is_active(client, order) => {
                self.give_back(client)
            }
            Todo::Sendable { client, order } if self.is_active(client, order) => {
                self.feed(Action::Sendable { client, sendable: true })
            }
            Todo::Gone { client, order } if self.is_current(client, order) => {
                self.feed(Action::Gone { client })?;
                self.others_die(client)
            }
            Todo::Close { ticket, token } if self.closing.get(&ticket) == Some(&token) => {
                self.close(ticket)
            }
            _ => Ok(()),
        }
    }

    /// A closer has done its work.
    pub fn close(&mut self, ticket: u32) -> Check {
        self.closing.remove(&ticket);
        self.feed(Action::Closed { ticket: Ticket(ticket) })
    }

    fn spawn(&mut self) -> Check {
        let wait = self.rng.between(200, 4_000);
        self.schedule(wait, Todo::Spawn);
        if self.model.clients.len() as u32 >= self.setup.clients && !self.rng.chance(20) {
            return Ok(());
        }
        let back = if self.rng.chance(600) {
            self.rng.index(self.returning.len()).map(|at| self.returning.swap_remove(at))
        } else {
            None
        };
        let domain = back.map_or_else(|| self.draw_domain(), |(domain, ..)| domain);
        let client = (0..).find(|c| !self.model.clients.contains_key(c)).unwrap_or(u32::MAX);
        let mut manners = Manners::draw(&mut self.rng, self.setup.rogues);
        manners.only = self.rng.chance(self.setup.specialists).then(|| self.rng.below(100));
        let job = match self.rng.below(u64::from(self.setup.jobs) + 1) {
            0 => None,
            job => Some(JobKey(job)),
        };
        match back {
            Some((_, pid, key)) => self.connect_as(client, domain, job, manners, (pid, key))?,
            None => self.connect(client, domain, job, manners)?,
        }
        if self.rng.chance(100) && self.phase(client) == Some(Phase::Connected) {
            let fds = self.rng.below(8) as u32;
            self.feed(Action::BoundHeld { client, fds })?;
        }
        let order = self.agents.get(&client).map_or(0, |agent| agent.order);
        let wait = self.rng.between(1, 300);
        let first = if self.rng.chance(20) {
            Todo::Gone { client, order }
        } else {
            Todo::Hello { client, order }
        };
        self.schedule(wait, first);
        Ok(())
    }

    /// A client's socket was accepted.
    pub fn connect(
        &mut self,
        client: u32,
        domain: DomainKey,
        job: Option<JobKey>,
        manners: Manners,
    ) -> Check {
        let pid = 10_000 + self.stats.steps as u32;
        let key = OwnerKey { pid, started: 1, random: 1 + self.rng.below(2) };
        self.connect_as(client, domain, job, manners, (pid, key))
    }

    fn draw_domain(&mut self) -> DomainKey {
        let listener = self.rng.below(u64::from(self.setup.listeners)) as u32;
        let key =
            DomainKey::new(listener, 1000 + self.rng.below(u64::from(self.setup.uids)) as u32);
        // Where there are none nothing is drawn.
        match self.setup.pods {
            0 => key,
            pods => DomainKey { pod: PodKey([1 + self.rng.below(pods), 0]), ..key },
        }
    }

    /// The same for a process, which may have been connected before.
    pub fn connect_as(
        &mut self,
        client: u32,
        domain: DomainKey,
        job: Option<JobKey>,
        manners: Manners,
        (pid, key): (u32, OwnerKey),
    ) -> Check {
        let order = self.model.client_orders.get(&client).copied().unwrap_or(0) + 1;
        self.agents.insert(client, Agent::new(order, manners));
        self.feed(Action::Connect { client, domain, job, pid })?;
        if self.phase(client) != Some(Phase::Connected) {
            return Ok(());
        }
        self.feed(Action::Identify { client, key })
    }

    fn hello(&mut self, client: u32) -> Check {
        if self.phase(client) != Some(Phase::Connected) {
            return Ok(());
        }
        let own_fds = match self.rng.below(20) {
            0 => u32::MAX >> self.rng.below(32),
            1..=5 => self.rng.below(4) as u32,
            _ => 0,
        };
        let request = self.next_request(client);
        let deadline = self.draw_deadline();
        self.feed(Action::Hello { client, request, own_fds, deadline })
    }

    fn act(&mut self, client: u32, order: u64) -> Check {
        let Some(action) = self.choose(client) else {
            self.act_later(client, order);
            return Ok(());
        };
        self.stats.deaths += u64::from(matches!(action, Action::Gone { .. }));
        let delay = self.rng.chance(120) && !matches!(action, Action::Gone { .. });
        let Some(agent) = self.agents.get_mut(&client).filter(|_| delay) else {
            self.messages += 1;
            self.feed(action)?;
            self.others_die(client)?;
            self.act_later(client, order);
            return Ok(());
        };
        agent.on_its_way = Some((self.messages, action));
        let wait = self.rng.skewed(20, 20_000);
        self.schedule(wait, Todo::Deliver { client, order });
        Ok(())
    }

    /// After a client's message or death, others may die with it.
    fn others_die(&mut self, client: u32) -> Check {
        let Some(death) = self.choose_another_death(client) else { return Ok(()) };
        self.stats.deaths += 1;
        self.feed(death)
    }

    fn act_later(&mut self, client: u32, order: u64) {
        let wait = self.rng.skewed(5, 1_500);
        self.schedule(wait, Todo::Act { client, order });
    }

    /// Hands in a delayed message: others have overtaken it, and it may be out of date.
    fn deliver(&mut self, client: u32, order: u64) -> Check {
        let message = self.agents.get_mut(&client).and_then(|agent| agent.on_its_way.take());
        let Some((sent, action)) = message else { return Ok(()) };
        self.stats.faults(Fault::Reordered, usize::from(self.messages > sent));
        self.messages += 1;
        self.feed(action)?;
        self.act_later(client, order);
        Ok(())
    }

    fn look_at_events(&mut self, client: u32) -> Check {
        if let Some(agent) = self.agents.get_mut(&client) {
            agent.events_due = false;
        }
        let one_by_one = !self.quiet && self.rng.chance(100);
        while self.take_events(client)? {
            if one_by_one {
                self.events_are_due(client);
                break;
            }
        }
        Ok(())
    }

    /// Takes one message of events; false if there was none.
    pub fn take_events(&mut self, client: u32) -> Check<bool> {
        let Some(events) = self.core.take_events(ClientId(client)) else {
            if self.model.exact && !self.sweeps() {
                self.model.took_all(client)?;
            }
            return Ok(false);
        };
        self.trace.step(|| format!("{} take_events c{client}: {}", self.now, show_events(&events)));
        if let Events::Drained(all) = &events {
            all.iter().for_each(|event| self.remember_slot(event.id.slot, 0));
        }
        self.model.now = self.now;
        self.model.took(client, &events)?;
        if let Events::Reclaim(leases) = &events {
            let leases: Vec<u64> = leases.iter().map(|lease| lease.0).collect();
            self.reclaims.took(&self.model, client, &leases)?;
        }
        match events {
            Events::Recall(list) => {
                self.stats.recalls += list.len() as u64;
                if let Some(agent) = self.agents.get_mut(&client) {
                    agent.recalls.extend(list);
                }
                self.supply_is_due(client);
            }
            Events::Reclaim(leases) => self.give_back_later(client, &leases),
            Events::Revoked(list) => self.stats.revoked += list.len() as u64,
            Events::Drained(list) => self.stats.drained += list.len() as u64,
            Events::Objects(_) => {}
        }
        if self.stats.steps.is_multiple_of(self.setup.check_every) {
            self.core.check_invariants();
        }
        Ok(true)
    }

    pub fn events_are_due(&mut self, client: u32) {
        let Some(agent) = self.agents.get_mut(&client) else { return };
        if std::mem::replace(&mut agent.events_due, true) {
            return;
        }
        let (order, silent) = (agent.order, agent.manners.silent);
        let wait = if self.rng.chance(silent) {
            self.rng.between(5_000, 60_000)
        } else {
            self.rng.between(1, 200)
        };
        self.schedule(wait, Todo::TakeEvents { client, order });
    }

    fn supply_is_due(&mut self, client: u32) {
        let Some(agent) = self.agents.get_mut(&client) else { return };
        if std::mem::replace(&mut agent.supply_due, true) {
            return;
        }
        let (order, silent) = (agent.order, agent.manners.silent);
        let wait = if self.rng.chance(silent) {
            self.rng.between(5_000, 60_000)
        } else {
            self.rng.between(10, 1_000)
        };
        self.schedule(wait, Todo::Supply { client, order });
    }

    fn supply(&mut self, client: u32) -> Check {
        if let Some(agent) = self.agents.get_mut(&client) {
            agent.supply_due = false;
        }
        let Some(action) = self.choose_supply(client) else { return Ok(()) };
        self.feed(action)?;
        let more = self.agents.get(&client).is_some_and(|agent| !agent.recalls.is_empty());
        if more {
            self.supply_is_due(client);
        }
        Ok(())
    }

    /// Whether an allocation ended for that reason.
    pub fn ended_with(&self, id: AllocationId) -> Option<ErrorCode> {
        self.model.ended.get(&id).copied()
    }
}
