//! Groups in the making: what is refused.

use super::*;

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
fn create_when_too_many_make_one_name_then_again() {
    let mut world = World::new(config());
    let objects = [object("a")];
    let replacing = Create { replace: true, ..create(&objects) };
    for _ in 0..limits::MAKERS_PER_NAME {
        world.create_with(OWNER, &replacing).expect("begun");
    }
    let status = world.create_with(OWNER, &replacing);
    assert_eq!(status.expect_err("too many").result(), Err(ErrorCode::Again));
}
