//! Ends of objects: a large creator's death, an administrator's revoke; and lists of what is there.

use super::*;

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
    let states: Vec<_> = behind.map(|view| (view.state, view.group.version())).collect();
    assert_eq!(states, [(ObjectState::Sealed, 1), (ObjectState::Making, 0)]);
}
