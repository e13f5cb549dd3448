//! Tests of caps that are changed at run time.

use super::jobs::{JOB, connect_in_job};
use super::reclaim::{open_leases, reclaimed};
use super::*;

pub(super) fn set_caps(world: &mut World, node: Caps) -> Vec<Effect> {
    let caps = CapsOfScopes { node, domain: Caps::NONE, job: Caps::NONE, client: Caps::NONE };
    world.step(Input::SetCaps { caps: &caps })
}

#[test]
pub(super) fn set_caps_when_lowered_then_evicts_at_once_asks_for_leases_and_adds_nothing() {
    let mut world = World::new(Config { base_credits: 0, ..config() });
    let ids: Vec<_> = (1..=4).map(|base| world.register(deposit(base)).id).collect();
    let lease = world.grant(USER, ids[3]);
    let effects = set_caps(&mut world, Caps { fds: 2, open_leases: 0, ..Caps::NONE });
    let closed = |e: &&Effect| matches!(e, Effect::CloseHeld { .. });
    assert_eq!(effects.iter().filter(closed).count(), 3);
    assert_eq!(world.state(ids[3]), AllocationState::Held);
    assert_eq!(reclaimed(&mut world, USER), Some(vec![lease]));
    world.acquire(OTHER, &[Ok(ids[3])], 0);
    let quota = Status::no_quota(Resource::OpenLeases, Scope::Node, 0, 4001);
    assert_eq!(world.fx.granted[0].status, quota);
    world.close_all();
    assert_eq!(world.now_of(Resource::Fds), 2);
    world.release(USER, lease);
    assert_eq!(world.now_of(Resource::OpenLeases), 0);
}

#[test]
pub(super) fn set_caps_when_above_max_clients_then_the_cap_in_force_is_shown() {
    let caps = |connections| Caps { connections, ..Caps::NONE };
    let mut world = World::new(Config { node: caps(17), max_clients: 16, ..config() });
    assert_eq!(world.core.caps().node[Resource::Connections], 16);
    for (asked, in_force) in [(u64::MAX, 16), (4, 4), (17, 16)] {
        set_caps(&mut world, caps(asked));
        assert_eq!(world.core.caps().node[Resource::Connections], in_force);
    }
    // Those of other scopes are never full before the node's is.
    let mut all = world.core.caps();
    all.domain.connections = 17;
    world.step(Input::SetCaps { caps: &all });
    assert_eq!(world.core.caps().domain[Resource::Connections], 17);
}

#[test]
pub(super) fn set_caps_when_raised_then_who_waits_is_served() {
    let mut world = World::new(open_leases(1));
    let id = world.register(deposit(1)).id;
    world.grant(USER, id);
    let request = world.acquire(OTHER, &[Ok(id)], 1000);
    let effects = set_caps(&mut world, Caps { open_leases: 2, ..Caps::NONE });
    assert_eq!(answer(&world, &effects, request), Some(Status::OK));
}

#[test]
pub(super) fn set_caps_when_resident_is_above_then_it_stays_until_its_owner_ends_it() {
    let mut world = World::new(Config { base_credits: 1, ..config() });
    let resident = |base| Deposit { recallable: false, ..deposit(base) };
    let ids: Vec<_> = (1..=2).map(|base| world.register(resident(base)).id).collect();
    set_caps(&mut world, Caps { held_bytes: 4096, ..Caps::NONE });
    assert_eq!(world.now_of(Resource::HeldBytes), 8192);
    assert_eq!(world.state(ids[0]), AllocationState::Resident);
    let refused = world.register(resident(3)).status;
    assert_eq!(refused.result(), Err(ErrorCode::NoQuota));
    world.unregister(OWNER, ids[0]);
    world.unregister(OWNER, ids[1]);
    assert!(world.register(resident(3)).status.is_ok());
}

#[test]
fn hello_when_the_node_is_above_its_cap_then_a_client_that_adds_nothing_is_welcome() {
    let mut world = World::new(Config { base_credits: 2, ..config() });
    set_caps(&mut world, Caps { fds: 1, ..Caps::NONE });
    world.connect(ClientId(3), 1000);
    assert_eq!(world.client(ClientId(3)).credits, 0);
}

#[test]
fn mapped_when_the_lease_has_ended_and_that_is_not_told_yet_then_it_still_is() {
    let mut world = World::new(config());
    let id = world.register(deposit(1)).id;
    let lease = world.grant(USER, id);
    world.unregister(OWNER, id);
    world.step(Body::Mapped { leases: &[lease] }.by(USER, RequestId::ONE_WAY));
    let told = RevokedEvent { id, lease, code: ErrorCode::Stale };
    assert_eq!(world.core.take_events(USER), Some(Events::Revoked(vec![told])));
}

#[test]
fn connect_when_the_domain_is_at_its_cap_of_connections_then_no_quota_and_another_domain_goes_on() {
    let domain = Caps { connections: 2, ..Caps::NONE };
    let mut world = World::new(Config { domain, ..config() });
    let of = |uid| DomainKey { listener: 0, uid };
    world.step(connect(ClientId(5), of(7), 50));
    world.step(connect(ClientId(6), of(7), 51));
    let refused = world.step(connect(ClientId(7), of(7), 52));
    let status = Status::no_quota(Resource::Connections, Scope::Domain, 2, 0);
    let client = ClientId(7);
    assert_eq!(refused, [Effect::Disconnect { client, status }, Effect::Forget { client }]);
    world.core.check_invariants();
    world.step(connect(ClientId(7), of(8), 53));
    world.client(ClientId(7));
    world.step(Input::Gone { client: ClientId(5) });
    world.at(1);
    world.step(connect(ClientId(5), of(7), 54));
    world.client(ClientId(5));
}

#[test]
fn connect_when_the_jobs_cap_of_connections_is_lowered_then_those_there_stay_and_none_is_added() {
    let mut world = World::new(config());
    connect_in_job(&mut world, ClientId(3), JOB);
    connect_in_job(&mut world, ClientId(4), JOB);
    let mut caps = world.core.caps();
    caps.job.connections = 1;
    world.step(Input::SetCaps { caps: &caps });
    world.client(ClientId(4));
    let domain = DomainKey { listener: 0, uid: 1000 };
    let job = Some((JOB, JobName::NONE));
    let peer = Peer { domain, job, pid: 9, gid: 100, groups: &[] };
    let client = ClientId(5);
    let refused = world.step(Input::Connect { client, peer });
    let status = Status::no_quota(Resource::Connections, Scope::Job, 1, 0);
    assert_eq!(refused[0], Effect::Disconnect { client, status });
    world.core.check_invariants();
}
