//! Tests of turns: in which order parked requests are served, between domains and within one.

use super::caps::set_caps;
use super::*;

#[test]
fn sendable_when_a_request_joins_a_recall_under_way_then_that_was_not_its_domains_turn() {
    let (mut world, evicted) = one_evicted();
    set_caps(&mut world, Caps { open_leases: 2, ..Caps::NONE });
    let id = world.register(Deposit { share: Share::Any, ..deposit(4) }).id;
    let stranger = ClientId(3);
    world.connect(stranger, 2000);
    // The cap is full: of one lease, and of the place for one that is promised with the recall.
    world.acquire(USER, &[Ok(evicted)], 60_000);
    assert_eq!(world.state(evicted), AllocationState::Recalling);
    world.step(Input::Sendable { client: OTHER, sendable: false });
    world.acquire(OTHER, &[Ok(evicted)], 60_000);
    let lease = world.grant(OWNER, id);
    let first = world.acquire(USER, &[Ok(id)], 60_000);
    let second = world.acquire(stranger, &[Ok(id)], 60_000);
    world.step(Input::Sendable { client: OTHER, sendable: true });
    world.step(Body::Release { leases: &[lease] }.by(OWNER, RequestId::ONE_WAY));
    let effects = world.fx.list.clone();
    assert_eq!(answer(&world, &effects, first), Some(Status::OK));
    assert_eq!(answer(&world, &effects, second), None);
}

#[test]
fn release_when_a_request_waits_for_room_of_several_owners_then_any_of_them_serves_it() {
    let client = Caps { held_fds: 1, ..Caps::NONE };
    let mut world = World::new(Config { client, base_credits: 0, ..config() });
    let owners = [ClientId(3), ClientId(4)];
    let mut wanted = Vec::new();
    let mut pinning = Vec::new();
    for owner in owners {
        world.connect(owner, 1000);
        wanted.push(Ok(world.register_by(owner, deposit(1)).id));
        pinning.push(world.register_by(owner, Deposit { recallable: false, ..deposit(2) }).id);
        world.close_all();
    }
    let request = world.acquire(USER, &wanted, 60_000);
    assert_eq!(world.fx.list, []);
    // The owner of the second one gives up what fills its account.
    world.unregister(owners[1], pinning[1]);
    world.close_all();
    let Ok(id) = wanted[1] else { unreachable!("two were registered") };
    assert_eq!(
        world.state(id),
        AllocationState::Recalling,
        "{request:?} waits for the first alone"
    );
}

#[test]
fn set_caps_when_a_served_domain_goes_behind_another_then_that_ones_requests_keep_their_order() {
    let node = Caps { open_leases: 1, ..Caps::NONE };
    let client = Caps { held_fds: 1, ..Caps::NONE };
    let mut world = World::new(Config { node, client, base_credits: 0, ..config() });
    let id = world.register(Deposit { share: Share::Any, ..deposit(1) }).id;
    let stranger = ClientId(3);
    world.connect(stranger, 2000);
    world.register_by(stranger, Deposit { recallable: false, ..deposit(2) });
    world.grant(OWNER, id);
    // In line for the node's leases are two of a domain, and one of another. This one also waits
    // for a credit.
    let leases = [USER, OTHER, stranger].map(|client| world.acquire(client, &[Ok(id)], 500));
    let (credit, deadline) = (world.request(), Now(500 * MS));
    world.step(Body::Register { deposits: &[], credits_wanted: 1, deadline }.by(stranger, credit));
    let caps = CapsOfScopes { node: Caps::NONE, client: Caps::NONE, ..world.core.caps() };
    let effects = world.step(Input::SetCaps { caps: &caps });
    let answered = effects.iter().filter_map(|effect| match effect {
        Effect::Granted { request, .. } | Effect::Registered { request, .. } => Some(*request),
        _ => None,
    });
    assert_eq!(answered.collect::<Vec<_>>(), [leases[0], leases[2], leases[1], credit]);
}

#[test]
fn cancel_when_the_first_in_line_leaves_then_a_batch_that_is_in_line_elsewhere_hears_of_it() {
    let domain = Caps { held_bytes: 8192, ..Caps::NONE };
    let mut world = World::new(Config { domain, base_credits: 0, ..config() });
    let second = ClientId(3);
    world.connect(second, 2000);
    let shared = |base| Deposit { share: Share::Any, ..deposit(base) };
    let pages = |count: u64, deposit| sized(count * 4096, deposit);
    let pinning = |deposit| Deposit { recallable: false, ..deposit };
    // The first domain is full, and in the second one is room for a page.
    let of_first = world.register(shared(1)).id;
    world.register(pinning(pages(2, deposit(2))));
    let large = world.register_by(second, pages(2, shared(1))).id;
    world.step(Input::Evict { ids: &[large] });
    world.close_all();
    let small = world.register_by(second, shared(4)).id;
    world.register_by(second, pinning(deposit(6)));
    world.step(Input::Evict { ids: &[small] });
    world.close_all();
    let request = world.acquire(USER, &[Ok(large)], 500);
    world.acquire(OTHER, &[Ok(of_first), Ok(small)], 500);
    assert_eq!(world.state(small), AllocationState::Evicted, "behind the large one");
    world.step(Body::Cancel.by(USER, request));
    world.poll_all();
    assert_eq!(world.state(small), AllocationState::Recalling);
}

#[test]
fn sendable_when_whole_batches_wait_then_a_step_grants_some_and_the_next_polls_the_rest() {
    let mut world = World::new(config());
    let id = world.register(deposit(1)).id;
    world.step(Input::Sendable { client: USER, sendable: false });
    let requests = [0; 4].map(|_| world.acquire(USER, &[Ok(id); 253], 1000));
    let effects = world.step(Input::Sendable { client: USER, sendable: true });
    assert_eq!(answer(&world, &effects, requests[0]), Some(Status::OK));
    assert_eq!(answer(&world, &effects, requests[3]), None);
    for request in &requests[1..] {
        assert_eq!(world.core.poll_timeout(), Some(Now(0)));
        let effects = world.at(0);
        assert!(world.fx.granted.len() < limits::PARKED_ITEMS_PER_STEP + 253);
        assert_eq!(answer(&world, &effects, *request), Some(Status::OK));
    }
}

#[test]
fn clear_when_a_burst_is_over_then_its_memory_is_given_back() {
    let mut effects = Effects::default();
    let item = Granted::refused(Err(ErrorCode::Stale), ErrorCode::Stale.into());
    effects.granted.resize(100_000, item);
    effects.clear();
    assert!(effects.granted.capacity() <= limits::EFFECTS_KEPT);
    effects.granted.resize(limits::EFFECTS_KEPT, item);
    effects.clear();
    assert_eq!(effects.granted.capacity(), limits::EFFECTS_KEPT, "what is used each time stays");
}
