//! Versions, and one object in the place of another.

use super::*;

fn replacing<'a>(objects: &'a [NewObject<'a>]) -> Create<'a> {
    Create { replace: true, ..create(objects) }
}

#[test]
fn seal_when_it_replaces_then_readers_of_the_old_keep_theirs_and_new_ones_get_the_new() {
    let mut world = World::new(config());
    let old = world.put(OWNER, &["a"]);
    let before = world.get(USER, &["a"]);
    let group = world.create_with(OTHER, &replacing(&[object("a")])).expect("begun");
    assert_eq!(world.get(USER, &["a"]).versions(), [old]);
    let new = world.seal(OTHER, group).expect("sealed");
    assert!(new > old);
    let after = world.get(USER, &["a"]);
    assert_eq!(after.versions(), [new]);
    assert_ne!(after.grants()[0].wanted, before.grants()[0].wanted);
    // The old memory has ended, and its lease is good until it is given back.
    assert!(world.release(USER, before.grants()[0].lease).is_ok());
    assert_eq!(world.now_of(Resource::ObjectNames), 1);
}

#[test]
fn seal_when_a_member_of_a_group_is_replaced_then_the_others_keep_their_version() {
    let mut world = World::new(config());
    let old = world.put(OWNER, &["a", "b"]);
    let group = world.create_with(OTHER, &replacing(&[object("b"), object("c")])).expect("begun");
    let new = world.seal(OTHER, group).expect("sealed");
    let got = world.get(USER, &["a", "b", "c"]);
    assert_eq!((got.versions(), got.grants().len()), (vec![old, new, new], 2));
}

#[test]
fn seal_when_two_replace_then_the_last_wins_and_versions_grow() {
    let mut world = World::new(config());
    let [first, second] = [OWNER, OTHER]
        .map(|client| world.create_with(client, &replacing(&[object("a")])).expect("begun"));
    let versions = [(OTHER, second), (OWNER, first)]
        .map(|(client, group)| world.seal(client, group).expect("sealed"));
    assert!(versions[0] < versions[1]);
    assert_eq!(world.get(USER, &["a"]).versions(), [versions[1]]);
}

#[test]
fn seal_when_another_came_to_the_name_then_exists_and_the_group_is_as_before() {
    let mut world = World::new(config());
    let group = world.create(OWNER, &["free", "a"]);
    let other = world.create_with(OTHER, &replacing(&[object("a")])).expect("begun");
    let version = world.seal(OTHER, other).expect("sealed");
    assert_eq!(world.seal(OWNER, group), Err(Status::with_value(ErrorCode::Exists, 1)));
    assert_eq!(world.get(USER, &["free"]).error(), ErrorCode::NotSealed);
    assert_eq!(world.delete(USER, "a", version), Status::OK);
    assert!(world.seal(OWNER, group).is_ok());
}

#[test]
fn seal_when_another_version_was_expected_then_version_says_the_one_there() {
    let mut world = World::new(config());
    let old = world.put(OWNER, &["a"]);
    let expecting = |version| NewObject { expect: Some(version), ..object("a") };
    for (expected, result) in
        [(old + 7, Err(Status::with_value(ErrorCode::Version, old))), (old, Ok(old + 1))]
    {
        let group = world.create_with(OTHER, &create(&[expecting(expected)])).expect("begun");
        assert_eq!(world.seal(OTHER, group), result);
        world.abort(OTHER, group);
    }
    let group = world.create_with(OTHER, &create(&[expecting(0)])).expect("begun");
    let there = Status::with_value(ErrorCode::Version, old + 1);
    assert_eq!(world.seal(OTHER, group), Err(there));
    world.delete(OTHER, "a", 0);
    assert!(world.seal(OTHER, group).is_ok());
}

#[test]
fn create_when_too_many_make_one_name_then_again() {
    let mut world = World::new(config());
    for _ in 0..limits::MAKERS_PER_NAME {
        world.create_with(OWNER, &replacing(&[object("a")])).expect("begun");
    }
    let status = world.create_with(OWNER, &replacing(&[object("a")]));
    assert_eq!(status.expect_err("too many").result(), Err(ErrorCode::Again));
}
