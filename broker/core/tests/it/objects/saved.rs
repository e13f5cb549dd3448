//! Objects over a planned restart.

use super::*;

impl World {
    fn go_on(&mut self) {
        self.fx.clear();
        self.core.settle_parked(self.now, &mut self.fx);
        let saved = self.core.save();
        let json = serde_json::to_string(&saved).expect("plain data");
        let read: Saved = serde_json::from_str(&json).expect("plain data");
        let core = Core::restore(config(), read, self.now).expect("sound");
        assert_eq!(core.save(), saved);
        self.core = core;
        self.core.check_invariants();
    }
}

#[test]
fn restore_when_there_were_objects_then_names_versions_and_makers_go_on() {
    let mut world = World::new(config());
    let metadata = [NewObject { metadata: b"shape", ..object("a") }, object("b")];
    let keep_us = Some(100 * MS);
    let kept = Create { keep_us, ..create(&metadata) };
    let group = world.create_with(OWNER, &kept).expect("begun");
    let version = world.seal(OWNER, group).expect("sealed");
    world.delete(OWNER, "b", 0);
    world.put(OWNER, &["c"]);
    let made = world.create(USER, &["d"]);
    let got = world.get(USER, &["a"]);
    world.go_on();
    assert_eq!(world.names(USER, ""), ["a", "c", "d"]);
    let again = world.get(USER, &["a"]);
    assert_eq!(
        (again.versions(), again.grants()[0].wanted),
        (vec![version], got.grants()[0].wanted)
    );
    assert_eq!(world.seal(USER, made), Ok(version + 2));
    for lease in [&got, &again].map(|got| got.grants()[0].lease) {
        world.release(USER, lease);
    }
    world.at(100);
    world.settle();
    assert_eq!(world.names(USER, ""), ["c", "d"]);
}

#[test]
fn settle_parked_when_a_get_waits_then_again() {
    let mut world = World::new(config());
    let (request, _) = world.ask(USER, &["a"], 100);
    world.go_on();
    assert_eq!(world.got(&world.fx.list, request), Got::Failed(ErrorCode::Again.into()));
}

#[test]
fn restore_when_the_data_contradicts_itself_then_refused() {
    let mut world = World::new(config());
    world.put(OWNER, &["a", "b"]);
    world.core.settle_parked(world.now, &mut world.fx);
    let good = serde_json::to_value(world.core.save()).expect("plain data");
    let restore = |value: serde_json::Value| {
        let saved: Saved = serde_json::from_value(value).expect("the same shape");
        Core::restore(config(), saved, world.now).map(|_| ())
    };
    assert_eq!(restore(good.clone()), Ok(()));
    let group = "/objects/groups/entries/0/content/Full";
    let changes = [
        ("/objects/version", serde_json::json!(0)),
        (&*format!("{group}/allocation"), serde_json::json!(7)),
        (&*format!("{group}/names"), serde_json::json!(1)),
        (&*format!("{group}/size_bytes"), serde_json::json!(1)),
        (
            &*format!("{group}/state"),
            serde_json::json!({"Ended": {"version": 1, "is_evicted": false}}),
        ),
        (&*format!("{group}/members/1/name"), serde_json::json!([97])),
        (&*format!("{group}/members/1/name"), serde_json::json!([])),
        (&*format!("{group}/is_kept"), serde_json::json!(true)),
        (&*format!("{group}/domain"), serde_json::json!(1)),
    ];
    for (path, value) in changes {
        let mut broken = good.clone();
        *broken.pointer_mut(path).unwrap_or_else(|| panic!("{path} in {good}")) = value;
        assert!(restore(broken).is_err(), "{path}");
    }
}
