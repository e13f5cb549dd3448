//! Tests of the core's rules, one by one. The simulator (tests/sim) has the long and the random
//! ones.

use fdbroker_core::limits::{self, PLACES_AT_ONCE};
use fdbroker_core::*;
use fdbroker_protocol::page::LAST_GENERATION;
use fdbroker_protocol::{
    AllocationId, ErrorCode, Facts, Resource, Scope, Share, Status, admin::AllocationState,
};

mod acts;
mod ages;
mod ahead;
mod caps;
mod comeback;
mod credits;
mod door;
mod files;
mod jobs;
mod left;
mod lives;
mod objects;
mod order;
mod portions;
mod reclaim;
#[path = "../support/supply.rs"]
mod supply;
#[path = "../support/mod.rs"]
mod support;
mod turns;

use support::deposit;

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
        let domain = DomainKey { listener: 0, uid };
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
    fn register(&mut self, deposit: Deposit) -> Registered {
        self.register_by(OWNER, deposit)
    }

    fn register_by(&mut self, client: ClientId, deposit: Deposit) -> Registered {
        let request = self.request();
        let deadline = Now(u64::MAX);
        let has = self.client(client).credits > 0;
        if !has {
            self.step(
                Body::Register { deposits: &[], credits_wanted: 1, deadline }.by(client, request),
            );
            self.close_all();
        }
        let deposits = &[deposit];
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
        let supply = supply::supply(id, fd, owner_id);
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

    fn client(&self, client: ClientId) -> ClientView {
        self.core.clients(client.0).next().expect("it is there")
    }

    fn state(&self, id: AllocationId) -> AllocationState {
        self.core.allocations(id.slot).next().expect("it is there").state
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
    Deposit { facts: Facts { size_bytes, ..deposit.facts }, ..deposit }
}

#[test]
fn acquire_when_held_then_granted_and_charged_until_released() {
    let mut world = World::new(config());
    let id = world.register(deposit(1)).id;
    let before = world.now_of(Resource::Fds);
    let lease = world.grant(USER, id);
    assert_eq!(world.now_of(Resource::Fds), before + 1);
    assert_eq!(world.client(USER).account.now(Resource::OpenLeases), 1);
    world.step(Body::Mapped { leases: &[lease] }.by(USER, RequestId::ONE_WAY));
    assert_eq!(world.now_of(Resource::Fds), before);
    assert_eq!(world.client(USER).account.now(Resource::MappedLeases), 1);
    assert!(world.release(USER, lease).is_ok());
    assert_eq!(world.client(USER).account.now(Resource::MappedLeases), 0);
}

#[test]
fn release_when_twice_or_by_another_then_bad_handle_and_nothing_changes() {
    let mut world = World::new(config());
    let id = world.register(deposit(1)).id;
    let lease = world.grant(USER, id);
    assert_eq!(world.release(OTHER, lease).result(), Err(ErrorCode::BadHandle));
    assert!(world.release(USER, lease).is_ok());
    assert_eq!(world.release(USER, lease).result(), Err(ErrorCode::BadHandle));
}

#[test]
fn register_when_the_same_again_then_counted_and_its_fd_closed() {
    let mut world = World::new(config());
    let first = world.register(deposit(1));
    let again = world.register(deposit(1));
    assert_eq!(first.id, again.id);
    assert!(world.fx.list.iter().any(|effect| matches!(effect, Effect::CloseArrived { .. })));
    assert_eq!(world.unregister(OWNER, first.id), Status::OK);
    assert_eq!(world.unregister(OWNER, first.id).value.get(), 1);
    assert_eq!(world.unregister(OWNER, first.id).result(), Err(ErrorCode::Stale));
}

#[test]
fn register_when_the_address_has_another_id_then_the_old_one_ends_and_holders_are_told() {
    let mut world = World::new(config());
    let old = world.register(deposit(1)).id;
    let lease = world.grant(USER, old);
    let facts = Facts { owner_allocation_id: 77, ..deposit(1).facts };
    let new = world.register(Deposit { facts, ..deposit(1) }).id;
    assert_ne!(old, new);
    world.acquire(OTHER, &[Ok(old)], 0);
    assert_eq!(world.fx.granted[0].status.result(), Err(ErrorCode::Stale));
    let told = RevokedEvent { id: old, lease, code: ErrorCode::Stale };
    assert_eq!(world.core.take_events(USER), Some(Events::Revoked(vec![told])));
    assert_eq!(world.client(USER).account.now(Resource::PinnedBytes), 4096);
    assert_eq!(world.core.take_events(OWNER), None);
    world.release(USER, lease);
    assert!(
        matches!(world.core.take_events(OWNER), Some(Events::Drained(all)) if all[0].id == old)
    );
    assert_eq!(world.core.take_events(OWNER), None);
}

#[test]
fn unregister_when_leases_are_out_then_drained_after_the_last() {
    let mut world = World::new(config());
    let id = world.register(deposit(1)).id;
    let (one, two) = (world.grant(USER, id), world.grant(OTHER, id));
    assert_eq!(world.unregister(OWNER, id), Status::OK);
    assert_eq!(world.state(id), AllocationState::Ended);
    world.release(USER, one);
    assert_eq!(world.core.take_events(OWNER), None);
    world.release(OTHER, two);
    assert!(matches!(world.core.take_events(OWNER), Some(Events::Drained(_))));
    assert_eq!(world.now_of(Resource::Allocations), 0);
}

#[test]
fn unregister_when_not_the_owner_then_not_permitted() {
    let mut world = World::new(config());
    let id = world.register(deposit(1)).id;
    assert_eq!(world.unregister(USER, id).result(), Err(ErrorCode::NotPermitted));
}

#[test]
fn acquire_when_of_another_domain_then_only_what_is_shared_with_any() {
    let mut world = World::new(config());
    let own = world.register(deposit(1)).id;
    let any = world.register(Deposit { share: Share::Any, ..deposit(2) }).id;
    let stranger = ClientId(3);
    world.connect(stranger, 2000);
    world.acquire(stranger, &[Ok(own), Ok(any)], 0);
    assert_eq!(world.fx.granted[0].status.result(), Err(ErrorCode::NotPermitted));
    assert!(world.fx.granted[1].status.is_ok());
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
fn acquire_when_evicted_then_recalled_and_granted_on_supply() {
    let (mut world, id) = one_evicted();
    let request = world.acquire(USER, &[Ok(id)], 1000);
    world.close_all();
    assert_eq!(world.state(id), AllocationState::Recalling);
    let recall = world.core.take_events(OWNER);
    assert!(matches!(recall, Some(Events::Recall(all)) if all.len() == 1 && all[0].id == id));
    assert_eq!(world.core.take_events(OWNER), None);
    let effects = world.supply(id, Ok(0), 1);
    assert!(effects.contains(&Effect::StoreArrived { index: 0, slot: id.slot }));
    assert_eq!(answer(&world, &effects, request), Some(Status::OK));
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
fn acquire_when_two_wait_for_one_then_it_is_recalled_once() {
    let (mut world, id) = one_evicted();
    world.acquire(USER, &[Ok(id)], 1000);
    world.close_all();
    world.acquire(OTHER, &[Ok(id)], 1000);
    assert!(matches!(world.core.take_events(OWNER), Some(Events::Recall(all)) if all.len() == 1));
    assert_eq!(world.core.take_events(OWNER), None);
}

#[test]
fn supply_when_its_range_ends_beyond_all_numbers_then_the_allocation_ends() {
    let (mut world, id) = one_evicted();
    world.acquire(USER, &[Ok(id)], 1000);
    world.close_all();
    let mut supply = supply::supply(id, Ok(0), 1);
    supply.facts.fd_offset = u64::MAX - 4095;
    let effects = world.step(Body::Supply { supplies: &[supply] }.by(OWNER, RequestId::ONE_WAY));
    assert!(effects.contains(&Effect::Publish { slot: id.slot, generation: 0 }), "{effects:?}");
}

#[test]
fn supply_when_the_id_differs_then_the_allocation_ends() {
    let (mut world, id) = one_evicted();
    let request = world.acquire(USER, &[Ok(id)], 1000);
    world.close_all();
    let effects = world.supply(id, Ok(0), 99);
    assert!(effects.contains(&Effect::Publish { slot: id.slot, generation: 0 }));
    let status = answer(&world, &effects, request).expect("answered");
    assert_eq!(status.result(), Err(ErrorCode::Stale));
}

#[test]
fn supply_when_refused_then_waiters_hear_why() {
    let (mut world, id) = one_evicted();
    let request = world.acquire(USER, &[Ok(id)], 1000);
    world.close_all();
    let effects = world.supply(id, Err(ErrorCode::LocalFdLimit), 1);
    let status = answer(&world, &effects, request).expect("answered");
    assert_eq!(status.result(), Err(ErrorCode::OwnerSilent));
    assert_eq!(status.value.get(), ErrorCode::LocalFdLimit as u64);
    assert_eq!(world.state(id), AllocationState::Evicted);
}

#[test]
fn recall_when_unanswered_then_owner_silent_until_it_answers() {
    let (mut world, id) = one_evicted();
    let request = world.acquire(USER, &[Ok(id)], 1000);
    world.close_all();
    let effects = world.at(101);
    let status = answer(&world, &effects, request).expect("answered");
    assert_eq!(status.result(), Err(ErrorCode::OwnerSilent));
    world.acquire(USER, &[Ok(id)], 1000);
    assert_eq!(world.fx.granted[0].status.result(), Err(ErrorCode::OwnerSilent));
    // Its place stayed reserved: the late answer is as good as any.
    world.supply(id, Ok(0), 1);
    assert_eq!(world.state(id), AllocationState::Held);
    world.grant(USER, id);
}

#[test]
fn gone_when_consumers_wait_for_its_memory_then_owner_gone() {
    let (mut world, id) = one_evicted();
    let request = world.acquire(USER, &[Ok(id)], 1000);
    world.close_all();
    let effects = world.step(Input::Gone { client: OWNER });
    let status = answer(&world, &effects, request).expect("answered");
    assert_eq!(status.result(), Err(ErrorCode::OwnerGone));
    world.close_all();
    assert_eq!(world.core.clients(0).next().map(|client| client.id), Some(USER));
    assert_eq!(world.now_of(Resource::Fds), 0);
    assert_eq!(world.now_of(Resource::Allocations), 0);
}

#[test]
fn gone_when_a_request_waits_for_room_to_recall_its_memory_then_owner_gone() {
    let (mut world, id) = one_evicted();
    // Nothing is closed yet of what makes room for the recall.
    let request = world.acquire(USER, &[Ok(id)], 1000);
    assert_eq!(world.state(id), AllocationState::Evicted);
    let effects = world.step(Input::Gone { client: OWNER });
    let status = answer(&world, &effects, request).expect("answered");
    assert_eq!(status.result(), Err(ErrorCode::OwnerGone));
}

#[test]
fn gone_when_holding_then_its_accounts_are_zero() {
    let mut world = World::new(config());
    let id = world.register(deposit(1)).id;
    world.grant(USER, id);
    let effects = world.step(Input::Gone { client: USER });
    assert!(effects.contains(&Effect::Forget { client: USER }));
    assert_eq!(world.now_of(Resource::OpenLeases), 0);
    assert_eq!(world.state(id), AllocationState::Held);
}

#[test]
fn register_when_all_is_resident_then_no_quota_names_the_cap() {
    let mut world = World::new(node_fds(2));
    let resident = |base| Deposit { recallable: false, ..deposit(base) };
    world.register(resident(1));
    world.register(resident(2));
    let (client, request, deadline) = (OWNER, RequestId(9), Now(50 * MS));
    world.step(Body::Register { deposits: &[], credits_wanted: 1, deadline }.by(client, request));
    assert_eq!(world.fx.list, []);
    let effects = world.at(50);
    let status = answer(&world, &effects, request).expect("answered");
    assert_eq!(status, Status::no_quota(Resource::Fds, Scope::Node, 2, 4000));
}

#[test]
fn register_when_over_its_credits_then_protocol_and_every_fd_is_closed() {
    let mut world = World::new(node_fds(2));
    let (client, request, deadline) = (OWNER, RequestId(9), Now(0));
    let deposits = &[deposit(1), deposit(2)];
    let effects =
        world.step(Body::Register { deposits, credits_wanted: 0, deadline }.by(client, request));
    let closed = effects.iter().filter(|effect| matches!(effect, Effect::CloseArrived { .. }));
    assert_eq!(closed.count(), 2);
    let status = answer(&world, &effects, request).expect("answered");
    assert_eq!(status.result(), Err(ErrorCode::Protocol));
}

#[test]
fn register_when_refused_fds_pile_up_then_told_before_the_connection_ends() {
    let mut world = World::new(Config { max_refused_per_domain: 1, ..config() });
    let what = Status::with_value(ErrorCode::UnsupportedFd, 9);
    let refused = Deposit { checked: Err(what), lane: Lane::Refused, ..deposit(1) };
    assert_eq!(world.register(refused).status, what);
    let (client, request, deadline) = (OWNER, RequestId(9), Now(0));
    let deposits = &[refused];
    let effects =
        world.step(Body::Register { deposits, credits_wanted: 0, deadline }.by(client, request));
    let status = Status::no_quota(Resource::RefusedFds, Scope::Domain, 1, 0);
    assert_eq!(effects[0], Effect::Failed { client, request, status });
    assert_eq!(effects.last(), Some(&Effect::Disconnect { client, status }));
}

#[test]
fn acquire_when_the_node_is_full_then_parked_first_come_first_served() {
    let mut world = World::new(node_fds(2));
    let id = world.register(Deposit { recallable: false, ..deposit(1) }).id;
    let lease = world.grant(OWNER, id);
    let first = world.acquire(USER, &[Ok(id)], 1000);
    let second = world.acquire(OTHER, &[Ok(id)], 1000);
    let effects = world.step(Body::Release { leases: &[lease] }.by(OWNER, RequestId::ONE_WAY));
    assert_eq!(answer(&world, &effects, first), Some(Status::OK));
    assert_eq!(answer(&world, &effects, second), None);
}

#[test]
fn acquire_when_only_what_it_wants_fills_the_node_then_one_goes_for_another() {
    let mut world = World::new(node_fds(2));
    let ids = [1, 2].map(|base| world.register(deposit(base)).id);
    let request = world.acquire(USER, &ids.map(Ok), 1000);
    assert_eq!(world.core.totals().gauges.closing_fds, 1);
    let answers = |effects: &[Effect]| {
        let of = |effect: &Effect| matches!(effect, Effect::Granted { request: of, .. } if *of == request);
        effects.iter().any(of)
    };
    let mut tickets = (0..1024).map(Ticket);
    assert!(tickets.any(|ticket| answers(&world.step(Input::Closed { ticket }))));
    assert_eq!(world.client(USER).account.now(Resource::OpenLeases), 1);
}

#[test]
fn acquire_when_the_deadline_passes_then_no_quota_names_cap_and_holder() {
    let mut world = World::new(node_fds(2));
    let id = world.register(Deposit { recallable: false, ..deposit(1) }).id;
    world.grant(USER, id);
    let request = world.acquire(OTHER, &[Ok(id)], 20);
    assert_eq!(answer(&world, &world.fx.list.clone(), request), None);
    let effects = world.at(20);
    let status = answer(&world, &effects, request).expect("answered");
    assert_eq!((status.result(), status.value.get()), (Err(ErrorCode::NoQuota), 2));
}

#[test]
fn unregister_when_a_request_waits_for_room_to_recall_it_then_answered_stale() {
    let mut world = World::new(node_fds(2));
    let id = world.register(deposit(1)).id;
    let resident = world.register(Deposit { recallable: false, ..deposit(2) }).id;
    world.acquire(USER, &[Ok(resident)], 1000);
    world.close_all();
    assert_eq!(world.state(id), AllocationState::Evicted);
    let request = world.acquire(OTHER, &[Ok(id)], 1000);
    let (client, ids) = (OWNER, &[id][..]);
    let effects = world.step(Body::Unregister { ids }.by(client, RequestId(7)));
    let status = answer(&world, &effects, request).expect("answered");
    assert_eq!(status.result(), Err(ErrorCode::Stale));
}

#[test]
fn acquire_when_the_client_does_not_read_then_parked_until_it_does() {
    let mut world = World::new(config());
    let id = world.register(deposit(1)).id;
    world.step(Input::Sendable { client: USER, sendable: false });
    let request = world.acquire(USER, &[Ok(id)], 1000);
    assert_eq!(world.fx.list, []);
    let effects = world.step(Input::Sendable { client: USER, sendable: true });
    assert_eq!(answer(&world, &effects, request), Some(Status::OK));
}

#[test]
fn cancel_when_parked_then_cancelled_and_when_not_then_nothing() {
    let mut world = World::new(node_fds(2));
    let id = world.register(Deposit { recallable: false, ..deposit(1) }).id;
    world.grant(USER, id);
    let request = world.acquire(OTHER, &[Ok(id)], 20);
    let effects = world.step(Body::Cancel.by(OTHER, request));
    let status = answer(&world, &effects, request).expect("answered");
    assert_eq!(status.result(), Err(ErrorCode::Cancelled));
    assert_eq!(world.step(Body::Cancel.by(OTHER, request)), []);
}

#[test]
fn unsent_when_a_grant_could_not_go_out_then_undone_and_granted_when_it_can() {
    let mut world = World::new(config());
    let id = world.register(deposit(1)).id;
    let request = world.acquire(USER, &[Ok(id)], 1000);
    let Some(Effect::Granted { deadline, seq, .. }) = world.fx.list.last().cloned() else {
        panic!("granted at once")
    };
    let grants = world.fx.granted.clone();
    world.step(Input::Unsent { client: USER, request, grants: &grants, deadline, seq });
    world.step(Input::Sendable { client: USER, sendable: false });
    assert_eq!(world.client(USER).account.now(Resource::OpenLeases), 0);
    let effects = world.step(Input::Sendable { client: USER, sendable: true });
    assert_eq!(answer(&world, &effects, request), Some(Status::OK));
}

#[test]
fn bytes_when_capped_then_the_least_recently_used_are_evicted() {
    let node = Caps { held_bytes: 8192, ..Caps::NONE };
    let mut world = World::new(Config { node, ..config() });
    let [one, two] = [1, 2].map(|base| world.register(deposit(base)).id);
    world.grant(USER, one);
    let three = world.register(deposit(3)).id;
    let states = [one, two, three].map(|id| world.state(id));
    use AllocationState::{Evicted, Held};
    assert_eq!(states, [Held, Evicted, Held]);
}

#[test]
fn generations_when_used_up_then_no_slot_is_left() {
    let mut world =
        World::new(Config { max_slots: 1, first_generation: LAST_GENERATION, ..config() });
    let id = world.register(deposit(1)).id;
    assert_eq!(id.generation, LAST_GENERATION);
    world.unregister(OWNER, id);
    let status = world.register(deposit(2)).status;
    assert_eq!(status.result(), Err(ErrorCode::NoQuota));
}

#[test]
fn hello_when_missing_or_twice_then_protocol_and_the_end() {
    let mut world = World::new(config());
    let stranger = ClientId(5);
    let domain = DomainKey { listener: 0, uid: 1 };
    world.step(connect(stranger, domain, 1));
    let (request, wanted, deadline) = (RequestId(1), &[][..], Now(0));
    let early = world.step(Body::Acquire { wanted, deadline }.by(stranger, request));
    assert!(matches!(early[..], [Effect::Failed { .. }, Effect::Disconnect { .. }]));
    let twice = world.step(Body::Hello { own_fds: 0, deadline }.by(USER, request));
    assert!(matches!(twice[..], [Effect::Failed { .. }, Effect::Disconnect { .. }]));
}

#[test]
fn config_when_it_cannot_work_then_says_which_number() {
    let refused = Core::new(Config { table_fds: 10, ..config() }).expect_err("too small");
    assert!(refused.to_string().contains("table_fds = 10"), "{refused}");
}
