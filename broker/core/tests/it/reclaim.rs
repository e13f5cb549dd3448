//! Tests of reclaim: which clients are asked to give which leases back.

use super::*;

pub(super) fn reclaimed(world: &mut World, client: ClientId) -> Option<Vec<LeaseId>> {
    match world.core.take_events(client) {
        Some(Events::Reclaim(leases)) => Some(leases),
        None => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn acquire_when_a_thousand_clients_of_others_are_idle_then_those_of_the_full_domain_are_asked_at_once()
 {
    let domain = Caps { open_leases: 2, ..Caps::NONE };
    let mut world = World::new(Config { domain, max_clients: 1200, ..config() });
    let id = world.register(Deposit { share: Share::Any, ..deposit(1) }).id;
    for number in 0..1060 {
        let (client, uid) = (ClientId(100 + number), 2000 + number % 4);
        let now = world.now;
        let (request, deadline) = (RequestId(1), now);
        world.fx.clear();
        let input = connect(client, DomainKey::new(0, uid), 1);
        world.core.step(now, input, &mut world.fx);
        let hello = Body::Hello { own_fds: 0, deadline }.by(client, request);
        world.core.step(now, hello, &mut world.fx);
        let wanted = &[Ok(id)][..];
        let acquire = Body::Acquire { wanted, deadline }.by(client, RequestId(2));
        world.core.step(now, acquire, &mut world.fx);
    }
    world.grant(USER, id);
    world.grant(OTHER, id);
    world.acquire(OWNER, &[Ok(id)], 1000);
    assert!(reclaimed(&mut world, USER).is_some());
}

#[test]
fn acquire_when_the_share_is_used_up_then_no_quota_names_it_and_others_keep_their_fds() {
    let mut world = World::new(Config { share_factor: 8, ..node_fds(90) });
    let id = world.register(deposit(1)).id;
    let stranger = ClientId(5);
    world.connect(stranger, 2000);
    let kept: Vec<_> = (2..11).map(|base| world.register_by(stranger, deposit(base)).id).collect();
    for _ in 0..80 {
        world.grant(USER, id);
    }
    let request = world.acquire(USER, &[Ok(id)], 0);
    let effects = world.fx.list.clone();
    let status = answer(&world, &effects, request).expect("its deadline has passed");
    let share = Status::no_quota(Resource::Fds, Scope::Domain, 81, status.pid).of_share();
    assert_eq!(status, share);
    assert!(kept.iter().all(|id| world.state(*id) == AllocationState::Held), "{effects:?}");
}

#[test]
fn reclaim_when_not_answered_then_others_are_asked_after_a_pause_and_the_same_lease_much_later() {
    let mut world = World::new(open_leases(2));
    let id = world.register(deposit(1)).id;
    let (ignored, idle) = (world.grant(USER, id), world.grant(OTHER, id));
    world.acquire(OWNER, &[Ok(id)], 60_000);
    assert_eq!(reclaimed(&mut world, USER), Some(vec![ignored]));
    assert_eq!(reclaimed(&mut world, OTHER), None);
    world.at(11);
    assert_eq!(reclaimed(&mut world, USER), None);
    assert_eq!(reclaimed(&mut world, OTHER), Some(vec![idle]));
    world.at(900);
    assert_eq!(reclaimed(&mut world, USER), None);
    world.at(1100);
    assert_eq!(reclaimed(&mut world, USER), Some(vec![ignored]));
}

#[test]
fn reclaim_when_a_client_gave_back_all_it_could_then_it_is_not_asked_last_for_a_new_lease() {
    let mut world = World::new(open_leases(3));
    let id = world.register(deposit(1)).id;
    let (first, _) = (world.grant(USER, id), world.grant(USER, id));
    let other = world.grant(OTHER, id);
    // Two rounds: in the second, USER has nothing but what it was asked for in the first.
    let mut leases = Vec::new();
    for (holder, lease) in [(USER, first), (OTHER, other)] {
        world.acquire(OWNER, &[Ok(id)], 1000);
        assert!(reclaimed(&mut world, holder).is_some_and(|asked| asked.contains(&lease)));
        world.release(holder, lease);
        leases.push(world.fx.granted[0].lease);
    }
    world.acquire(USER, &[Ok(id)], 1000);
    leases.into_iter().for_each(|lease| assert!(world.release(OWNER, lease).is_ok()));
    world.core.take_events(OWNER);
    world.grant(OWNER, id);
    world.acquire(OTHER, &[Ok(id)], 1000);
    assert!(reclaimed(&mut world, USER).is_some(), "it has been idle for longer than OWNER");
    assert_eq!(reclaimed(&mut world, OWNER), None);
}

#[test]
fn mapped_when_the_cap_is_full_then_no_quota_and_mapped_leases_are_asked_for() {
    let node = Caps { mapped_leases: 1, ..Caps::NONE };
    let mut world = World::new(Config { node, ..config() });
    let id = world.register(deposit(1)).id;
    let (idle, open) = (world.grant(USER, id), world.grant(USER, id));
    world.step(Body::Mapped { leases: &[idle] }.by(USER, RequestId::ONE_WAY));
    let lease = world.grant(OTHER, id);
    let request = world.request();
    world.step(Body::Mapped { leases: &[lease] }.by(OTHER, request));
    let quota = Status::no_quota(Resource::MappedLeases, Scope::Node, 1, 4001);
    assert_eq!(world.fx.statuses[0], quota);
    assert_eq!(reclaimed(&mut world, USER), Some(vec![idle]));
    world.release(USER, open);
}

#[test]
fn reclaim_when_the_lease_has_ended_or_come_back_before_it_was_told_then_it_is_not_asked_for() {
    let mut world = World::new(open_leases(3));
    let (ended, live) = (world.register(deposit(1)).id, world.register(deposit(2)).id);
    let revoked = world.grant(USER, ended);
    let (back, stays) = (world.grant(USER, live), world.grant(USER, live));
    world.acquire(OTHER, &[Ok(live), Ok(live)], 60_000);
    world.unregister(OWNER, ended);
    world.release(USER, back);
    assert_eq!(reclaimed(&mut world, USER), Some(vec![stays]));
    assert!(matches!(
        world.core.take_events(USER),
        Some(Events::Revoked(all)) if all[0].lease == revoked
    ));
}

#[test]
fn acquire_when_idle_held_fds_can_go_then_nobody_is_asked() {
    let (mut world, evicted) = one_evicted();
    world.acquire(USER, &[Ok(evicted)], 1000);
    assert!(world.core.totals().gauges.closing_fds > 0);
    world.close_all();
    assert_eq!(world.core.totals().counters.reclaims, 0);
}

#[test]
fn credits_when_closes_of_another_user_take_long_then_do_not_wait_for_them() {
    let mut world = World::new(node_fds(3));
    let (slow, uid) = (ClientId(9), 2000);
    world.connect(slow, uid);
    let held = world.register(deposit(1)).id;
    let [closing, next] = [2, 3].map(|base| world.register_by(slow, deposit(base)).id);
    world.unregister(slow, closing);
    let (request, deadline) = (world.request(), Now(u64::MAX));
    let wish = Body::Register { deposits: &[], credits_wanted: 1, deadline }.by(USER, request);
    world.step(wish);
    assert_eq!(world.state(held), AllocationState::Held, "what is being closed will be room");
    let domain = DomainKey::new(0, uid);
    world.step(Input::Slow { domain, slow: true });
    world.at(1);
    assert_eq!(world.state(held), AllocationState::Evicted, "unless its close takes long");
    world.unregister(slow, next);
    world.step(Input::Slow { domain, slow: false });
    world.close_all();
    assert_eq!(world.client(USER).record.credits, 1);
}

fn open_leases(open_leases: u64) -> Config {
    Config { node: Caps { open_leases, ..Caps::NONE }, ..config() }
}
