//! The core at its bounds: millions of leases, allocations and parked items. Each step asserts by
//! itself that it visits few records (invariant 9); here are the worlds in which an operation used
//! to visit all of them. Must never assert a time.
//!
//! The worlds are a sixteenth of the real bounds; `BOUNDS_DIVISOR=1` makes them whole. Each prints
//! its longest step, for the benchmark of the daemon.

use fdbroker_core::*;
use fdbroker_protocol::{
    AllocationId, ErrorCode, MAX_BATCH, Resource, Scope, Share, Status, admin::ActOutcome,
};
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;
use support::{arrived, roomy};

mod support;

const OWNER: ClientId = ClientId(0);
/// Of another domain than all others.
const STRANGER: ClientId = ClientId(1);
const USER: ClientId = ClientId(2);
const FOR_EVER: Now = Now(u64::MAX);

fn scaled(full: usize) -> usize {
    let divisor = std::env::var("BOUNDS_DIVISOR").ok().and_then(|text| text.parse().ok());
    full / divisor.unwrap_or(16)
}

fn deposit(base: u64) -> Deposit {
    Deposit { share: Share::Any, ..support::deposit(base) }
}

/// Of this thread: other programs do not count.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has it").into()
}

/// A core, and the effects of the last step.
struct World {
    core: Core,
    now: Now,
    fx: Effects,
    requests: u64,
    /// The status of the first item of each acquire that was answered, but for those of the
    /// stranger.
    answers: Vec<Status>,
    longest_step: Duration,
}

impl Drop for World {
    fn drop(&mut self) {
        let thread = std::thread::current();
        let (name, longest) = (thread.name().unwrap_or_default(), self.longest_step);
        println!("longest step of {name}: {} ns", longest.as_nanos());
    }
}

impl World {
    /// With an owner and a user of one domain, and a stranger.
    fn new(config: Config) -> Self {
        let core = Core::new(config).expect("a sound configuration");
        let (fx, answers) = (Effects::default(), Vec::new());
        let longest_step = Duration::ZERO;
        let mut world = World { core, now: Now(1), fx, requests: 0, answers, longest_step };
        world.connect(OWNER, 1000);
        world.connect(STRANGER, 2000);
        world.connect(USER, 1000);
        world
    }

    fn connect(&mut self, client: ClientId, uid: u32) {
        let domain = DomainKey::new(0, uid);
        let peer = Peer { domain, job: None, pid: 4000 + client.0, gid: 100, groups: &[] };
        self.step(Input::Connect { client, peer });
        let request = self.request();
        self.step(Body::Hello { own_fds: 0, deadline: FOR_EVER }.by(client, request));
    }

    fn step(&mut self, input: Input<'_>) {
        self.fx.clear();
        let begun = processor_time();
        self.core.step(self.now, input, &mut self.fx);
        self.longest_step = self.longest_step.max(processor_time() - begun);
        self.note_answers();
    }

    fn note_answers(&mut self) {
        let answers = self.fx.list.iter().filter_map(|effect| match effect {
            Effect::Granted { client, range, .. } if *client != STRANGER => {
                Some(self.fx.granted[range.start].status)
            }
            _ => None,
        });
        self.answers.extend(answers);
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    /// Polls once, though nothing may be due.
    fn poll(&mut self) {
        self.fx.clear();
        let begun = processor_time();
        self.core.poll(self.now, &mut self.fx);
        self.longest_step = self.longest_step.max(processor_time() - begun);
        self.note_answers();
    }

    fn is_due(&self) -> bool {
        self.core.poll_timeout().is_some_and(|at| at <= self.now)
    }

    /// Registers one allocation.
    fn register(&mut self, client: ClientId, deposit: Deposit) -> AllocationId {
        let (request, deadline, deposits) = (self.request(), FOR_EVER, &[arrived(deposit)]);
        let credits_wanted = MAX_BATCH as u32;
        self.step(Body::Register { deposits, credits_wanted, deadline }.by(client, request));
        assert!(self.fx.registered[0].status.is_ok(), "{}", self.fx.registered[0].status);
        self.fx.registered[0].id
    }

    /// Asks for items; the leases got at once.
    fn acquire(&mut self, client: ClientId, wanted: &[Wanted]) -> Vec<LeaseId> {
        let (request, deadline) = (self.request(), FOR_EVER);
        self.step(Body::Acquire { wanted, deadline }.by(client, request));
        let answer = self.fx.list.iter().find_map(|effect| match effect {
            Effect::Granted { request: of, range, .. } if *of == request => Some(range.clone()),
            _ => None,
        });
        let granted = &self.fx.granted[answer.unwrap_or_default()];
        granted.iter().filter(|item| item.status.is_ok()).map(|item| item.lease).collect()
    }

    /// So many mapped leases of one allocation.
    fn map_many(&mut self, client: ClientId, id: AllocationId, count: usize) {
        for _ in 0..count / MAX_BATCH {
            let leases = self.acquire(client, &[Ok(id); MAX_BATCH]);
            assert_eq!(leases.len(), MAX_BATCH);
            self.step(Body::Mapped { leases: &leases }.by(client, RequestId::ONE_WAY));
        }
    }

    fn unregister(&mut self, client: ClientId, id: AllocationId) {
        let request = self.request();
        self.step(Body::Unregister { ids: &[id] }.by(client, request));
    }

    fn node(&self, resource: Resource) -> u64 {
        self.core.totals().usage(resource).0
    }

    fn of(&self, client: ClientId, resource: Resource) -> u64 {
        self.core.clients(client.0).next().map_or(0, |view| view.account.now(resource))
    }

    /// A grant and a release that nothing may delay.
    fn grant_beside(&mut self, id: AllocationId) {
        let leases = self.acquire(STRANGER, &[Ok(id)]);
        assert_eq!(
            leases.len(),
            1,
            "a request that nothing stands in the way of is granted at once"
        );
        self.step(Body::Release { leases: &leases }.by(STRANGER, RequestId::ONE_WAY));
    }
}

// --- the end of an allocation with many leases ---------------------------------------------------

/// Polls until every holder is charged and told; grants go on meanwhile.
fn sweep(world: &mut World, other: AllocationId) {
    let left = |world: &World| world.core.totals().gauges.leases_ending;
    let mut polls = 0;
    while left(world) > 0 {
        assert!(world.is_due(), "work is left, and no poll is due");
        let before = left(world);
        world.poll();
        let least = before.min(limits::LEASES_SWEPT_PER_STEP as u64 / 2);
        assert!(before - left(world) >= least, "a poll does less than half of what it may");
        polls += 1;
        if polls % 64 == 1 {
            world.grant_beside(other);
        }
    }
}

#[test]
fn unregister_when_4_million_leases_are_mapped_then_swept_in_portions_and_the_node_knows_at_once() {
    let count = scaled(4_000_000) / MAX_BATCH * MAX_BATCH;
    let mut world = World::new(roomy());
    let (id, other) = (world.register(OWNER, deposit(1)), world.register(OWNER, deposit(2)));
    world.map_many(USER, id, count);
    world.unregister(OWNER, id);
    assert!(world.fx.list.contains(&Effect::Publish { slot: id.slot, generation: 0 }));
    assert_eq!(world.node(Resource::PinnedBytes), 4096);
    let ending = world.core.totals().gauges.leases_ending;
    assert_eq!(ending as usize, count - limits::LEASES_SWEPT_PER_STEP);
    world.core.check_invariants();
    sweep(&mut world, other);
    assert_eq!(world.of(USER, Resource::PinnedBytes), 4096 * count as u64);
    assert_eq!(world.node(Resource::PinnedBytes), 4096);
    world.core.check_invariants();
}

#[test]
fn gone_when_its_allocation_has_many_leases_and_a_holder_dies_too_then_nothing_is_left() {
    let count = scaled(1_000_000) / MAX_BATCH * MAX_BATCH;
    let mut world = World::new(roomy());
    let other = world.register(STRANGER, deposit(2));
    let id = world.register(OWNER, deposit(1));
    let second = ClientId(3);
    world.connect(second, 1000);
    world.map_many(USER, id, count);
    world.map_many(second, id, MAX_BATCH);
    world.step(Input::Gone { client: OWNER });
    world.step(Input::Gone { client: USER });
    while world.is_due() {
        world.poll();
    }
    world.core.check_invariants();
    assert_eq!(world.node(Resource::MappedLeases), MAX_BATCH as u64);
    let Some(Events::Revoked(told)) = world.core.take_events(second) else { panic!("not told") };
    assert_eq!((told.len(), told[0].code), (MAX_BATCH, ErrorCode::OwnerGone));
    let leases: Vec<LeaseId> = told.iter().map(|event| event.lease).collect();
    world.step(Body::Release { leases: &leases }.by(second, RequestId::ONE_WAY));
    assert_eq!(world.node(Resource::PinnedBytes), 0);
    world.grant_beside(other);
    world.core.check_invariants();
}

#[test]
fn unregister_when_another_domain_sweeps_many_leases_then_its_own_holders_are_told_in_turn() {
    let mut world = World::new(roomy());
    let large = world.register(OWNER, deposit(1));
    let small = world.register(STRANGER, deposit(2));
    world.map_many(USER, large, 64 * MAX_BATCH);
    let lease = world.acquire(STRANGER, &[Ok(small)])[0];
    world.unregister(OWNER, large);
    world.unregister(STRANGER, small);
    assert!(world.core.totals().gauges.leases_ending > 0);
    let told = world.core.take_events(STRANGER);
    assert!(matches!(told, Some(Events::Revoked(all)) if all[0].lease == lease), "not in its turn");
}

#[test]
fn release_when_the_sweep_has_not_come_to_the_lease_then_nothing_stays_charged() {
    let mut world = World::new(roomy());
    let id = world.register(OWNER, deposit(1));
    let [rest, last] = [4, 2].map(|count| {
        let batch = |_| world.acquire(USER, &[Ok(id); MAX_BATCH]);
        (0..count).map(batch).collect::<Vec<Vec<LeaseId>>>()
    });
    world.unregister(OWNER, id);
    for leases in last.iter().chain(&rest) {
        let ending = world.core.totals().gauges.leases_ending;
        assert!(ending > 0 || !last.contains(leases), "the sweep has come to all of them");
        world.step(Body::Release { leases }.by(USER, RequestId::ONE_WAY));
        world.core.check_invariants();
    }
    assert_eq!(world.core.totals().gauges.leases_ending, 0);
    assert_eq!(world.of(USER, Resource::PinnedBytes), 0);
    assert_eq!(world.node(Resource::PinnedBytes), 0);
    assert!(matches!(world.core.take_events(OWNER), Some(Events::Drained(_))));
}

// --- many requests that wait for one allocation --------------------------------------------------

/// A world in which so many requests of 253 items, each of a client of its own, wait for one
/// recall.
fn many_wait(count: usize) -> (World, AllocationId, AllocationId) {
    let mut world = World::new(roomy());
    let (id, other) = (world.register(OWNER, deposit(1)), world.register(STRANGER, deposit(2)));
    world.evict(id);
    world.answers.clear();
    for client in (0..count).map(|number| ClientId(10 + number as u32)) {
        world.connect(client, 1000);
        assert!(world.acquire(client, &[Ok(id); MAX_BATCH]).is_empty());
    }
    assert_eq!(world.node(Resource::ParkedItems) as usize, count * MAX_BATCH);
    assert!(matches!(world.core.take_events(OWNER), Some(Events::Recall(_))));
    world.core.check_invariants();
    (world, id, other)
}

impl World {
    /// The administrator has the fd of an allocation closed.
    fn evict(&mut self, id: AllocationId) {
        self.step(Input::Evict { ids: &[id] });
        let closes = self.fx.list.iter().filter_map(|effect| match effect {
            Effect::CloseHeld { ticket, .. } => Some(*ticket),
            _ => None,
        });
        let closes: Vec<Ticket> = closes.collect();
        closes.into_iter().for_each(|ticket| self.step(Input::Closed { ticket }));
    }

    fn supply(&mut self, id: AllocationId) {
        let supplies = &[support::supply(id, Ok(0), 1)];
        self.step(Body::Supply { supplies }.by(OWNER, RequestId::ONE_WAY));
    }

    /// Polls until as many requests are answered with this status; grants go on meanwhile.
    fn answer_all(&mut self, count: usize, status: Status, other: AllocationId) {
        while self.is_due() {
            let before = self.answers.len();
            self.poll();
            assert!(self.answers.len() > before, "a poll without progress");
            self.grant_beside(other);
        }
        // Some are told the owner's pid.
        let is_it = |answer: &Status| answer.result() == status.result();
        assert!(self.answers.iter().all(is_it), "not all are {status}");
        assert_eq!(self.answers.len(), count, "not all are answered");
        assert_eq!(self.node(Resource::ParkedItems), 0);
        self.core.check_invariants();
    }
}

#[test]
fn supply_when_4096_requests_of_253_items_wait_then_served_in_portions_beside_others() {
    let count = scaled(4096);
    let (mut world, id, other) = many_wait(count);
    world.supply(id);
    assert!(world.fx.granted.len() < limits::PARKED_ITEMS_PER_STEP + MAX_BATCH);
    world.answer_all(count, Status::OK, other);
    assert_eq!(world.node(Resource::OpenLeases) as usize, count * MAX_BATCH);
}

#[test]
fn recall_when_overdue_with_4096_requests_then_all_are_told_in_portions() {
    let count = scaled(4096);
    let (mut world, _, other) = many_wait(count);
    world.now = Now(world.now.0 + 100_001);
    world.poll();
    world.answer_all(count, ErrorCode::OwnerSilent.into(), other);
}

#[test]
fn unregister_when_4096_requests_wait_then_all_say_stale() {
    let count = scaled(4096);
    let (mut world, id, other) = many_wait(count);
    world.unregister(OWNER, id);
    world.answer_all(count, ErrorCode::Stale.into(), other);
}

#[test]
fn gone_when_4096_requests_wait_for_its_memory_then_all_say_owner_gone() {
    let count = scaled(4096);
    let (mut world, _, other) = many_wait(count);
    world.step(Input::Gone { client: OWNER });
    world.answer_all(count, ErrorCode::OwnerGone.into(), other);
}

#[test]
fn gone_when_a_client_has_parked_all_that_its_domain_may_then_torn_down_in_portions() {
    let mut world = World::new(roomy());
    let (id, other) = (world.register(OWNER, deposit(1)), world.register(STRANGER, deposit(2)));
    world.evict(id);
    let client = ClientId(10);
    world.connect(client, 1000);
    let count = scaled(limits::PARKED_ITEMS_PER_DOMAIN as usize) / MAX_BATCH;
    for _ in 0..count {
        assert!(world.acquire(client, &[Ok(id); MAX_BATCH]).is_empty());
    }
    world.step(Input::Gone { client });
    while world.is_due() {
        let before = world.node(Resource::ParkedItems);
        world.poll();
        assert!(
            before == 0 || world.node(Resource::ParkedItems) < before,
            "a poll without progress"
        );
        world.grant_beside(other);
        world.core.check_invariants();
    }
    assert_eq!(world.node(Resource::ParkedItems), 0);
    assert!(world.answers.is_empty(), "a client that is gone is answered");
}

#[test]
fn gone_when_every_waiting_client_dies_then_each_death_is_a_bounded_step() {
    let count = scaled(4096);
    let (mut world, id, other) = many_wait(count);
    for number in 0..count {
        world.step(Input::Gone { client: ClientId(10 + number as u32) });
        world.grant_beside(other);
    }
    assert_eq!(world.node(Resource::ParkedItems), 0);
    world.supply(id);
    world.core.check_invariants();
}

#[test]
fn acquire_when_a_domain_has_parked_as_many_items_as_it_may_then_no_quota_names_them_at_once() {
    let domain = Caps { parked_items: 2 * MAX_BATCH as u64, ..Caps::NONE };
    let mut world = World::new(Config { domain, ..roomy() });
    let id = world.register(OWNER, deposit(1));
    world.evict(id);
    for _ in 0..2 {
        assert!(world.acquire(USER, &[Ok(id); MAX_BATCH]).is_empty());
        assert!(world.fx.list.iter().all(|effect| !matches!(effect, Effect::Failed { .. })));
    }
    assert!(world.acquire(USER, &[Ok(id)]).is_empty());
    let cap = 2 * MAX_BATCH as u64;
    let refused = world.fx.list.iter().find_map(|effect| match effect {
        Effect::Failed { status, .. } => Some(*status),
        _ => None,
    });
    assert_eq!(refused, Some(Status::no_quota(Resource::ParkedItems, Scope::Domain, cap, 0)));
    assert!(world.acquire(STRANGER, &[Ok(id)]).is_empty());
    assert_eq!(world.node(Resource::ParkedItems), cap + 1);
    world.supply(id);
    while world.is_due() {
        world.poll();
    }
    assert_eq!(world.node(Resource::ParkedItems), 0);
    world.core.check_invariants();
}

#[test]
fn unregister_when_others_end_in_every_step_then_who_waits_behind_many_is_answered_at_once() {
    let node = Caps { open_leases: 1, ..Caps::NONE };
    let mut world = World::new(Config { node, ..roomy() });
    let count = scaled(4096) as u64;
    let ids: Vec<AllocationId> =
        (1..=count + 1).map(|base| world.register(OWNER, deposit(base))).collect();
    assert_eq!(world.acquire(STRANGER, &[Ok(ids[0])]).len(), 1);
    for id in &ids[1..] {
        // The cap on leases is full.
        assert!(world.acquire(USER, &[Ok(*id)]).is_empty());
    }
    for id in ids[1..].iter().rev() {
        world.unregister(OWNER, *id);
        assert_eq!(world.answers.pop(), Some(ErrorCode::Stale.into()), "its request waits on");
    }
}

// --- evictable allocations of one owner ----------------------------------------------------------

/// Registers so many and gets each once; all are held.
fn held_and_used(world: &mut World, count: usize) -> Vec<AllocationId> {
    let mut ids = Vec::new();
    let (client, credits_wanted, deadline) = (OWNER, MAX_BATCH as u32, FOR_EVER);
    while ids.len() < count {
        let credits =
            world.core.clients(OWNER.0).next().expect("connected").record.credits as usize;
        let first = ids.len() + 1;
        let last = first + credits.min(MAX_BATCH).min(count - ids.len());
        let deposits: Vec<Arrived> =
            (first..last).map(|base| arrived(deposit(base as u64))).collect();
        let (request, deposits) = (world.request(), &deposits[..]);
        world.step(Body::Register { deposits, credits_wanted, deadline }.by(client, request));
        ids.extend(world.fx.registered.iter().map(|one| one.id));
    }
    for part in ids.chunks(MAX_BATCH) {
        let wanted: Vec<Wanted> = part.iter().copied().map(Ok).collect();
        let leases = world.acquire(USER, &wanted);
        world.step(Body::Release { leases: &leases }.by(USER, RequestId::ONE_WAY));
    }
    ids
}

/// Closes every fd that the last step wanted closed, and what that leads to; how many.
fn close_fds(world: &mut World) -> usize {
    let (mut tickets, mut closed) = (Vec::new(), 0);
    loop {
        tickets.extend(world.fx.list.iter().filter_map(|effect| match effect {
            Effect::CloseHeld { ticket, .. } => Some(*ticket),
            _ => None,
        }));
        let Some(ticket) = tickets.pop() else { return closed };
        world.step(Input::Closed { ticket });
        closed += 1;
    }
}

#[test]
fn recall_when_missed_by_the_owner_of_a_million_then_silent_and_back_visit_none_of_them() {
    let mut world = World::new(roomy());
    let ids = held_and_used(&mut world, scaled(1_000_000));
    for _ in 0..8 {
        world.step(Input::Evict { ids: &ids[..1] });
        close_fds(&mut world);
        world.acquire(USER, &[Ok(ids[0])]);
        world.now.0 += 200_000;
        while world.is_due() {
            world.poll();
        }
        world.step(Input::Evict { ids: &ids[1..2] });
        assert_eq!(world.fx.acted[0].outcome, ActOutcome::OwnerSilent);
        world.supply(ids[0]);
        let (visited, most) = work::last();
        assert!(visited < 200, "{visited} of {most}");
    }
}

#[test]
fn set_caps_when_a_million_that_were_used_must_go_then_each_step_looks_at_few() {
    let mut world = World::new(roomy());
    let count = scaled(1_000_000);
    held_and_used(&mut world, count);
    let caps = CapsOfScopes {
        node: Caps::NONE,
        domain: Caps { held_fds: 64, ..Caps::NONE },
        job: Caps::NONE,
        client: Caps::NONE,
    };
    world.step(Input::SetCaps { caps: &caps });
    let mut closed = close_fds(&mut world);
    for _ in 0..count {
        if world.node(Resource::HeldFds) <= 64 {
            break;
        }
        world.now.0 += 100_000;
        world.poll();
        closed += close_fds(&mut world);
    }
    let left = count - closed;
    assert!(left <= 64, "{left} of {count} are left");
}

#[test]
fn reclaim_when_most_idle_clients_have_leases_of_ended_memory_then_each_step_sweeps_few() {
    let count = scaled(4096);
    let node = Caps { open_leases: (count * MAX_BATCH + 1) as u64, ..Caps::NONE };
    let mut world = World::new(Config { node, ..roomy() });
    let (ends, id) = (world.register(OWNER, deposit(1)), world.register(STRANGER, deposit(2)));
    for client in (10..10 + count as u32).map(ClientId) {
        world.connect(client, 1000);
        assert_eq!(world.acquire(client, &[Ok(ends); MAX_BATCH]).len(), MAX_BATCH);
    }
    world.acquire(USER, &[Ok(id)]);
    world.unregister(OWNER, ends);
    // The cap is full.
    world.acquire(STRANGER, &[Ok(id)]);
    while world.is_due() {
        world.poll();
    }
    assert!(matches!(world.core.take_events(USER), Some(Events::Reclaim(_))));
    world.core.check_invariants();
}

#[test]
fn set_caps_when_thousands_of_clients_are_above_then_each_is_asked_and_each_step_looks_at_few() {
    let mut world = World::new(roomy());
    let id = world.register(OWNER, deposit(1));
    let clients = 10..10 + 4096;
    for client in clients.clone().map(ClientId) {
        world.connect(client, 1000);
        assert_eq!(world.acquire(client, &[Ok(id); 2]).len(), 2);
    }
    let client = Caps { open_leases: 1, ..Caps::NONE };
    let caps = CapsOfScopes { node: Caps::NONE, domain: Caps::NONE, job: Caps::NONE, client };
    world.step(Input::SetCaps { caps: &caps });
    let mut polls = 0;
    while world.is_due() {
        world.poll();
        polls += 1;
        if polls % 16 == 1 {
            world.grant_beside(id);
        }
    }
    assert!(polls > 1, "all of them in one step");
    for client in clients.map(ClientId) {
        assert!(matches!(world.core.take_events(client), Some(Events::Reclaim(_))));
    }
    world.core.check_invariants();
}
