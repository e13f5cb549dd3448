//! Tests of jobs: what is shown of them, whose fds make room for them, what is told of their ends.

use super::*;

pub(super) const JOB: JobKey = JobKey(7);

/// A client of uid 1000 and of a job.
pub(super) fn connect_in_job(world: &mut World, client: ClientId, job: JobKey) {
    let domain = DomainKey::new(0, 1000);
    let pid = 4000 + client.0;
    let job = Some((job, JobName::new(&format!("job:{}", job.0))));
    let peer = Peer { domain, job, pid, gid: 100, groups: &[] };
    world.step(Input::Connect { client, peer });
    world.step(Body::Hello { own_fds: 0, deadline: Now(0) }.by(client, RequestId(1)));
}

pub(super) fn job_of(world: &World, key: JobKey) -> Option<(u32, &Job, &Account)> {
    world.core.jobs(0).find(|(_, job, _)| job.key.1 == key)
}

#[test]
fn view_when_a_client_is_of_a_job_then_says_which_and_the_caps_in_force() {
    let job = Caps { open_leases: 1, ..Caps::NONE };
    let mut world = World::new(Config { job, ..config() });
    let client = ClientId(3);
    connect_in_job(&mut world, client, JOB);
    assert_eq!((world.client(client).job, world.client(USER).job), (Some(JOB), None));
    assert!(world.core.client(ClientId(4)).is_none());
    let number = job_of(&world, JOB).expect("in use").0;
    assert_eq!(world.core.jobs(number + 1).count(), 0);
    let mut caps = world.core.caps();
    assert_eq!(caps.job, job);
    caps.job.open_leases = 9;
    world.step(Input::SetCaps { caps: &caps });
    assert_eq!(world.core.caps().job[Resource::OpenLeases], 9);
}

#[test]
fn acquire_when_the_jobs_held_fds_are_full_then_the_jobs_own_are_evicted_alone() {
    let job = Caps { held_fds: 1, ..Caps::NONE };
    let mut world = World::new(Config { job, base_credits: 0, ..config() });
    let outside = world.register(deposit(1)).id;
    let client = ClientId(3);
    connect_in_job(&mut world, client, JOB);
    let mut register = |base| {
        let deadline = Now(u64::MAX);
        let request = world.request();
        world.step(
            Body::Register { deposits: &[], credits_wanted: 1, deadline }.by(client, request),
        );
        world.close_all();
        let (request, deposits) = (world.request(), &[arrived(deposit(base))]);
        world.step(Body::Register { deposits, credits_wanted: 0, deadline }.by(client, request));
        (world.fx.registered[0].id, world.state(outside))
    };
    let (first, _) = register(2);
    let (second, of_outside) = register(3);
    assert_eq!(of_outside, AllocationState::Held);
    assert_eq!(world.state(first), AllocationState::Evicted);
    assert_eq!(world.state(second), AllocationState::Held);
}

#[test]
fn end_when_the_owner_unregisters_or_is_gone_then_the_daemon_hears_whose_it_was_and_why() {
    let mut world = World::new(config());
    let owner = ClientId(3);
    connect_in_job(&mut world, owner, JOB);
    let [first, second] = [1, 2].map(|base| world.register_by(owner, deposit(base)).id);
    world.grant(USER, second);
    let ended = |id, code, is_leased| Ended {
        id,
        kind: deposit(1).facts.kind,
        size_bytes: deposit(1).facts.size_bytes,
        domain: DomainKey::new(0, 1000),
        pid: 4003,
        job: Some((JOB, JobName::new("job:7"))),
        code,
        is_leased,
    };
    world.unregister(owner, first);
    assert_eq!(world.fx.ended, [ended(first, ErrorCode::Stale, false)]);
    // The slot's files may be another's once the rest has been applied.
    let places: Vec<_> = world.fx.list.iter().map(std::mem::discriminant).collect();
    let publish = Effect::Publish { slot: 0, generation: 0 };
    assert_eq!(
        places[..2],
        [publish, Effect::Ended { index: 0 }].map(|it| std::mem::discriminant(&it))
    );
    world.step(Input::Gone { client: owner });
    assert_eq!(world.fx.ended, [ended(second, ErrorCode::OwnerGone, true)]);
}
