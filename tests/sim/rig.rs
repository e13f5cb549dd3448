//! A world without chance, and the calls that scenarios move it with. Must never judge: the world
//! does.

use crate::action::{Action, show_status};
use crate::agents::Manners;
use crate::judge::ensure;
use crate::model::{Check, Phase};
use crate::report::{Trace, TraceMode};
use crate::rng::Rng;
use crate::setups::{self, Setup};
use crate::world::{Reply, World};
use fdbroker_core::{
    Arrived, Config, Deposit, DomainKey, Granted, JobKey, Judged, Lane, LeaseId, RecallEvent,
    Wanted, limits,
};
use fdbroker_protocol::{AllocationId, Facts, MAX_BATCH, MemoryKind, Status};

/// Far enough that no deadline passes by itself.
pub const LONG_US: u64 = 60_000_000;
pub const PAGE_BYTES: u64 = 4096;

/// A world without chance, and the calls that scenarios move it with.
#[derive(Debug)]
pub struct Rig {
    pub world: World,
    mode: TraceMode,
    next_client: u32,
    next_id: u64,
}

/// An empty rig; each scenario begins with [`Rig::begin`].
pub fn rig(mode: TraceMode) -> Rig {
    Rig { world: quiet_world(plain_setup(), mode), mode, next_client: 0, next_id: 0 }
}

fn plain_setup() -> Setup {
    let mut setup = setups::named("none", &mut Rng::new(0)).expect("a setup of that name");
    setup.clients = 0;
    setup.config.max_clients = 64;
    setup.config.table_fds = 64 * limits::FDS_PER_CONNECTION + limits::TABLE_RESERVE + 8_192;
    setup.config.max_credits = MAX_BATCH as u32;
    setup
}

fn quiet_world(setup: Setup, mode: TraceMode) -> World {
    let mut world = World::new(setup, 0, Trace::new(mode));
    world.replies = Some(std::collections::BTreeMap::new());
    world
}

/// A deposit like most.
pub fn deposit(id: u64) -> Deposit {
    let facts = Facts::new(MemoryKind::DmaBuf, PAGE_BYTES).owner_allocation_id(id);
    Deposit { recallable: true, base: 0x10_0000 + id * PAGE_BYTES, ..facts.into() }
}

/// A deposit whose fd is what its owner says.
pub fn arrived(deposit: impl Into<Judged>) -> Arrived {
    Arrived { judged: Ok(deposit.into()), lane: Lane::Accepted }
}

/// The same of another size.
pub fn sized(size_bytes: u64, deposit: Deposit) -> Deposit {
    Deposit { facts: deposit.facts.size_bytes(size_bytes), ..deposit }
}

impl Rig {
    /// The world of this scenario.
    pub fn begin(&mut self, change: impl FnOnce(&mut Config)) {
        let mut setup = plain_setup();
        change(&mut setup.config);
        self.world = quiet_world(setup, self.mode);
    }

    pub fn client(&mut self) -> Check<u32> {
        self.client_of(1000)
    }

    pub fn client_of(&mut self, uid: u32) -> Check<u32> {
        self.client_in(uid, None)
    }

    /// A client of a user and a job.
    pub fn client_in(&mut self, uid: u32, job: Option<JobKey>) -> Check<u32> {
        let client = self.connect(uid, job)?;
        let deadline = self.world.now;
        self.say_hello(client, 0, deadline)?;
        Ok(client)
    }

    /// A client of a user that is let in with fds of its own.
    pub fn client_with(&mut self, uid: u32, own_fds: u32) -> Check<u32> {
        let now = self.world.now;
        let (client, request) = self.hello(uid, own_fds, now)?;
        ensure!(!self.is_refused(client, request), "a client with {own_fds} fds is not let in");
        Ok(client)
    }

    /// A client of a user, and its hello.
    pub fn hello(&mut self, uid: u32, own_fds: u32, deadline: u64) -> Check<(u32, u64)> {
        let client = self.connect(uid, None)?;
        Ok((client, self.say_hello(client, own_fds, deadline)?))
    }

    pub fn is_connected(&self, client: u32) -> bool {
        matches!(self.world.phase(client), Some(Phase::Connected | Phase::Active))
    }

    /// A connection that has not said hello.
    pub fn connect(&mut self, uid: u32, job: Option<JobKey>) -> Check<u32> {
        let client = self.next_client;
        self.next_client += 1;
        self.world.connect(client, DomainKey::new(0, uid), job, Manners::default())?;
        Ok(client)
    }

    pub fn say_hello(&mut self, client: u32, own_fds: u32, deadline: u64) -> Check<u64> {
        let request = self.world.next_request(client);
        self.world.feed(Action::Hello { client, request, own_fds, deadline })?;
        Ok(request)
    }

    /// The broker is killed; all its clients live on.
    pub fn crash(&mut self) -> Check {
        self.world.quiet = true;
        self.world.crash()?;
        self.world.quiet = false;
        Ok(())
    }

    /// The client of before the crash that connected first is back.
    pub fn returned(&mut self) -> Check<u32> {
        let (domain, pid, key) = self.world.returning.remove(0);
        let client = self.next_client;
        self.next_client += 1;
        self.world.connect_as(client, domain, None, Manners::default(), (pid, key))?;
        let deadline = self.world.now;
        self.say_hello(client, 0, deadline)?;
        Ok(client)
    }

    pub fn is_refused(&self, client: u32, request: u64) -> bool {
        let replies = self.world.replies.as_ref();
        let reply = replies.and_then(|replies| replies.get(&(client, request)));
        matches!(reply, Some(Reply::Failed(_)))
    }

    pub fn reply(&mut self, client: u32, request: u64) -> Option<Reply> {
        self.world.replies.as_mut().and_then(|replies| replies.remove(&(client, request)))
    }

    /// Registers in as many messages as the credits allow; the allocations in order.
    pub fn register(
        &mut self,
        client: u32,
        deposits: &[impl Into<Judged> + Copy],
    ) -> Check<Vec<AllocationId>> {
        let mut ids = Vec::new();
        while ids.len() < deposits.len() {
            let left = deposits.len() - ids.len();
            let credits = self.credits(client);
            let count = left.min(credits as usize);
            let part = &deposits[ids.len()..ids.len() + count];
            let request = self.register_raw(client, part, left - count)?;
            self.settle(&[])?;
            match self.reply(client, request) {
                Some(Reply::Registered(items)) => {
                    for item in &items {
                        ensure!(item.status.is_ok(), "register: {}", show_status(&item.status));
                    }
                    ids.extend(items.iter().map(|item| item.id));
                }
                other => return Err(format!("register is answered {other:?}")),
            }
        }
        Ok(ids)
    }

    pub fn register_raw(
        &mut self,
        client: u32,
        deposits: &[impl Into<Judged> + Copy],
        more: usize,
    ) -> Check<u64> {
        let request = self.world.next_request(client);
        self.world.feed(Action::Register {
            client,
            request,
            deposits: deposits.iter().copied().map(arrived).collect(),
            credits_wanted: more as u32,
            deadline: self.world.now + LONG_US,
        })?;
        Ok(request)
    }

    pub fn credits(&self, client: u32) -> u64 {
        self.world.model.clients.get(&client).map_or(0, |state| state.credits)
    }

    /// Registers `count` recallable allocations.
    pub fn register_new(&mut self, client: u32, count: u64) -> Check<Vec<AllocationId>> {
        let first = self.next_id;
        self.next_id += count;
        let deposits: Vec<Deposit> = (first..first + count).map(deposit).collect();
        self.register(client, &deposits)
    }

    pub fn acquire(&mut self, client: u32, id: AllocationId) -> Check<u64> {
        self.acquire_until(client, &[Ok(id)], self.world.now + LONG_US)
    }

    pub fn acquire_until(&mut self, client: u32, wanted: &[Wanted], deadline: u64) -> Check<u64> {
        let request = self.world.next_request(client);
        self.world.feed(Action::Acquire { client, request, wanted: wanted.to_vec(), deadline })?;
        Ok(request)
    }

    /// The answer to an acquire, if it has come.
    pub fn granted(&mut self, client: u32, request: u64) -> Option<Vec<Granted>> {
        match self.reply(client, request) {
            Some(Reply::Granted(items)) => Some(items),
            _ => None,
        }
    }

    /// The lease that a request for one handle must have got.
    pub fn lease(&mut self, client: u32, request: u64) -> Check<LeaseId> {
        let items = self.granted(client, request);
        match items.as_deref() {
            Some([item]) if item.status.is_ok() => Ok(item.lease),
            other => Err(format!("client {client} request {request}: not granted: {other:?}")),
        }
    }

    /// So many leases of one allocation.
    pub fn leases(&mut self, client: u32, id: AllocationId, count: usize) -> Check<Vec<LeaseId>> {
        let mut leases = Vec::new();
        for _ in 0..count {
            let request = self.acquire(client, id)?;
            leases.push(self.lease(client, request)?);
        }
        Ok(leases)
    }

    pub fn unregister(&mut self, client: u32, id: AllocationId) -> Check {
        let request = self.world.next_request(client);
        self.world.feed(Action::Unregister { client, request, ids: vec![id] })?;
        self.settle(&[])
    }

    /// Whether the client was told of events, ever.
    pub fn has_events(&self, client: u32) -> bool {
        self.world.agents.get(&client).is_some_and(|agent| agent.events_due)
    }

    /// The status that a request for one handle must have got.
    pub fn status(&mut self, client: u32, request: u64) -> Check<Status> {
        let items = self.granted(client, request);
        match items.as_deref() {
            Some([item]) => Ok(item.status),
            other => Err(format!("client {client} request {request}: not answered: {other:?}")),
        }
    }

    pub fn release(&mut self, client: u32, lease: LeaseId) -> Check {
        self.world.feed(Action::Release { client, request: None, leases: vec![lease] })
    }

    pub fn take_all_events(&mut self, client: u32) -> Check {
        while self.world.take_events(client)? {}
        Ok(())
    }

    /// Recalls that the client has taken and not answered.
    pub fn recalls(&self, client: u32) -> Vec<RecallEvent> {
        self.world.agents.get(&client).map(|agent| agent.recalls.clone()).unwrap_or_default()
    }

    pub fn close_all(&mut self) -> Check<bool> {
        let tickets: Vec<u32> = self.world.closing.keys().copied().collect();
        for ticket in &tickets {
            self.world.close(*ticket)?;
        }
        Ok(!tickets.is_empty())
    }

    /// The client answers the recalls that it has taken; whether there were any.
    pub fn supply(&mut self, client: u32) -> Check<bool> {
        self.world.quiet = true;
        let supply = self.world.choose_supply(client);
        let answers = supply.is_some();
        if let Some(supply) = supply {
            self.world.feed(supply)?;
        }
        self.world.quiet = false;
        Ok(answers)
    }

    /// Closes fds, has all owners but the mute ones answer recalls, and polls when due, until
    /// nothing moves.
    pub fn settle(&mut self, mute: &[u32]) -> Check {
        for _ in 0..10_000 {
            let mut moved = self.close_all()?;
            let clients: Vec<u32> = self.world.agents.keys().copied().collect();
            for client in clients.into_iter().filter(|client| !mute.contains(client)) {
                self.take_all_events(client)?;
                moved |= self.supply(client)?;
            }
            self.world.poll_until(self.world.now)?;
            if !moved {
                return Ok(());
            }
        }
        Err("it does not settle".into())
    }

    pub fn advance(&mut self, us: u64) -> Check {
        self.world.poll_until(self.world.now + us)
    }

    pub fn is_held(&self, id: AllocationId) -> bool {
        self.world.model.is_held(id)
    }

    /// Makes the broker evict `id` by acquiring the others.
    pub fn evict(&mut self, id: AllocationId, consumer: u32, others: &[AllocationId]) -> Check {
        for other in others.iter().cycle().take(others.len() * 4) {
            if !self.is_held(id) {
                return Ok(());
            }
            let request = self.acquire(consumer, *other)?;
            self.settle(&[])?;
            let lease = self.lease(consumer, request)?;
            self.release(consumer, lease)?;
        }
        Err(format!("{id} is not evicted"))
    }

    pub fn end(&mut self) -> Check {
        self.world.rest()
    }
}
