//! Gets: resolved in one moment, granted whole, or waiting.

use super::*;
use fdbroker_core::limits::OBJECT_RECORD_BYTES;

/// What a domain is charged with for an object with a name of one byte.
const NAME: u64 = OBJECT_RECORD_BYTES + 1;

fn one_lease() -> Config {
    Config { client: Caps { open_leases: 1, ..Caps::NONE }, ..config() }
}

#[test]
fn get_when_sealed_then_place_metadata_and_one_grant_for_the_group() {
    let mut world = World::new(config());
    let objects =
        [object("a"), NewObject { offset: 64, size_bytes: 128, metadata: b"shape", ..object("b") }];
    let group = world.create_with(OWNER, &create(&objects)).expect("begun");
    let version = world.seal(OWNER, group).expect("sealed");
    let Got::Objects(got, grants) = world.get(USER, &["b"]) else { panic!("it is there") };
    let place = (got[0].version, got[0].offset, got[0].size_bytes, got[0].metadata_len);
    assert_eq!((place, got[0].grant, grants.len()), ((version, 64, 128, 5), 0, 1));
    assert_eq!(world.core.metadata_of(&got[0]), b"shape");
    assert_eq!((grants[0].facts.size_bytes, grants[0].status), (SIZE, Status::OK));
    assert_eq!(world.client(USER).account.now(Resource::OpenLeases), 1);
    assert!(world.release(USER, grants[0].lease).is_ok());
}

#[test]
fn get_when_several_groups_and_one_name_is_missing_then_nothing_is_granted() {
    let mut world = World::new(config());
    world.put(OWNER, &["a"]);
    world.put(OWNER, &["b"]);
    let got = world.get(USER, &["b", "a", "b"]);
    assert_eq!((got.grants().len(), got.versions()), (2, vec![2, 1, 2]));
    let Got::Failed(status) = world.get(OTHER, &["a", "c", "d"]) else { panic!("c is missing") };
    assert_eq!(status, Status::with_value(ErrorCode::NotFound, 1));
    assert_eq!(world.client(OTHER).account.now(Resource::OpenLeases), 0);
}

#[test]
fn get_when_it_waits_and_the_last_name_is_sealed_then_granted_in_that_step() {
    let mut world = World::new(config());
    world.put(OWNER, &["a"]);
    let (request, got) = world.ask(USER, &["a", "b", "c"], 100);
    assert_eq!(got, Got::Waits);
    assert_eq!(world.now_of(Resource::MetadataBytes), NAME + 3);
    world.put(OWNER, &["c"]);
    assert_eq!(world.got(&world.fx.list, request), Got::Waits);
    world.put(OWNER, &["b"]);
    assert_eq!(world.got(&world.fx.list, request).grants().len(), 3);
    let left = [Resource::MetadataBytes, Resource::ParkedRequests, Resource::ParkedItems];
    assert_eq!(left.map(|it| world.now_of(it)), [3 * NAME, 0, 0]);
}

#[test]
fn get_when_the_maker_aborts_then_it_waits_on_and_takes_what_another_seals() {
    let mut world = World::new(config());
    let group = world.create(OWNER, &["a"]);
    let (request, _) = world.ask(USER, &["a"], 100);
    world.abort(OWNER, group);
    world.settle();
    assert_eq!(world.got(&world.fx.list, request), Got::Waits);
    world.put(OTHER, &["a"]);
    assert_eq!(world.got(&world.fx.list, request).grants().len(), 1);
}

#[test]
fn get_when_its_deadline_passes_then_timed_out_says_who_makes_it() {
    let mut world = World::new(config());
    world.put(OWNER, &["there"]);
    let (unknown, _) = world.ask(USER, &["there", "a"], 10);
    let (made, _) = world.ask(USER, &["there", "b"], 20);
    world.create(OTHER, &["b"]);
    let effects = world.at(10);
    let timed_out = Status::with_value(ErrorCode::TimedOut, 1);
    assert_eq!(world.got(&effects, unknown), Got::Failed(timed_out));
    let effects = world.at(20);
    let by_other = Status { pid: 4002.into(), ..timed_out };
    assert_eq!(world.got(&effects, made), Got::Failed(by_other));
}

#[test]
fn get_when_cancelled_then_cancelled_and_nothing_stays() {
    let mut world = World::new(config());
    let (request, _) = world.ask(USER, &["a"], 100);
    let effects = world.step(Body::Cancel.by(USER, request));
    assert_eq!(world.got(&effects, request), Got::Failed(ErrorCode::Cancelled.into()));
    assert_eq!(world.now_of(Resource::MetadataBytes), 0);
}

#[test]
fn get_when_no_lease_is_free_then_it_waits_in_line_and_its_error_is_the_cap() {
    let mut world = World::new(one_lease());
    world.put(OWNER, &["a"]);
    let first = world.get(USER, &["a"]);
    let no_quota = Status::no_quota(Resource::OpenLeases, Scope::Client, 1, 4001);
    assert_eq!(world.get(USER, &["a"]), Got::Failed(no_quota));
    let (waits, _) = world.ask(USER, &["a"], 10);
    let (late, _) = world.ask(USER, &["a"], 20);
    let effects = world.at(10);
    assert_eq!(world.got(&effects, waits), Got::Failed(no_quota));
    world.release(USER, first.grants()[0].lease);
    assert_eq!(world.got(&world.fx.list, late).grants().len(), 1);
}

#[test]
fn get_when_two_groups_are_wanted_and_one_lease_is_free_then_none_is_granted() {
    let mut world = World::new(one_lease());
    world.put(OWNER, &["a"]);
    world.put(OWNER, &["b"]);
    let (request, got) = world.ask(USER, &["a", "b"], 10);
    assert_eq!((got, world.client(USER).account.now(Resource::OpenLeases)), (Got::Waits, 0));
    // It holds up no other.
    assert_eq!(world.get(USER, &["a"]).grants().len(), 1);
    let effects = world.at(10);
    let no_quota = Status::no_quota(Resource::OpenLeases, Scope::Client, 1, 4001);
    assert_eq!(world.got(&effects, request), Got::Failed(no_quota));
}

#[test]
fn get_when_short_of_leases_and_a_replacement_merges_its_names_then_granted_in_that_step() {
    let mut world = World::new(one_lease());
    world.put(OWNER, &["a"]);
    world.put(OWNER, &["b"]);
    let (request, got) = world.ask(USER, &["a", "b", "a"], 100);
    assert_eq!(got, Got::Waits);
    let objects = [object("b"), object("a")];
    let replacing = Create { replace: true, ..create(&objects) };
    let group = world.create_with(OTHER, &replacing).expect("begun");
    let version = world.seal(OTHER, group).expect("sealed");
    let got = world.got(&world.fx.list, request);
    assert_eq!((got.grants().len(), got.versions()), (1, vec![version; 3]));
}

#[test]
fn get_when_short_of_leases_and_half_of_its_names_are_replaced_then_it_waits_on() {
    let mut world = World::new(one_lease());
    world.put(OWNER, &["a"]);
    world.put(OWNER, &["b"]);
    let (request, _) = world.ask(USER, &["a", "b"], 100);
    let objects = [object("a")];
    let replacing = Create { replace: true, ..create(&objects) };
    let group = world.create_with(OTHER, &replacing).expect("begun");
    world.seal(OTHER, group).expect("sealed");
    world.settle();
    assert_eq!(world.got(&world.fx.list, request), Got::Waits);
    assert_eq!(world.now_of(Resource::MetadataBytes), 2 * NAME + 2);
    world.step(Body::Cancel.by(USER, request));
    assert_eq!(world.now_of(Resource::MetadataBytes), 2 * NAME);
}

#[test]
fn get_when_the_client_does_not_read_then_it_waits_until_it_does() {
    let mut world = World::new(config());
    world.put(OWNER, &["a"]);
    world.step(Input::Sendable { client: USER, sendable: false });
    let (request, got) = world.ask(USER, &["a"], 100);
    assert_eq!(got, Got::Waits);
    let effects = world.step(Input::Sendable { client: USER, sendable: true });
    assert_eq!(world.got(&effects, request).grants().len(), 1);
}

#[test]
fn get_when_the_name_is_of_another_domain_or_of_a_job_then_not_found() {
    let mut world = World::new(config());
    world.put(OWNER, &["a"]);
    let stranger = ClientId(5);
    world.connect(stranger, 2000);
    assert_eq!(world.get(stranger, &["a"]).error(), ErrorCode::NotFound);
    let (request, deadline, of_job) = (world.request(), Now(0), true);
    let names = &[&b"a"[..]][..];
    let effects = world.step(Body::GetObjects { of_job, names, deadline }.by(USER, request));
    assert_eq!(world.got(&effects, request).error(), ErrorCode::NotSupported);
}

#[test]
fn get_when_more_groups_are_wanted_than_an_answer_may_have_then_again_says_how_many() {
    let mut world = World::new(config());
    world.put(OWNER, &["a"]);
    world.put(OWNER, &["b"]);
    world.step(Input::MostGranted { fds: 1 });
    let again = Status::with_value(ErrorCode::Again, 1);
    assert_eq!(world.get(USER, &["a", "b"]), Got::Failed(again));
    assert_eq!(world.get(USER, &["a"]).grants().len(), 1);
}

#[test]
fn get_when_many_wait_for_one_name_then_all_are_served_in_portions() {
    let mut world = World::new(Config { max_parked_per_client: 4096, ..config() });
    let waits: Vec<RequestId> = (0..500).map(|_| world.ask(USER, &["a"], 100).0).collect();
    world.put(OWNER, &["a"]);
    let mut served = world.fx.objects.len();
    assert!(served > 0 && served < waits.len(), "{served} in one step");
    while world.core.poll_timeout() == Some(Now(0)) {
        world.at(0);
        served += world.fx.objects.len();
    }
    assert_eq!(served, waits.len());
}
