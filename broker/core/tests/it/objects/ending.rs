//! Ends of objects: delete, the creator's death, an administrator's revoke; and lists of what is
//! there.

use super::*;

#[test]
fn delete_when_leased_then_the_name_goes_at_once_and_the_memory_with_the_last_lease() {
    let mut world = World::new(config());
    let version = world.put(OWNER, &["a"]);
    let got = world.get(USER, &["a"]);
    let lease = got.grants()[0].lease;
    let other = Status::with_value(ErrorCode::Version, version);
    assert_eq!(world.delete(USER, "a", version + 1), other);
    assert_eq!(world.delete(USER, "a", version), Status::OK);
    assert_eq!(world.get(OTHER, &["a"]).error(), ErrorCode::NotFound);
    assert_eq!(world.delete(USER, "a", 0), ErrorCode::NotFound.into());
    assert_eq!(world.now_of(Resource::ObjectNames), 0);
    assert_eq!(world.client(USER).account.now(Resource::PinnedBytes), SIZE);
    world.release(USER, lease);
    world.close_all();
    let left = [Resource::PinnedBytes, Resource::Allocations, Resource::HeldFds];
    assert_eq!(left.map(|it| world.now_of(it)), [0; 3]);
    assert_eq!(world.core.take_events(OWNER), None);
}

#[test]
fn delete_when_other_names_are_left_then_the_memory_stays_until_the_last() {
    let mut world = World::new(config());
    world.put(OWNER, &["a", "b"]);
    assert_eq!(world.delete(USER, "a", 0), Status::OK);
    assert_eq!(world.names(USER, ""), ["b"]);
    let view = world.core.object_for(USER, false, b"b").expect("a domain").expect("it is there");
    assert_eq!((view.group_names, view.group_bytes), (1, SIZE));
    assert_eq!(world.get(USER, &["b"]).grants().len(), 1);
}

#[test]
fn delete_when_in_the_making_then_not_sealed_and_it_stays() {
    let mut world = World::new(config());
    let group = world.create(OWNER, &["a"]);
    assert_eq!(world.delete(USER, "a", 0).result(), Err(ErrorCode::NotSealed));
    assert!(world.seal(OWNER, group).is_ok());
}

#[test]
fn gone_when_the_creator_dies_then_its_objects_are_unknown_at_once_and_holders_are_told() {
    let mut world = World::new(config());
    world.put(OWNER, &["sealed"]);
    world.create(OWNER, &["made"]);
    let got = world.get(USER, &["sealed"]);
    let (lease, id) = (got.grants()[0].lease, got.grants()[0].wanted.expect("granted"));
    world.step(Input::Gone { client: OWNER });
    for name in ["sealed", "made"] {
        assert_eq!(world.get(USER, &[name]).error(), ErrorCode::NotFound);
    }
    assert_eq!(world.names(USER, ""), Vec::<String>::new());
    world.settle();
    let told = RevokedEvent { id, lease, code: ErrorCode::OwnerGone };
    assert_eq!(world.core.take_events(USER), Some(Events::Revoked(vec![told])));
    assert_eq!(world.now_of(Resource::ObjectNames), 0);
    // Another may have the name meanwhile.
    world.put(OTHER, &["sealed"]);
}

#[test]
fn gone_when_the_creator_has_many_groups_of_many_names_then_they_go_in_portions() {
    let mut world = World::new(Config { max_slots: 4096, ..config() });
    let names: Vec<String> = (0..40 * 50).map(|number| format!("n{number:04}")).collect();
    for chunk in names.chunks(50) {
        let names: Vec<&str> = chunk.iter().map(String::as_str).collect();
        world.put(OWNER, &names);
    }
    world.step(Input::Gone { client: OWNER });
    let left = world.now_of(Resource::ObjectNames);
    assert!(left > 1000, "{left} names left after the first step");
    assert_eq!(world.names(USER, ""), Vec::<String>::new());
    world.settle();
    assert_eq!(world.now_of(Resource::ObjectNames), 0);
}

#[test]
fn revoke_when_it_is_an_objects_memory_then_all_names_of_the_group_go() {
    let mut world = World::new(config());
    world.put(OWNER, &["a", "b"]);
    let got = world.get(USER, &["a"]);
    let id = got.grants()[0].wanted.expect("granted");
    world.step(Input::Revoke { ids: &[id] });
    assert_eq!(world.get(OTHER, &["b"]).error(), ErrorCode::NotFound);
    world.settle();
    assert_eq!(world.now_of(Resource::ObjectNames), 0);
}

#[test]
fn list_when_names_have_a_prefix_then_in_order_from_the_cursor_on_those_in_the_making_too() {
    let mut world = World::new(config());
    world.put(OWNER, &["b/2", "a/1", "b/1"]);
    world.create(OWNER, &["b/3", "c"]);
    assert_eq!(world.names(USER, ""), ["a/1", "b/1", "b/2", "b/3", "c"]);
    assert_eq!(world.names(USER, "b/"), ["b/1", "b/2", "b/3"]);
    let behind = world.core.names_for(USER, false, b"b/", b"b/1").expect("a domain");
    let behind = behind.filter_map(|(_, view)| view);
    let states: Vec<_> = behind.map(|view| (view.state, view.version)).collect();
    assert_eq!(states, [(ObjectState::Sealed, 1), (ObjectState::Making, 0)]);
    let all = world.core.objects_of_domain(DomainKey { listener: 0, uid: 1000 }, b"", b"b/2");
    assert_eq!(all.map(|view| view.creator_pid).collect::<Vec<_>>(), [4000, 4000]);
    let nobodys = world.core.objects_of_domain(DomainKey { listener: 1, uid: 1000 }, b"", b"");
    assert_eq!(nobodys.count(), 0);
}
