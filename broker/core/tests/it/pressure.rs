//! Tests of pressure: jobs, fairness between domains, reclaim, caps changed at run time.

use super::*;
use fdbroker_protocol::MemoryKind;
use fdbroker_protocol::admin::ActOutcome;

pub(super) const JOB: JobKey = JobKey(7);

/// A client of uid 1000 and of a job.
pub(super) fn connect_in_job(world: &mut World, client: ClientId, job: JobKey) {
    let domain = DomainKey { listener: 0, uid: 1000 };
    let pid = 4000 + client.0;
    let job = Some((job, JobName::new(&format!("job:{}", job.0))));
    let peer = Peer { domain, job, pid, gid: 100, groups: &[] };
    world.step(Input::Connect { client, peer });
    world.step(Input::Hello { client, request: RequestId(1), own_fds: 0, deadline: Now(0) });
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
    world.step(Input::Release { client: one, request: None, leases: &[lease] });
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
    world.step(Input::Register { client, request, deposits, credits_wanted: 0, deadline });
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
        world.step(Input::Register { client, request, deposits: &[], credits_wanted: 1, deadline });
        world.close_all();
        let (request, deposits) = (world.request(), &[deposit(base)]);
        world.step(Input::Register { client, request, deposits, credits_wanted: 0, deadline });
        (world.fx.registered[0].id, world.state(outside))
    };
    let (first, _) = register(2);
    let (second, of_outside) = register(3);
    assert_eq!(of_outside, AllocationState::Held);
    assert_eq!(world.state(first), AllocationState::Evicted);
    assert_eq!(world.state(second), AllocationState::Held);
}

// --- turns ----------------------------------------------------------------------------------------

#[test]
fn release_when_two_domains_wait_then_they_are_served_in_turn_and_each_in_order() {
    let mut world = World::new(node_fds(2));
    let id = world.register(Deposit { share: Share::Any, ..deposit(1) }).id;
    let stranger = ClientId(3);
    world.connect(stranger, 2000);
    let lease = world.grant(OTHER, id);
    let first = [0; 3].map(|_| world.acquire(USER, &[Ok(id)], 1000));
    let second = [0; 3].map(|_| world.acquire(stranger, &[Ok(id)], 1000));
    let (mut holder, mut held, mut served) = (OTHER, lease, Vec::new());
    for _ in 0..6 {
        world.step(Input::Release { client: holder, request: None, leases: &[held] });
        let granted = world.fx.list.iter().find_map(|effect| match effect {
            Effect::Granted { client, request, range, .. } => {
                Some((*client, *request, world.fx.granted[range.start].lease))
            }
            _ => None,
        });
        let (client, request, lease) = granted.expect("one is served for each given back");
        (holder, held) = (client, lease);
        served.push(request);
    }
    let in_turn = [first[0], second[0], first[1], second[1], first[2], second[2]];
    assert_eq!(served, in_turn);
}

#[test]
fn release_when_one_domain_is_at_its_cap_then_another_behind_it_is_served() {
    let domain = Caps { open_leases: 1, ..Caps::NONE };
    let node = Caps { open_leases: 3, ..Caps::NONE };
    let mut world = World::new(Config { node, domain, ..config() });
    let id = world.register(Deposit { share: Share::Any, ..deposit(1) }).id;
    let (third, fourth, fifth) = (ClientId(3), ClientId(4), ClientId(5));
    world.connect(third, 2000);
    world.connect(fourth, 3000);
    world.connect(fifth, 4000);
    let blocked = world.grant(USER, id);
    world.grant(third, id);
    let lease = world.grant(fourth, id);
    // Behind its domain's cap, and before the other one.
    let waits = world.acquire(USER, &[Ok(id)], 1000);
    let request = world.acquire(fifth, &[Ok(id)], 1000);
    world.step(Input::Release { client: fourth, request: None, leases: &[lease] });
    let effects = world.fx.list.clone();
    assert_eq!(answer(&world, &effects, request), Some(Status::OK));
    assert_eq!(answer(&world, &effects, waits), None);
    world.release(USER, blocked);
}

#[test]
fn sendable_when_a_request_joins_a_recall_under_way_then_that_was_not_its_domains_turn() {
    let (mut world, evicted) = one_evicted();
    set_caps(&mut world, Caps { open_leases: 2, ..Caps::NONE });
    let id = world.register(Deposit { share: Share::Any, ..deposit(4) }).id;
    let stranger = ClientId(3);
    world.connect(stranger, 2000);
    // The cap is full: of one lease, and of the place for one that is promised with the recall.
    world.acquire(USER, &[Ok(evicted)], 60_000);
    assert_eq!(world.state(evicted), AllocationState::Recalling);
    world.step(Input::Sendable { client: OTHER, sendable: false });
    world.acquire(OTHER, &[Ok(evicted)], 60_000);
    let lease = world.grant(OWNER, id);
    let first = world.acquire(USER, &[Ok(id)], 60_000);
    let second = world.acquire(stranger, &[Ok(id)], 60_000);
    world.step(Input::Sendable { client: OTHER, sendable: true });
    world.step(Input::Release { client: OWNER, request: None, leases: &[lease] });
    let effects = world.fx.list.clone();
    assert_eq!(answer(&world, &effects, first), Some(Status::OK));
    assert_eq!(answer(&world, &effects, second), None);
}

#[test]
fn release_when_the_domains_first_are_held_up_by_another_cap_then_the_next_is_served_at_once() {
    let client = Caps { open_leases: 1, ..Caps::NONE };
    let node = Caps { open_leases: 2, ..Caps::NONE };
    let mut world = World::new(Config { node, client, max_parked_per_client: 64, ..config() });
    let id = world.register(Deposit { share: Share::Any, ..deposit(1) }).id;
    let stranger = ClientId(3);
    world.connect(stranger, 2000);
    world.grant(USER, id);
    let lease = world.grant(OWNER, id);
    // More than a step looks at, and the cap of their client holds them up.
    for _ in 0..2 * limits::PARKED_LOOKS_PER_STEP {
        world.acquire(USER, &[Ok(id)], 60_000);
    }
    let [same, other] = [OTHER, stranger].map(|client| world.acquire(client, &[Ok(id)], 60_000));
    world.step(Input::Release { client: OWNER, request: None, leases: &[lease] });
    let effects = world.fx.list.clone();
    assert_eq!(answer(&world, &effects, same), Some(Status::OK));
    assert_eq!(answer(&world, &effects, other), None);
    assert_ne!(world.core.poll_timeout(), Some(Now(0)), "others are looked at for nothing");
}

#[test]
fn release_when_a_request_waits_for_room_of_several_owners_then_any_of_them_serves_it() {
    let client = Caps { held_fds: 1, ..Caps::NONE };
    let mut world = World::new(Config { client, base_credits: 0, ..config() });
    let owners = [ClientId(3), ClientId(4)];
    let mut wanted = Vec::new();
    let mut pinning = Vec::new();
    for owner in owners {
        world.connect(owner, 1000);
        wanted.push(Ok(world.register_by(owner, deposit(1)).id));
        pinning.push(world.register_by(owner, Deposit { recallable: false, ..deposit(2) }).id);
        world.close_all();
    }
    let request = world.acquire(USER, &wanted, 60_000);
    assert_eq!(world.fx.list, []);
    // The owner of the second one gives up what fills its account.
    world.unregister(owners[1], pinning[1]);
    world.close_all();
    let Ok(id) = wanted[1] else { unreachable!("two were registered") };
    assert_eq!(
        world.state(id),
        AllocationState::Recalling,
        "{request:?} waits for the first alone"
    );
}

#[test]
fn set_caps_when_a_served_domain_goes_behind_another_then_that_ones_requests_keep_their_order() {
    let node = Caps { open_leases: 1, ..Caps::NONE };
    let client = Caps { held_fds: 1, ..Caps::NONE };
    let mut world = World::new(Config { node, client, base_credits: 0, ..config() });
    let id = world.register(Deposit { share: Share::Any, ..deposit(1) }).id;
    let stranger = ClientId(3);
    world.connect(stranger, 2000);
    world.register_by(stranger, Deposit { recallable: false, ..deposit(2) });
    world.grant(OWNER, id);
    // In line for the node's leases are two of a domain, and one of another. This one also waits for a credit.
    let leases = [USER, OTHER, stranger].map(|client| world.acquire(client, &[Ok(id)], 500));
    let (credit, deadline) = (world.request(), Now(500 * MS));
    world.step(Input::Register {
        client: stranger,
        request: credit,
        deposits: &[],
        credits_wanted: 1,
        deadline,
    });
    let caps = CapsOfScopes { node: Caps::NONE, client: Caps::NONE, ..world.core.caps() };
    let effects = world.step(Input::SetCaps { caps: &caps });
    let answered = effects.iter().filter_map(|effect| match effect {
        Effect::Granted { request, .. } | Effect::Registered { request, .. } => Some(*request),
        _ => None,
    });
    assert_eq!(answered.collect::<Vec<_>>(), [leases[0], leases[2], leases[1], credit]);
}

#[test]
fn cancel_when_the_first_in_line_leaves_then_a_batch_that_is_in_line_elsewhere_hears_of_it() {
    let domain = Caps { held_bytes: 8192, ..Caps::NONE };
    let mut world = World::new(Config { domain, base_credits: 0, ..config() });
    let second = ClientId(3);
    world.connect(second, 2000);
    let shared = |base| Deposit { share: Share::Any, ..deposit(base) };
    let pages = |count: u64, deposit| Deposit { size_bytes: count * 4096, ..deposit };
    let pinning = |deposit| Deposit { recallable: false, ..deposit };
    // The first domain is full, and in the second one is room for a page.
    let of_first = world.register(shared(1)).id;
    world.register(pinning(pages(2, deposit(2))));
    let large = world.register_by(second, pages(2, shared(1))).id;
    world.step(Input::Evict { ids: &[large] });
    world.close_all();
    let small = world.register_by(second, shared(4)).id;
    world.register_by(second, pinning(deposit(6)));
    world.step(Input::Evict { ids: &[small] });
    world.close_all();
    let request = world.acquire(USER, &[Ok(large)], 500);
    world.acquire(OTHER, &[Ok(of_first), Ok(small)], 500);
    assert_eq!(world.state(small), AllocationState::Evicted, "behind the large one");
    world.step(Input::Cancel { client: USER, request });
    world.poll_all();
    assert_eq!(world.state(small), AllocationState::Recalling);
}

#[test]
fn sendable_when_whole_batches_wait_then_a_step_grants_some_and_the_next_polls_the_rest() {
    let mut world = World::new(config());
    let id = world.register(deposit(1)).id;
    world.step(Input::Sendable { client: USER, sendable: false });
    let requests = [0; 4].map(|_| world.acquire(USER, &[Ok(id); 253], 1000));
    let effects = world.step(Input::Sendable { client: USER, sendable: true });
    assert_eq!(answer(&world, &effects, requests[0]), Some(Status::OK));
    assert_eq!(answer(&world, &effects, requests[3]), None);
    for request in &requests[1..] {
        assert_eq!(world.core.poll_timeout(), Some(Now(0)));
        let effects = world.at(0);
        assert!(world.fx.granted.len() < limits::PARKED_ITEMS_PER_STEP + 253);
        assert_eq!(answer(&world, &effects, *request), Some(Status::OK));
    }
}

#[test]
fn clear_when_a_burst_is_over_then_its_memory_is_given_back() {
    let mut effects = Effects::default();
    let item = Granted::refused(Err(ErrorCode::Stale), ErrorCode::Stale.into());
    effects.granted.resize(100_000, item);
    effects.clear();
    assert!(effects.granted.capacity() <= limits::EFFECTS_KEPT);
    effects.granted.resize(limits::EFFECTS_KEPT, item);
    effects.clear();
    assert_eq!(effects.granted.capacity(), limits::EFFECTS_KEPT, "what is used each time stays");
}

#[test]
fn sendable_when_a_client_stops_to_read_then_what_was_supplied_for_it_makes_room_for_others() {
    let mut world = World::new(node_fds(4));
    let [first, second] = [1, 2].map(|base| world.register(deposit(base)).id);
    world.step(Input::Evict { ids: &[first, second] });
    world.close_all();
    let deaf = ClientId(3);
    world.connect(deaf, 1000);
    // Each recall has a place, and one for the lease of its first request.
    world.acquire(USER, &[Ok(first)], 60_000);
    let waits = world.acquire(OTHER, &[Ok(first)], 60_000);
    world.acquire(USER, &[Ok(second)], 60_000);
    world.acquire(deaf, &[Ok(second)], 60_000);
    world.supply(first, Ok(0), 1);
    world.supply(second, Ok(0), 2);
    assert_eq!(world.core.evict_outcome(second), ActOutcome::Waited);
    world.step(Input::Sendable { client: deaf, sendable: false });
    world.at(0);
    assert_eq!(world.state(second), AllocationState::Evicted);
    let effects: Vec<Effect> =
        (0..8).flat_map(|ticket| world.step(Input::Closed { ticket: Ticket(ticket) })).collect();
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Granted { request, .. } if *request == waits))
    );
}

// --- reclaim ----------------------------------------------------------------------------------------

fn reclaimed(world: &mut World, client: ClientId) -> Option<Vec<LeaseId>> {
    match world.core.take_events(client) {
        Some(Events::Reclaim(leases)) => Some(leases),
        None => None,
        other => panic!("{other:?}"),
    }
}

fn open_leases(open_leases: u64) -> Config {
    Config { node: Caps { open_leases, ..Caps::NONE }, ..config() }
}

#[test]
fn acquire_when_the_cap_is_full_of_leases_then_the_most_idle_is_asked_for_its_oldest_and_no_other()
{
    let mut world = World::new(open_leases(3));
    let id = world.register(deposit(1)).id;
    let kept = world.grant(OTHER, id);
    let (old, young) = (world.grant(USER, id), world.grant(USER, id));
    // OTHER is active again, and asks for itself.
    let request = world.acquire(OTHER, &[Ok(id)], 1000);
    assert!(world.fx.list.contains(&Effect::Events { client: USER }));
    assert_eq!(reclaimed(&mut world, USER), Some(vec![old, young]));
    assert_eq!(reclaimed(&mut world, OTHER), None);
    world.step(Input::Release { client: USER, request: None, leases: &[old] });
    let effects = world.fx.list.clone();
    assert_eq!(answer(&world, &effects, request), Some(Status::OK));
    world.release(OTHER, kept);
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
        let input = connect(client, DomainKey { listener: 0, uid }, 1);
        world.core.step(now, input, &mut world.fx);
        let hello = Input::Hello { client, request, own_fds: 0, deadline };
        world.core.step(now, hello, &mut world.fx);
        let wanted = &[Ok(id)][..];
        let acquire = Input::Acquire { client, request: RequestId(2), wanted, deadline };
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
    assert_eq!(status, Status::no_quota(Resource::Fds, Scope::Domain, 81, status.pid.get()));
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
fn reclaim_when_what_a_client_was_asked_for_has_ended_then_it_is_asked_before_busier_ones() {
    let mut world = World::new(open_leases(3));
    let [id, ends] = [1, 2].map(|base| world.register(deposit(base)).id);
    let idle = [id, ends].map(|id| world.grant(USER, id));
    world.grant(OTHER, id);
    world.acquire(OWNER, &[Ok(id)], 60_000);
    assert_eq!(reclaimed(&mut world, USER), Some(idle.to_vec()));
    world.release(USER, idle[0]);
    // USER has been asked for all that it has left: another client is asked.
    world.acquire(OTHER, &[Ok(id)], 60_000);
    assert_eq!(reclaimed(&mut world, USER), None);
    let of_owner = reclaimed(&mut world, OWNER).expect("the next in the order");
    world.unregister(OWNER, ends);
    world.release(USER, idle[1]);
    world.release(OWNER, of_owner[0]);
    let lease = world.grant(USER, id);
    assert_eq!(world.unregister(OTHER, id).result(), Err(ErrorCode::NotPermitted), "it is busy");
    world.acquire(OWNER, &[Ok(id)], 60_000);
    assert_eq!(reclaimed(&mut world, OTHER), None);
    world.core.take_events(USER);
    assert_eq!(
        world.core.leases(0).filter(|view| view.asked).map(|view| view.id).collect::<Vec<_>>(),
        [lease]
    );
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
    world.step(Input::Mapped { client: USER, request: None, leases: &[idle] });
    let lease = world.grant(OTHER, id);
    let request = Some(world.request());
    world.step(Input::Mapped { client: OTHER, request, leases: &[lease] });
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
    let wish =
        Input::Register { client: USER, request, deposits: &[], credits_wanted: 1, deadline };
    world.step(wish);
    assert_eq!(world.state(held), AllocationState::Held, "what is being closed will be room");
    let domain = DomainKey { listener: 0, uid };
    world.step(Input::Slow { domain, slow: true });
    world.at(1);
    assert_eq!(world.state(held), AllocationState::Evicted, "unless its close takes long");
    world.unregister(slow, next);
    world.step(Input::Slow { domain, slow: false });
    world.close_all();
    assert_eq!(world.client(USER).credits, 1);
}

// --- caps changed at run time -------------------------------------------------------------------------

fn set_caps(world: &mut World, node: Caps) -> Vec<Effect> {
    let caps = CapsOfScopes { node, domain: Caps::NONE, job: Caps::NONE, client: Caps::NONE };
    world.step(Input::SetCaps { caps: &caps })
}

#[test]
fn set_caps_when_lowered_then_evicts_at_once_asks_for_leases_and_adds_nothing() {
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
fn set_caps_when_above_max_clients_then_the_cap_in_force_is_shown() {
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
fn set_caps_when_raised_then_who_waits_is_served() {
    let mut world = World::new(open_leases(1));
    let id = world.register(deposit(1)).id;
    world.grant(USER, id);
    let request = world.acquire(OTHER, &[Ok(id)], 1000);
    let effects = set_caps(&mut world, Caps { open_leases: 2, ..Caps::NONE });
    assert_eq!(answer(&world, &effects, request), Some(Status::OK));
}

#[test]
fn set_caps_when_resident_is_above_then_it_stays_until_its_owner_ends_it() {
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
    world.step(Input::Mapped { client: USER, request: None, leases: &[lease] });
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

#[test]
fn evict_when_the_node_is_short_of_fds_then_its_last_one_of_cuda_goes_last() {
    let cuda = |number| Deposit { kind: MemoryKind::CudaVmm, ..deposit(number) };
    let mut world = World::new(node_fds(3));
    let anchor = world.register(cuda(1)).id;
    let others: Vec<AllocationId> = (2..=7).map(|it| world.register(deposit(it)).id).collect();
    world.close_all();
    assert_eq!(world.state(anchor), AllocationState::Held, "six came after it");
    assert_eq!(world.state(others[3]), AllocationState::Evicted);

    // Another one: the order counts again.
    let next = world.register(cuda(8)).id;
    for number in 9..=10 {
        world.register(deposit(number));
        world.close_all();
    }
    assert_eq!(world.state(anchor), AllocationState::Evicted);
    assert_eq!(world.state(next), AllocationState::Held);
}

#[test]
fn evict_when_nothing_but_the_last_one_of_cuda_can_go_then_it_goes() {
    let cuda = |number| Deposit { kind: MemoryKind::CudaVmm, ..deposit(number) };
    let mut world = World::new(node_fds(1));
    let anchor = world.register(cuda(1)).id;
    world.register(deposit(2));
    world.close_all();
    assert_eq!(world.state(anchor), AllocationState::Evicted);

    let client = Caps { held_fds: 2, ..Caps::NONE };
    let mut world = World::new(Config { client, base_credits: 0, ..config() });
    let anchor = world.register(cuda(1)).id;
    for number in 2..=3 {
        world.register(deposit(number));
    }
    world.close_all();
    assert_eq!(world.state(anchor), AllocationState::Evicted, "its own client is full");
}
