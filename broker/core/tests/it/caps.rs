//! Tests of caps that are changed at run time.

use super::jobs::{JOB, connect_in_job};
use super::reclaim::reclaimed;
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
fn hello_when_the_node_is_above_its_cap_then_a_client_that_adds_nothing_is_welcome() {
    let mut world = World::new(Config { base_credits: 2, ..config() });
    set_caps(&mut world, Caps { fds: 1, ..Caps::NONE });
    world.connect(ClientId(3), 1000);
    assert_eq!(world.client(ClientId(3)).record.credits, 0);
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
    let domain = DomainKey::new(0, 1000);
    let job = Some((JOB, JobName::NONE));
    let peer = Peer { domain, job, pid: 9, gid: 100, groups: &[] };
    let client = ClientId(5);
    let refused = world.step(Input::Connect { client, peer });
    let status = Status::no_quota(Resource::Connections, Scope::Job, 1, 0);
    assert_eq!(refused[0], Effect::Disconnect { client, status });
    world.core.check_invariants();
}
