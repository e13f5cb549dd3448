//! Deposit credits: which idle ones are taken back when another needs the place, and when none is.

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

/// A node of `fds` in which each client keeps 4 credits. All three clients have theirs, as far as
/// there is room.
fn with_idle_credits(fds: u64) -> World {
    World::new(Config { base_credits: 4, ..node_fds(fds) })
}

impl World {
    fn grant_many(&mut self, client: ClientId, id: AllocationId, count: usize) -> Vec<LeaseId> {
        (0..count).map(|_| self.grant(client, id)).collect()
    }

    fn credits(&self) -> [u64; 3] {
        [OWNER, USER, OTHER].map(|client| self.client(client).record.credits)
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
    world.step(connect(client, DomainKey::new(0, 2000), 1));
    assert_eq!(world.step(Body::Hello { own_fds: 2, deadline }.by(client, request)).len(), 1);
    let refused = world.step(ask(OTHER, Now(0)));
    assert!(matches!(refused[0], Effect::Failed { .. }), "{refused:?}");
    assert_eq!(world.client(USER).record.credits, 2);
}

impl World {
    /// A message of so many fds, from memory that grows from `base` on.
    fn send(
        &mut self,
        client: ClientId,
        base: u64,
        count: u64,
        credits_wanted: u32,
    ) -> Vec<Effect> {
        let deposits: Vec<_> = (0..count).map(|at| arrived(deposit(base + at))).collect();
        let (request, deadline, deposits) = (self.request(), Now(0), &deposits[..]);
        self.step(Body::Register { deposits, credits_wanted, deadline }.by(client, request))
    }
}

fn is_served(effects: &[Effect]) -> bool {
    effects.iter().any(|it| matches!(it, Effect::Registered { .. }))
}

#[test]
fn register_when_credits_went_with_the_answer_before_it_then_served() {
    let mut world = World::new(Config { base_credits: 1, ..node_fds(64) });
    world.send(OWNER, 1, 1, 12);
    assert_eq!(world.client(OWNER).record.credits, 12);
    // Both were sent before the answer to the first one, which leaves a single credit.
    assert!(is_served(&world.send(OWNER, 2, 2, 0)));
    assert_eq!(world.client(OWNER).record.credits, 1);
    assert!(is_served(&world.send(OWNER, 4, 10, 0)));
    assert_eq!(world.core.totals().counters.deposits, 13);
    // It has used up what it was told.
    let uses = world.client(OWNER).record;
    assert!(!is_served(&world.send(OWNER, 20, uses.credits + uses.credits_taken + 1, 0)));
}

#[test]
fn register_when_some_of_its_credits_were_taken_then_those_behind_it_are_answered() {
    for [first, second] in [[2, 4], [4, 2], [5, 1]] {
        let mut world = World::new(Config { base_credits: 6, ..node_fds(20) });
        let id = world.register(deposit(1)).id;
        assert_eq!(world.client(OWNER).record.credits, 6);
        while world.client(OWNER).record.credits > 1 {
            world.grant(USER, id);
        }
        assert!(is_served(&world.send(OWNER, 2, first, 0)), "{first}");
        assert!(is_served(&world.send(OWNER, 10, second, 0)), "{first}, {second}");
    }
}
