//! Tests of the door: connect and hello.

use super::*;

const LATE: ClientId = ClientId(5);

/// Another client connects; its hello may wait for a second.
fn knock(world: &mut World, client: ClientId, uid: u32, own_fds: u32) -> Vec<Effect> {
    let (request, deadline) = (RequestId(1), Now(world.now.0 + 1000 * MS));
    let connected = world.step(connect(client, DomainKey::new(0, uid), 1));
    let greeted = world.step(Body::Hello { own_fds, deadline }.by(client, request));
    connected.into_iter().chain(greeted).collect()
}

fn is_welcome(effects: &[Effect], of: ClientId) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Welcome { client, .. } if *client == of))
}

fn is_refused(effects: &[Effect], of: ClientId) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::Disconnect { client, .. } if *client == of))
}

/// All fds that are closing are closed.
fn close(world: &mut World) -> Vec<Effect> {
    (0..64).flat_map(|ticket| world.step(Input::Closed { ticket: Ticket(ticket) })).collect()
}

#[test]
fn hello_when_many_wait_then_they_are_let_in_by_turns_as_fds_come_back() {
    let mut world = World::new(node_fds(4));
    let held = world.register(deposit(1)).id;
    let mut leases = Vec::new();
    for _ in 0..3 {
        world.acquire(USER, &[Ok(held)], 0);
        leases.push(world.fx.granted[0].lease);
    }
    let of = [(ClientId(5), 2000), (ClientId(6), 2000), (ClientId(7), 2001)];
    for (client, uid) in of {
        assert!(!is_welcome(&knock(&mut world, client, uid, 1), client));
    }
    let mut order = Vec::new();
    for _ in of {
        let lease = leases.pop();
        let leases: Vec<_> = lease.into_iter().collect();
        let mut effects =
            world.step(Body::Release { leases: &leases }.by(USER, RequestId::ONE_WAY));
        effects.extend(world.at(1));
        effects.extend(close(&mut world));
        let welcome = of.iter().filter(|(client, _)| is_welcome(&effects, *client));
        order.extend(welcome.map(|(client, _)| client.0));
    }
    assert_eq!(order.len(), 3, "{order:?}");
    assert!(order[0] == 7 || order[1] == 7, "users take turns: {order:?}");
}

#[test]
fn hello_when_its_client_asks_for_something_meanwhile_then_protocol_and_the_end() {
    let mut world = World::new(node_fds(1));
    world.step(connect(ClientId(4), DomainKey::new(0, 1000), 1));
    let (client, request, deadline) = (ClientId(4), RequestId(1), Now(0));
    world.step(Body::Hello { own_fds: 1, deadline }.by(client, request));
    assert!(knock(&mut world, LATE, 1000, 1).is_empty());
    let (client, wanted, request) = (LATE, &[][..], RequestId(2));
    let early = world.step(Body::Acquire { wanted, deadline }.by(client, request));
    assert!(is_refused(&early, LATE) && early.len() == 3, "{early:?}");
    world.step(Input::Gone { client: LATE });
    world.step(Input::Gone { client: ClientId(4) });
}

// --- shares --------------------------------------------------------------------------------------

#[test]
fn connect_when_a_user_comes_under_many_subordinate_uids_then_domains_are_left_for_others() {
    let ranges = vec![SubordinateRange { first: 100_000, count: 1000, user: Some(2000) }];
    let subordinate_uids = SubordinateUids::new(ranges);
    let max_domains = limits::DOMAINS_PER_USER as u32 + 2;
    let mut world =
        World::new(Config { subordinate_uids, max_domains, max_clients: 64, ..config() });
    let most = limits::DOMAINS_PER_USER as u32;
    for number in 10..10 + most {
        let client = ClientId(number);
        assert!(is_welcome(&knock(&mut world, client, 100_000 + number, 0), client), "{number}");
    }
    let late = ClientId(10 + most);
    let refused = world.step(connect(late, DomainKey::new(0, 2000), 1));
    let Some(Effect::Disconnect { status, .. }) = refused.first() else { panic!("{refused:?}") };
    let (resource, scope) = (Resource::Domains as u8, Scope::Domain as u8);
    assert_eq!(
        (status.resource, status.scope().map_or(0, |it| it as u8), status.value),
        (resource, scope, most.into())
    );
    assert!(is_welcome(&knock(&mut world, late, 3000, 0), late), "another user");
    world.step(Input::Gone { client: ClientId(10) });
    let next = ClientId(11 + most);
    assert!(is_welcome(&knock(&mut world, next, 2000, 0), next), "one of its uids is gone");
}

#[test]
fn connect_when_users_without_clients_have_left_something_then_their_domains_keep_nobody_out() {
    let max_domains = 4;
    let mut world = World::new(Config { max_domains, max_clients: 64, ..config() });
    let keys = (0..2 * max_domains).map(|number| DomainKey::new(0, 5000 + number));
    for (number, key) in (10..).zip(keys) {
        let client = ClientId(number);
        assert!(is_welcome(&knock(&mut world, client, key.uid, 0), client), "{number}");
        world.register_by(client, Deposit { keep: true, ..deposit(u64::from(number)) });
        world.step(Input::Gone { client });
        assert!(world.core.domains(0).any(|(_, it, _)| it.key == key), "it has left something");
    }
    // Those that have clients count.
    let in_use = world.core.now_in_node(Resource::Domains);
    for number in 0..u64::from(max_domains) - in_use {
        let client = ClientId(30 + number as u32);
        assert!(is_welcome(&knock(&mut world, client, 5000 + number as u32, 0), client));
    }
    let late = ClientId(40);
    let refused = world.step(connect(late, DomainKey::new(0, 7000), 1));
    let Some(Effect::Disconnect { status, .. }) = refused.first() else { panic!("{refused:?}") };
    let (resource, scope) = (Resource::Domains as u8, Scope::Node as u8);
    let most = u64::from(max_domains);
    assert_eq!((status.resource, status.scope, status.value), (resource, scope, most));
}

#[test]
fn hello_when_leases_of_others_leave_its_user_little_then_they_are_asked_for_some() {
    let mut world = World::new(Config { share_factor: 8, ..node_fds(90) });
    let id = world.register(deposit(1)).id;
    for _ in 0..80 {
        world.grant(USER, id);
    }
    let (early, late) = (ClientId(4), ClientId(5));
    assert!(is_welcome(&knock(&mut world, early, 2000, 5), early));
    assert!(!is_welcome(&knock(&mut world, late, 2000, 1), late));
    let Some(Events::Reclaim(leases)) = world.core.take_events(USER) else {
        panic!("nobody is asked")
    };
    let given_back = world.step(Body::Release { leases: &leases }.by(USER, RequestId::ONE_WAY));
    assert!(is_welcome(&given_back, late), "{given_back:?}");
}

#[test]
fn connect_when_a_user_has_as_many_idle_connections_as_it_may_then_others_get_in_and_have_credits()
{
    let table_fds = limits::TABLE_RESERVE + 4000;
    let config =
        Config { table_fds, share_factor: 8, max_clients: 2000, max_domains: 20, ..config() };
    let mut world = World { core: Core::new(config).expect("sound"), ..World::new(self::config()) };
    let mut number = 0;
    while is_welcome(&knock(&mut world, ClientId(number), 2000, 0), ClientId(number)) {
        // Idle, and with as many credits as it gets.
        let (client, request, deadline) = (ClientId(number), RequestId(2), Now(0));
        let (deposits, credits_wanted) = (&[][..], 64);
        world.step(Body::Register { deposits, credits_wanted, deadline }.by(client, request));
        number += 1;
    }
    assert!(number > 10, "only {number} connections");
    let refused = world.at(1000);
    assert!(is_refused(&refused, ClientId(number)), "{refused:?}");
    for uid in 3000..3010 {
        let client = ClientId(uid - 2000);
        assert!(is_welcome(&knock(&mut world, client, uid, 0), client), "{uid}");
        let (request, deadline, deposits, credits_wanted) = (RequestId(2), Now(0), &[][..], 1);
        world.step(Body::Register { deposits, credits_wanted, deadline }.by(client, request));
        assert!(world.client(client).record.credits > 0, "{uid}");
    }
}

#[test]
fn hello_when_what_a_user_has_left_is_beyond_its_share_of_the_table_then_only_others_get_in() {
    let places = 4 * limits::FDS_PER_CONNECTION + 9;
    let table_fds = limits::TABLE_RESERVE + places;
    let config = Config { table_fds, share_factor: 8, base_credits: 0, ..config() };
    let mut world = World { core: Core::new(config).expect("sound"), ..World::new(self::config()) };
    for client in [OWNER, USER, OTHER] {
        world.connect(client, 1000);
    }
    let keeper = ClientId(3);
    world.connect(keeper, 2000);
    for base in 1..=5 {
        world.register_by(keeper, Deposit { keep: true, ..deposit(base) });
    }
    world.step(Input::Gone { client: keeper });
    // It holds 5 of 9 that are left, and then of 5.
    world.connect(ClientId(4), 3000);
    assert_eq!(knock(&mut world, keeper, 2000, 0), []);
    let refused = world.at(1000);
    let Effect::Failed { status, .. } = refused[0] else { panic!("{refused:?}") };
    let (resource, scope) = (Resource::TablePlaces as u8, Scope::Domain as u8);
    assert_eq!(
        (status.resource, status.scope().map_or(0, |it| it as u8)),
        (resource, scope),
        "{status}"
    );
    assert!(is_welcome(&knock(&mut world, LATE, 4000, 0), LATE));
}

/// A client that wants no more than so many fds held for it.
fn with_bound(world: &mut World, client: ClientId, fds: u32) {
    world.step(connect(client, DomainKey::new(0, 1000), 1));
    world.step(Input::BoundHeld { client, fds });
    let (request, deadline) = (RequestId(1), Now(0));
    world.step(Body::Hello { own_fds: 0, deadline }.by(client, request));
}

#[test]
fn register_when_the_client_bounds_what_is_held_then_its_own_oldest_are_evicted() {
    let mut world = World::new(Config { base_credits: 0, ..config() });
    let others: Vec<_> = (1..=4).map(|base| world.register(deposit(base)).id).collect();
    with_bound(&mut world, LATE, 2);
    let ids: Vec<_> = (11..=15).map(|base| world.register_by(LATE, deposit(base)).id).collect();
    world.close_all();
    let states: Vec<_> = ids.iter().map(|id| world.state(*id)).collect();
    use AllocationState::{Evicted, Held};
    assert_eq!(states, [Evicted, Evicted, Evicted, Held, Held]);
    assert_eq!(world.client(LATE).account.now(Resource::HeldFds), 2);
    assert!(others.iter().all(|id| world.state(*id) == Held), "nobody else's are");
    // Once it is let in, it is too late.
    world.step(Input::BoundHeld { client: LATE, fds: 1000 });
    world.register_by(LATE, deposit(16));
    world.close_all();
    assert_eq!(world.client(LATE).account.now(Resource::HeldFds), 2);
}

#[test]
fn register_when_resident_beyond_the_clients_own_bound_then_no_quota_names_it() {
    let mut world = World::new(Config { base_credits: 0, ..config() });
    with_bound(&mut world, LATE, 2);
    for base in 1..=2 {
        world.register_by(LATE, Deposit { recallable: false, ..deposit(base) });
    }
    let (client, request, deadline) = (LATE, RequestId(900), Now(0));
    let asked = world
        .step(Body::Register { deposits: &[], credits_wanted: 1, deadline }.by(client, request));
    let refused = Status::no_quota(Resource::HeldFds, Scope::Client, 2, 1);
    assert!(
        asked
            .iter()
            .any(|effect| matches!(effect, Effect::Failed { status, .. } if *status == refused)),
        "{asked:?}"
    );
}
