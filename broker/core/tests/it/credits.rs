//! Deposit credits: idle ones are taken back when another needs the place, and a message that could
//! not know is answered.

use super::*;

#[test]
fn credits_when_a_cap_leaves_no_place_at_all_then_refused_at_once_and_not_at_the_deadline() {
    for node in [Caps { held_fds: 0, ..Caps::NONE }, Caps { fds: 0, ..Caps::NONE }] {
        let mut world = World::new(Config { node, base_credits: 0, ..config() });
        let (client, deposits, credits_wanted) = (OWNER, &[][..], 1);
        let (request, deadline) = (world.request(), Now(u64::MAX));
        let ask = Body::Register { deposits, credits_wanted, deadline }.by(client, request);
        let effects = world.step(ask);
        let is_refused = |it: &Effect| {
            let Effect::Failed { status, .. } = it else { return false };
            status.result() == Err(ErrorCode::NoQuota)
        };
        assert!(effects.iter().any(is_refused), "{effects:?}");
    }
}
use fdbroker_core::limits::{FDS_PER_CONNECTION, TABLE_RESERVE};

/// A node of `fds` in which each client keeps 4 credits. All three clients have theirs, as far as
/// there is room.
fn with_idle_credits(fds: u64) -> World {
    World::new(Config { base_credits: 4, ..node_fds(fds) })
}

impl World {
    fn send(&mut self, client: ClientId, deposits: &[Deposit], credits_wanted: u32) -> Vec<Effect> {
        let (request, deadline) = (self.request(), Now(u64::MAX));
        self.step(Body::Register { deposits, credits_wanted, deadline }.by(client, request))
    }

    fn grant_many(&mut self, client: ClientId, id: AllocationId, count: usize) -> Vec<LeaseId> {
        (0..count).map(|_| self.grant(client, id)).collect()
    }

    fn credits(&self) -> [u64; 3] {
        [OWNER, USER, OTHER].map(|client| self.client(client).credits)
    }

    fn statuses(&self) -> Vec<Status> {
        self.fx.registered.iter().map(|registered| registered.status).collect()
    }
}

fn ends(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Disconnect { .. })).count()
}

#[test]
fn hello_when_idle_credits_fill_the_cap_then_all_ranks_get_in() {
    let config = Config { base_credits: 4, max_clients: 64, ..node_fds(80) };
    let mut world = World::new(config);
    for number in 3..35 {
        let (client, request) = (ClientId(number), RequestId(1));
        world.step(connect(client, DomainKey { listener: 0, uid: 1000 }, 5000 + number));
        let hello = Body::Hello { own_fds: 2, deadline: Now(0) }.by(client, request);
        let effects = world.step(hello);
        assert!(matches!(effects[0], Effect::Welcome { .. }), "{number}: {effects:?}");
    }
}

#[test]
fn lease_when_idle_credits_fill_the_cap_then_granted_at_once_and_nothing_is_evicted() {
    let mut world = with_idle_credits(16);
    let id = world.register(deposit(1)).id;
    world.grant_many(USER, id, 3);
    assert_eq!(world.credits(), [4, 4, 4]);
    // Those first that were given first.
    world.grant_many(USER, id, 1);
    assert_eq!(world.credits(), [3, 4, 4]);
    world.grant_many(USER, id, 4);
    assert_eq!(world.credits(), [0, 3, 4]);
    assert_eq!(world.core.totals().counters.evictions, 0);
}

#[test]
fn register_when_its_credits_were_taken_back_then_again_and_the_client_stays() {
    let mut world = with_idle_credits(16);
    let id = world.register(deposit(1)).id;
    world.grant_many(USER, id, 15);
    assert_eq!(world.credits(), [0, 0, 0]);
    let late = world.send(OWNER, &[deposit(2), deposit(3)], 0);
    let again = Status::error(ErrorCode::Again);
    assert_eq!((world.statuses(), ends(&late)), (vec![again; 2], 0));
    let closed = late.iter().filter(|effect| matches!(effect, Effect::CloseArrived { .. }));
    assert_eq!(closed.count(), 2);
    // It has been told how many it has: one that sends more does not keep to the rules.
    let refused = world.send(OWNER, &vec![deposit(4); 5], 0);
    let Some(Effect::Failed { status, .. }) = refused.first() else { panic!("{refused:?}") };
    assert_eq!(status.result(), Err(ErrorCode::Protocol));
}

#[test]
fn register_when_there_is_room_again_then_what_was_taken_back_is_no_matter() {
    let mut world = with_idle_credits(16);
    let id = world.register(deposit(1)).id;
    let leases = world.grant_many(USER, id, 7);
    assert_eq!(world.credits()[0], 0);
    world.step(Body::Release { leases: &leases }.by(USER, RequestId::ONE_WAY));
    world.send(OWNER, &[deposit(2), deposit(3)], 0);
    assert_eq!(world.statuses(), [Status::OK; 2]);
}

#[test]
fn credit_when_it_was_waited_for_then_it_stays_until_it_is_used() {
    let mut world = World::new(node_fds(2));
    world.send(OWNER, &[], 1);
    assert_eq!(world.credits(), [1, 0, 0]);
    world.send(USER, &[], 1);
    world.send(OTHER, &[], 1);
    assert_eq!(world.credits(), [1, 1, 0]);
    world.send(OWNER, &[deposit(1)], 0);
    assert_eq!(world.statuses(), [Status::OK]);
}

#[test]
fn caps_when_lowered_then_idle_credits_go_before_fds() {
    let mut world = with_idle_credits(16);
    world.register(deposit(1));
    assert_eq!(world.credits(), [4, 4, 4]);
    let node = Caps { fds: 5, ..Caps::NONE };
    let caps = CapsOfScopes { node, ..world.core.caps() };
    world.step(Input::SetCaps { caps: &caps });
    world.at(1);
    assert_eq!(world.credits(), [0, 0, 4]);
    assert_eq!(world.core.totals().counters.evictions, 0);
}

#[test]
fn credits_when_refused_because_others_wait_then_idle_ones_stay() {
    let mut world = World::new(node_fds(6));
    let id = world.register(Deposit { recallable: false, ..deposit(1) }).id;
    let (deposits, credits_wanted) = (&[][..], 2);
    let ask = |client, deadline| {
        let request = RequestId(900);
        Body::Register { deposits, credits_wanted, deadline }.by(client, request)
    };
    world.step(ask(USER, Now(0)));
    (0..3).for_each(|_| _ = world.grant(OTHER, id));
    // It waits for two fds, and only one of the credits is idle.
    let (client, request, deadline) = (ClientId(5), RequestId(1), Now(1000));
    world.step(connect(client, DomainKey { listener: 0, uid: 2000 }, 1));
    assert_eq!(world.step(Body::Hello { own_fds: 2, deadline }.by(client, request)).len(), 1);
    let refused = world.step(ask(OTHER, Now(0)));
    assert!(matches!(refused[0], Effect::Failed { .. }), "{refused:?}");
    assert_eq!(world.client(USER).credits, 2);
}

#[test]
fn hello_when_fds_without_a_place_are_more_than_fit_then_it_waits_until_they_are_closed() {
    let table_fds = TABLE_RESERVE + 3 * FDS_PER_CONNECTION + 8;
    let mut world = World::new(Config { table_fds, ..config() });
    let credits = world.credits().iter().sum::<u64>();
    assert!(
        (FDS_PER_CONNECTION..=8).contains(&credits),
        "idle ones, which count as free: {credits}"
    );
    // More than it may deposit, and more than there is room for.
    world.send(OWNER, &vec![deposit(1); 10], 0);
    let late = ClientId(4);
    let domain = DomainKey { listener: 0, uid: 2000 };
    world.step(connect(late, domain, 4004));
    let (request, deadline) = (RequestId(1), Now(1000 * MS));
    let effects = world.step(Body::Hello { own_fds: 0, deadline }.by(late, request));
    assert_eq!(effects, [], "it is parked");
    for ticket in 0..10 {
        world.step(Input::Closed { ticket: Ticket(ticket) });
    }
    assert_eq!(world.core.totals().node.counted(Resource::TablePlaces), 4 * FDS_PER_CONNECTION);
}
