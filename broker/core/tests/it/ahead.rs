//! Fds fetched ahead: in which order, how many at most, and when none.

use super::*;
use fdbroker_protocol::limits::{AHEAD_BYTES, AHEAD_FDS};

/// Those that are granted ahead, in their order.
fn ahead(world: &mut World, client: ClientId, wanted: &[Wanted]) -> Vec<AllocationId> {
    let effects = world.step(Body::AcquireAhead { wanted }.by(client, RequestId::ONE_WAY));
    let granted = effects.iter().filter_map(|effect| match effect {
        Effect::GrantedAhead { client: of, range } if *of == client => Some(range.clone()),
        Effect::GrantedAhead { .. } | Effect::CloseHeld { .. } | Effect::Events { .. } => {
            panic!("{effect:?}: nothing else may follow")
        }
        _ => None,
    });
    let items = granted.flat_map(|range| world.fx.granted[range].to_vec());
    items.map(|item| item.wanted.expect("it is granted")).collect()
}

fn registered(world: &mut World, count: u64) -> Vec<Wanted> {
    (1..=count).map(|number| Ok(world.register(deposit(number)).id)).collect()
}

#[test]
fn ahead_when_held_then_leased_in_order_and_the_rest_is_left_out() {
    let mut world = World::new(config());
    let mut wanted = registered(&mut world, 3);
    world.unregister(OWNER, wanted[1].unwrap());
    wanted.push(Err(ErrorCode::BadHandle));
    let granted = ahead(&mut world, USER, &wanted);
    assert_eq!(granted, [wanted[0].unwrap(), wanted[2].unwrap()]);
    assert_eq!(world.client(USER).account.now(Resource::OpenLeases), 2);
    let leases: Vec<LeaseId> = world.fx.granted.iter().map(|item| item.lease).collect();
    world.step(Body::Release { leases: &leases }.by(USER, RequestId::ONE_WAY));
    assert_eq!(world.client(USER).account.now(Resource::OpenLeases), 0);
}

#[test]
fn ahead_when_many_or_large_then_no_more_than_the_bounds() {
    let mut world = World::new(config());
    let wanted = registered(&mut world, AHEAD_FDS as u64 + 1);
    assert_eq!(ahead(&mut world, USER, &wanted).len(), AHEAD_FDS);

    let size_bytes = AHEAD_BYTES / 4 + 1;
    let large =
        |number: u64| sized(size_bytes, Deposit { base: number << 40, ..deposit(100 + number) });
    let large: Vec<Wanted> = (1..=4).map(|it| Ok(world.register(large(it)).id)).collect();
    assert_eq!(ahead(&mut world, OTHER, &large).len(), 3);
}

#[test]
fn ahead_when_a_cap_is_near_then_a_quarter_of_what_is_left_of_it() {
    let client = Caps { open_leases: 21, ..Caps::NONE };
    let mut world = World::new(Config { client, ..config() });
    let wanted = registered(&mut world, 8);
    world.grant(USER, wanted[0].unwrap());
    assert_eq!(ahead(&mut world, USER, &wanted[1..]).len(), 5, "of 20");
    assert_eq!(ahead(&mut world, USER, &wanted[1..]).len(), 3, "of 15");

    let mut world = World::new(node_fds(24));
    let wanted = registered(&mut world, 8);
    assert_eq!(ahead(&mut world, USER, &wanted).len(), 4, "of 16 of the node");
}

#[test]
fn ahead_when_somebody_waits_for_room_then_nothing_though_there_is_some() {
    let node = Caps { open_leases: 100, ..Caps::NONE };
    let mut world = World::new(Config { node, max_parked_per_client: 64, ..config() });
    let wanted = registered(&mut world, 1);
    let id = wanted[0].unwrap();
    let leases: Vec<LeaseId> = (0..100).map(|_| world.grant(USER, id)).collect();
    for _ in 0..64 {
        world.acquire(OTHER, &wanted, 1000);
    }
    // More comes back than one step serves those in line with.
    world.step(Body::Release { leases: &leases }.by(USER, RequestId::ONE_WAY));
    let taken = world.now_of(Resource::OpenLeases);
    assert!(taken < 64, "{taken} of those in line are served");
    let effects = world.step(Body::AcquireAhead { wanted: &wanted }.by(OWNER, RequestId::ONE_WAY));
    let is_ahead = |effect: &Effect| matches!(effect, Effect::GrantedAhead { .. });
    assert!(!effects.iter().any(is_ahead), "it overtakes them");
    (0..64).for_each(|ms| drop(world.at(ms)));
    assert_eq!(world.now_of(Resource::OpenLeases), 64);
    assert_eq!(ahead(&mut world, OWNER, &wanted).len(), 1);
}

#[test]
fn ahead_when_the_client_reads_nothing_or_the_broker_is_drained_then_nothing() {
    let mut world = World::new(config());
    let wanted = registered(&mut world, 1);
    world.step(Input::Sendable { client: USER, sendable: false });
    assert_eq!(ahead(&mut world, USER, &wanted), []);
    world.step(Input::Sendable { client: USER, sendable: true });
    assert_eq!(ahead(&mut world, USER, &wanted).len(), 1);
    let mut world = World::new(config());
    // Not evictable, so that it is held still.
    let wanted = [Ok(world.register(Deposit { recallable: false, ..deposit(1) }).id)];
    world.step(Input::SetDraining { draining: true });
    assert_eq!(ahead(&mut world, USER, &wanted), []);
}
