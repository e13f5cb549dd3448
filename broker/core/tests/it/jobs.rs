//! Tests of jobs: their caps, their clients, and what is left of them.

use super::*;

pub(super) const JOB: JobKey = JobKey(7);

/// A client of uid 1000 and of a job.
pub(super) fn connect_in_job(world: &mut World, client: ClientId, job: JobKey) {
    let domain = DomainKey { listener: 0, uid: 1000 };
    let pid = 4000 + client.0;
    let job = Some((job, JobName::new(&format!("job:{}", job.0))));
    let peer = Peer { domain, job, pid, gid: 100, groups: &[] };
    world.step(Input::Connect { client, peer });
    world.step(Body::Hello { own_fds: 0, deadline: Now(0) }.by(client, RequestId(1)));
}

pub(super) fn job_of(world: &World, key: JobKey) -> Option<JobView> {
    world.core.jobs(0).find(|job| job.key == key)
}

#[test]
fn view_when_a_client_is_of_a_job_then_says_which_and_the_caps_in_force() {
    let job = Caps { open_leases: 1, ..Caps::NONE };
    let mut world = World::new(Config { job, ..config() });
    let client = ClientId(3);
    connect_in_job(&mut world, client, JOB);
    assert_eq!((world.core.job_of(client), world.core.job_of(USER)), (Some(JOB), None));
    assert_eq!(world.core.job_of(ClientId(4)), None);
    let number = job_of(&world, JOB).expect("in use").number;
    assert_eq!(world.core.jobs(number + 1).count(), 0);
    let mut caps = world.core.caps();
    assert_eq!(caps.job, job);
    caps.job.open_leases = 9;
    world.step(Input::SetCaps { caps: &caps });
    assert_eq!(world.core.caps().job[Resource::OpenLeases], 9);
}

#[test]
fn acquire_when_the_job_is_at_its_cap_then_no_quota_names_it_and_another_job_goes_on() {
    let job = Caps { open_leases: 1, ..Caps::NONE };
    let mut world = World::new(Config { job, ..config() });
    let id = world.register(deposit(1)).id;
    let (one, two, alone) = (ClientId(3), ClientId(4), ClientId(5));
    connect_in_job(&mut world, one, JOB);
    connect_in_job(&mut world, two, JOB);
    connect_in_job(&mut world, alone, JobKey(8));
    world.grant(one, id);
    world.acquire(two, &[Ok(id)], 0);
    let quota = Status::no_quota(Resource::OpenLeases, Scope::Job, 1, 4003);
    assert_eq!(world.fx.granted[0].status, quota);
    world.grant(alone, id);
    // A client of no job has no job's cap.
    world.grant(USER, id);
    world.grant(USER, id);
}

#[test]
fn acquire_when_it_waits_for_its_jobs_cap_then_granted_when_the_job_gives_back() {
    let job = Caps { open_leases: 1, ..Caps::NONE };
    let mut world = World::new(Config { job, ..config() });
    let id = world.register(deposit(1)).id;
    let (one, two) = (ClientId(3), ClientId(4));
    connect_in_job(&mut world, one, JOB);
    connect_in_job(&mut world, two, JOB);
    let lease = world.grant(one, id);
    let request = world.acquire(two, &[Ok(id)], 1000);
    world.step(Body::Release { leases: &[lease] }.by(one, RequestId::ONE_WAY));
    let effects = world.fx.list.clone();
    assert_eq!(answer(&world, &effects, request), Some(Status::OK));
}

#[test]
fn gone_when_the_last_of_a_job_then_the_job_is_forgotten_and_its_closing_fds_are_the_domains() {
    let mut world = World::new(config());
    let client = ClientId(3);
    connect_in_job(&mut world, client, JOB);
    let (request, deadline) = (world.request(), Now(u64::MAX));
    let deposits = &[deposit(1)];
    world.step(Body::Register { deposits, credits_wanted: 0, deadline }.by(client, request));
    assert_eq!(job_of(&world, JOB).map(|job| job.clients), Some(1));
    world.step(Input::Gone { client });
    assert_eq!(job_of(&world, JOB), None);
    let domain = world.core.domains(0).next().expect("the others' domain");
    let credits: u64 = world.core.clients(0).map(|client| client.credits).sum();
    assert_eq!(domain.account.counted(Resource::HeldFds), credits + 1);
    world.close_all();
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
        let (request, deposits) = (world.request(), &[deposit(base)]);
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
        domain: DomainKey { listener: 0, uid: 1000 },
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
