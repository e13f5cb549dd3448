//! Groups in the making: begun, filled, sealed, given up.

use super::*;

#[test]
fn create_when_not_sealed_then_its_memory_is_charged_and_nobody_gets_it() {
    let mut world = World::new(config());
    let group = world.create(OWNER, &["a"]);
    assert!(world.fx.list.iter().any(|it| matches!(it, Effect::StoreArrived { index: 0, .. })));
    let held = world.client(OWNER).account.now(Resource::HeldBytes);
    assert_eq!((held, world.now_of(Resource::ObjectNames)), (SIZE, 1));
    let Got::Failed(status) = world.get(USER, &["a"]) else { panic!("it is not sealed") };
    assert_eq!((status.result(), status.pid.get()), (Err(ErrorCode::NotSealed), 4000));
    assert!(world.seal(OWNER, group).is_ok());
    assert_eq!(world.get(USER, &["a"]).grants().len(), 1);
}

#[test]
fn create_when_the_name_is_taken_then_exists_and_nothing_stays_of_it() {
    let mut world = World::new(config());
    world.create(OWNER, &["made"]);
    world.put(OWNER, &["sealed"]);
    let before = (world.now_of(Resource::HeldFds), world.now_of(Resource::ObjectNames));
    for name in ["made", "sealed"] {
        let objects = [object("other"), object(name)];
        let status = world.create_with(USER, &create(&objects)).expect_err("it is taken");
        assert_eq!(status, Status::with_value(ErrorCode::Exists, 1));
        let closed = |it: &Effect| matches!(it, Effect::CloseArrived { index: 0, .. });
        assert!(world.fx.list.iter().any(closed));
        world.close_all();
    }
    let after = (world.now_of(Resource::HeldFds), world.now_of(Resource::ObjectNames));
    assert_eq!((after, world.names(USER, "other")), (before, Vec::<String>::new()));
}

#[test]
fn create_when_an_object_is_not_within_the_memory_or_named_twice_then_protocol_at_its_index() {
    let mut world = World::new(config());
    let beyond = NewObject { offset: SIZE - 63, ..object("b") };
    let around = NewObject { offset: u64::MAX, ..object("b") };
    let long = [0; 4097];
    let wrong = [beyond, around, object("a"), object(""), object("x\0")];
    for wrong in wrong {
        let status = world.create_with(OWNER, &create(&[object("a"), wrong]));
        assert_eq!(status, Err(Status::with_value(ErrorCode::Protocol, 1)), "{wrong:?}");
    }
    let status = world.create_with(OWNER, &create(&[NewObject { metadata: &long, ..object("a") }]));
    assert_eq!(status, Err(Status::with_value(ErrorCode::TooLong, 0)));
    assert_eq!(world.now_of(Resource::ObjectNames), 0);
    let last = NewObject { offset: SIZE, size_bytes: 0, ..object("empty") };
    assert!(world.create_with(OWNER, &create(&[last])).is_ok());
}

#[test]
fn create_when_the_client_has_no_credit_then_protocol_and_its_fd_is_closed() {
    let mut world = World::new(Config { base_credits: 0, ..node_fds(1) });
    let status = world.create_with(OWNER, &create(&[object("a")]));
    assert_eq!(status.expect_err("no credit").result(), Err(ErrorCode::Protocol));
}

#[test]
fn add_when_the_group_is_full_sealed_or_anothers_then_refused_and_it_is_as_before() {
    let mut world = World::new(config());
    let group = world.create(OWNER, &["a"]);
    let names: Vec<String> = (0..253).map(|number| format!("n{number}")).collect();
    let objects: Vec<_> = names.iter().map(|name| object(name)).collect();
    let too_long = Status::with_value(ErrorCode::TooLong, 253);
    assert_eq!(world.add(OWNER, group, &objects), Err(too_long));
    assert_eq!(world.add(USER, group, &objects[..1]), Err(ErrorCode::Aborted.into()));
    let twice = [object("b"), object("b")];
    let status = world.add(OWNER, group, &twice);
    assert_eq!(status, Err(Status::with_value(ErrorCode::Protocol, 1)));
    assert_eq!(world.names(OWNER, ""), ["a"]);
    assert_eq!(world.add(OWNER, group, &objects[..252]), Ok(()));
    assert_eq!(world.now_of(Resource::ObjectNames), 253);
    world.seal(OWNER, group).expect("sealed");
    assert_eq!(world.add(OWNER, group, &objects[252..]), Err(ErrorCode::Sealed.into()));
}

#[test]
fn seal_when_the_daemon_found_it_busy_then_so_it_says_and_a_later_one_may_be_good() {
    let mut world = World::new(config());
    let group = world.create(OWNER, &["a"]);
    let busy = Status::from(ErrorCode::SealedBusy);
    assert_eq!(world.seal_checked(OWNER, group, Err(busy)), Err(busy));
    assert_eq!(world.get(USER, &["a"]).error(), ErrorCode::NotSealed);
    assert!(world.seal(OWNER, group).is_ok());
    assert_eq!(world.seal(OWNER, group), Err(ErrorCode::Sealed.into()));
}

#[test]
fn seal_when_a_group_has_many_names_then_all_appear_in_one_step() {
    let mut world = World::new(config());
    let group = world.create(OWNER, &["a", "b", "c"]);
    assert_eq!(world.get(USER, &["a"]).error(), ErrorCode::NotSealed);
    let version = world.seal(OWNER, group).expect("sealed");
    let got = world.get(USER, &["c", "a", "b", "a"]);
    assert_eq!((got.versions(), got.grants().len()), (vec![version; 4], 1));
}

#[test]
fn abort_when_in_the_making_then_nothing_stays_and_the_name_is_free() {
    let mut world = World::new(config());
    let group = world.create(OWNER, &["a", "b"]);
    assert_eq!(world.abort(USER, group), ErrorCode::Aborted.into());
    assert_eq!(world.abort(OWNER, group), Status::OK);
    world.settle();
    world.close_all();
    let nothing = [Resource::ObjectNames, Resource::HeldFds, Resource::Allocations];
    assert_eq!(nothing.map(|it| world.client(OWNER).account.now(it)), [0; 3]);
    assert_eq!(world.core.take_events(OWNER), None);
    assert_eq!(world.abort(OWNER, group), ErrorCode::Aborted.into());
    assert_eq!(world.seal(OWNER, group), Err(ErrorCode::Aborted.into()));
    assert_eq!(world.get(USER, &["a"]).error(), ErrorCode::NotFound);
    world.put(USER, &["a"]);
    let sealed = world.create(USER, &["c"]);
    world.seal(USER, sealed).expect("sealed");
    assert_eq!(world.abort(USER, sealed), ErrorCode::Sealed.into());
}
