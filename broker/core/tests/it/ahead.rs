//! Fds fetched ahead: how many at most, and when none.

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
