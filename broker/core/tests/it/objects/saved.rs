//! Saved objects that cannot be.

use super::*;

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
