//! Rules of the core that the simulator's model (tests/sim) does not judge: what one step may do at
//! most, what is told to whoever watches, what a saved state may not say. Must never show once more
//! what a check or a story of the simulator shows.

use fdbroker_core::limits::{self, PLACES_AT_ONCE};
use fdbroker_core::*;
use fdbroker_protocol::{
    AllocationId, ErrorCode, Resource, Scope, Share, Status, admin::AllocationState,
};

mod acts;
mod ages;
mod ahead;
mod caps;
mod comeback;
mod credits;
mod door;
mod files;
mod gpus;
mod jobs;
mod left;
mod lives;
mod objects;
mod order;
mod pods;
mod portions;
mod reclaim;
#[path = "../support/mod.rs"]
mod support;
mod turns;

use support::{arrived, deposit};

const MS: u64 = 1000;
const OWNER: ClientId = ClientId(0);
const USER: ClientId = ClientId(1);
const OTHER: ClientId = ClientId(2);

/// A core, a clock, and the effects of the last step; checks every invariant after each.
struct World {
    core: Core,
    now: Now,
    fx: Effects,
    requests: u64,
}

fn config() -> Config {
    Config {
        table_fds: 10_000,
        max_clients: 16,
        max_domains: 8,
        max_parked_per_client: 4,
        max_slots: 1024,
        max_credits: 64,
        ..support::roomy()
    }
}

fn connect(client: ClientId, domain: DomainKey, pid: u32) -> Input<'static> {
    Input::Connect { client, peer: Peer { domain, job: None, pid, gid: 100, groups: &[] } }
}

fn node_fds(fds: u64) -> Config {
    Config { node: Caps { fds, ..Caps::NONE }, base_credits: 0, ..config() }
}

impl World {
    /// With three clients of one uid.
    fn new(config: Config) -> Self {
        let core = Core::new(config).expect("a sound configuration");
        let mut world = World { core, now: Now(0), fx: Effects::default(), requests: 100 };
        for client in [OWNER, USER, OTHER] {
            world.connect(client, 1000);
        }
        world
    }

    fn connect(&mut self, client: ClientId, uid: u32) {
        let domain = DomainKey::new(0, uid);
        self.step(connect(client, domain, 4000 + client.0));
        self.step(Body::Hello { own_fds: 0, deadline: Now(0) }.by(client, RequestId(1)));
    }

    fn step(&mut self, input: Input<'_>) -> Vec<Effect> {
        self.fx.clear();
        self.core.step(self.now, input, &mut self.fx);
        self.core.check_invariants();
        self.fx.list.clone()
    }

    fn at(&mut self, ms: u64) -> Vec<Effect> {
        self.now = Now(ms * MS);
        self.fx.clear();
        self.core.poll(self.now, &mut self.fx);
        self.core.check_invariants();
        self.fx.list.clone()
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    /// Registers one deposit, waiting for a credit first if need be.
    fn register(&mut self, deposit: impl Into<Judged>) -> Registered {
        self.register_by(OWNER, deposit)
    }

    fn register_by(&mut self, client: ClientId, deposit: impl Into<Judged>) -> Registered {
        let request = self.request();
        let deadline = Now(u64::MAX);
        let has = self.client(client).record.credits > 0;
        if !has {
            self.step(
                Body::Register { deposits: &[], credits_wanted: 1, deadline }.by(client, request),
            );
            self.close_all();
        }
        let deposits = &[arrived(deposit)];
        let request = self.request();
        self.step(Body::Register { deposits, credits_wanted: 0, deadline }.by(client, request));
        self.fx.registered[0]
    }

    fn acquire(&mut self, client: ClientId, wanted: &[Wanted], ms: u64) -> RequestId {
        let (request, deadline) = (self.request(), Now(self.now.0 + ms * MS));
        self.step(Body::Acquire { wanted, deadline }.by(client, request));
        request
    }

    /// Acquires one that must be granted at once.
    fn grant(&mut self, client: ClientId, id: AllocationId) -> LeaseId {
        self.acquire(client, &[Ok(id)], 0);
        let granted = self.fx.granted[0];
        assert!(granted.status.is_ok(), "{}", granted.status);
        granted.lease
    }

    fn release(&mut self, client: ClientId, lease: LeaseId) -> Status {
        let request = self.request();
        self.step(Body::Release { leases: &[lease] }.by(client, request));
        self.fx.statuses[0]
    }

    fn unregister(&mut self, client: ClientId, id: AllocationId) -> Status {
        let request = self.request();
        self.step(Body::Unregister { ids: &[id] }.by(client, request));
        self.fx.statuses[0]
    }

    fn supply(
        &mut self,
        id: AllocationId,
        fd: Result<u16, ErrorCode>,
        owner_id: u64,
    ) -> Vec<Effect> {
        let supply = support::supply(id, fd, owner_id);
        self.step(Body::Supply { supplies: &[supply] }.by(OWNER, RequestId::ONE_WAY))
    }

    /// The closers finish everything under way, whatever it sets off included.
    fn close_all(&mut self) {
        let mut ticket = 0;
        while self.core.totals().gauges.closing_fds > 0 {
            self.step(Input::Closed { ticket: Ticket(ticket) });
            ticket = (ticket + 1) % 1024;
        }
    }

    fn client(&self, client: ClientId) -> ClientView<'_> {
        self.core.clients(client.0).next().expect("it is there")
    }

    fn state(&self, id: AllocationId) -> AllocationState {
        self.core.allocations(id.slot..u32::MAX).next().expect("it is there").state
    }

    fn now_of(&self, resource: Resource) -> u64 {
        self.core.totals().usage(resource).0
    }
}

/// Outcome of the parked request `request` in these effects.
fn answer(world: &World, effects: &[Effect], request: RequestId) -> Option<Status> {
    effects.iter().find_map(|effect| match effect {
        Effect::Granted { request: of, range, .. } if *of == request => {
            Some(world.fx.granted[range.start].status)
        }
        Effect::Failed { request: of, status, .. } if *of == request => Some(*status),
        _ => None,
    })
}

/// The same of another size.
fn sized(size_bytes: u64, deposit: Deposit) -> Deposit {
    Deposit { facts: deposit.facts.size_bytes(size_bytes), ..deposit }
}

/// A node with room for two fds: one allocation held, one evicted for it.
fn one_evicted() -> (World, AllocationId) {
    let mut world = World::new(node_fds(2));
    let first = world.register(deposit(1)).id;
    world.register(deposit(2));
    world.register(deposit(3));
    assert_eq!(world.state(first), AllocationState::Evicted);
    world.close_all();
    (world, first)
}

#[test]
fn acquire_when_several_are_evicted_and_the_cap_is_full_then_room_is_made_for_all_up_to_a_bound() {
    for (wanted, closed) in [(1, 2), (3, 6), (100, PLACES_AT_ONCE)] {
        let mut world = World::new(Config { max_credits: 1, ..node_fds(100) });
        let ids: Vec<_> = (1..=200).map(|base| world.register(deposit(base)).id).collect();
        world.close_all();
        let all: Vec<Wanted> = ids[..wanted].iter().copied().map(Ok).collect();
        world.acquire(USER, &all, 1000);
        let is_close = |effect: &&Effect| matches!(effect, Effect::CloseHeld { .. });
        assert_eq!(world.fx.list.iter().filter(is_close).count(), closed, "{wanted} wanted");
    }
}

#[test]
fn supply_when_awaited_then_says_how_long_it_took_and_otherwise_nothing() {
    let (mut world, id) = one_evicted();
    world.acquire(USER, &[Ok(id)], 1000);
    world.close_all();
    world.at(7);
    world.supply(id, Ok(0), 1);
    assert_eq!(world.fx.recalled_us, [7 * MS]);
    world.supply(id, Ok(0), 1);
    assert!(world.fx.recalled_us.is_empty());
}

#[test]
fn acquire_when_only_held_fds_are_full_then_one_is_evicted_for_one() {
    let node = Caps { held_fds: 3, ..Caps::NONE };
    let mut world = World::new(Config { node, base_credits: 0, ..config() });
    let all: Vec<_> = (1..=4).map(|base| world.register(deposit(base)).id).collect();
    world.close_all();
    let evictions = world.core.totals().counters.evictions;
    world.acquire(USER, &[Ok(all[0])], 1000);
    world.close_all();
    assert_eq!(world.state(all[0]), AllocationState::Recalling);
    assert_eq!(world.core.totals().counters.evictions, evictions + 1);
}

#[test]
fn supply_when_its_range_ends_beyond_all_numbers_then_the_allocation_ends() {
    let (mut world, id) = one_evicted();
    world.acquire(USER, &[Ok(id)], 1000);
    world.close_all();
    let mut supply = support::supply(id, Ok(0), 1);
    supply.facts.fd_offset = u64::MAX - 4095;
    let effects = world.step(Body::Supply { supplies: &[supply] }.by(OWNER, RequestId::ONE_WAY));
    assert!(effects.contains(&Effect::Publish { slot: id.slot, generation: 0 }), "{effects:?}");
}

#[test]
fn register_when_refused_fds_pile_up_then_told_before_the_connection_ends() {
    let mut world = World::new(Config { max_refused_per_domain: 1, ..config() });
    let what = Status::with_value(ErrorCode::UnsupportedFd, 9);
    let deposits = &[Arrived { judged: Err(what), lane: Lane::Refused }];
    let (client, request, deadline) = (OWNER, RequestId(9), Now(0));
    let refused = Body::Register { deposits, credits_wanted: 0, deadline }.by(client, request);
    world.step(refused);
    assert_eq!(world.fx.registered[0].status, what);
    let effects = world.step(refused);
    let status = Status::no_quota(Resource::RefusedFds, Scope::Domain, 1, 0);
    assert_eq!(effects[0], Effect::Failed { client, request, status });
    assert_eq!(effects.last(), Some(&Effect::Disconnect { client, status }));
}

#[test]
fn config_when_it_cannot_work_then_says_which_number() {
    let refused = Core::new(Config { table_fds: 10, ..config() }).expect_err("too small");
    assert!(refused.to_string().contains("table_fds = 10"), "{refused}");
}
