//! What a version has from those that it replaces: how long it lasts, and whether it is pinned.

use super::*;
use fdbroker_core::Touch;
use fdbroker_protocol::object::ObjectEvent;

const SAYS_NOTHING: Inherits = Inherits { keep: true, pin: true };

fn replacing<'a>(objects: &'a [NewObject<'a>]) -> Create<'a> {
    Create { replace: true, inherits: SAYS_NOTHING, ..create(objects) }
}

fn kept<'a>(objects: &'a [NewObject<'a>], ms: u64) -> Create<'a> {
    Create { keep_us: Some(ms * MS), ..create(objects) }
}

impl World {
    fn put_by(&mut self, client: ClientId, create: &Create<'_>) -> u64 {
        let group = self.create_with(client, create).expect("begun");
        self.seal(client, group).expect("sealed")
    }

    /// The maker ends; how long the name lasts from now on, in ms, and whether it is pinned.
    /// `None`: it is gone.
    fn after_its_maker(&mut self, maker: ClientId, name: &str) -> Option<(Option<u64>, bool)> {
        self.step(Input::Gone { client: maker });
        self.settle();
        self.close_all();
        let view = self.core.object_for(USER, false, name.as_bytes()).expect("a domain")?;
        let left = view.until.map(|until| (until.0 - self.now.0) / MS);
        Some((left, view.is_pinned))
    }

    fn pin(&mut self, name: &str) {
        let (request, names) = (self.request(), &[name.as_bytes()][..]);
        let touch = &Touch { of_job: false, keep_us: None, pin: Some(true), names };
        self.step(Body::TouchObjects { touch }.by(USER, request));
        assert_eq!(self.fx.statuses, [Status::OK]);
    }
}

#[test]
fn seal_when_it_replaces_and_says_nothing_then_it_lasts_as_the_version_before() {
    let objects = [object("a")];
    let pinned = Create { pin: true, ..create(&objects) };
    for (first, lasts) in [
        (kept(&objects, 100), Some((Some(100), false))),
        (pinned, Some((None, true))),
        (Create { pin: true, ..kept(&objects, 100) }, Some((None, true))),
        (create(&objects), None),
    ] {
        let mut world = World::new(config());
        world.put_by(OWNER, &first);
        world.at(50);
        world.put_by(OTHER, &replacing(&objects));
        assert_eq!(world.after_its_maker(OTHER, "a"), lasts, "{first:?}");
    }
}

#[test]
fn seal_when_it_says_how_long_it_lasts_then_that_counts_and_the_rest_is_inherited() {
    let objects = [object("a")];
    let no_keep = Inherits { keep: false, pin: true };
    let no_pin = Inherits { keep: true, pin: false };
    let neither = Inherits::default();
    let say = |inherits| Create { inherits, ..replacing(&objects) };
    let says_time = Create { keep_us: Some(7 * MS), ..say(no_keep) };
    for (second, lasts) in [
        (says_time, Some((None, true))),
        (Create { inherits: neither, ..says_time }, Some((Some(7), false))),
        (say(no_keep), Some((None, true))),
        (say(no_pin), Some((Some(100), false))),
        (Create { outlives: true, ..say(no_pin) }, Some((Some(100), false))),
        (say(neither), None),
        (Create { outlives: true, ..say(neither) }, Some((Some(86_400_000), false))),
    ] {
        let mut world = World::new(Config { object_ttl_us: 86_400_000 * MS, ..config() });
        world.put_by(OWNER, &Create { pin: true, ..kept(&objects, 100) });
        world.put_by(OTHER, &second);
        assert_eq!(world.after_its_maker(OTHER, "a"), lasts, "{second:?}");
    }
}

#[test]
fn seal_when_the_version_changed_since_the_create_then_the_one_replaced_counts() {
    let objects = [object("a")];
    // A pin, and another version, come between create and seal.
    let mut world = World::new(config());
    world.put_by(OWNER, &kept(&objects, 100));
    let [late, later] =
        [OTHER, USER].map(|it| world.create_with(it, &replacing(&objects)).expect("begun"));
    world.pin("a");
    world.seal(OTHER, late).expect("sealed");
    world.seal(USER, later).expect("sealed");
    world.step(Input::Gone { client: OTHER });
    let view = world.core.object_for(USER, false, b"a").expect("a domain").expect("it is there");
    assert!(view.is_pinned);
    // What was there at the create is not there at the seal.
    let mut world = World::new(config());
    world.put_by(OWNER, &Create { pin: true, ..create(&objects) });
    let late = world.create_with(OTHER, &replacing(&objects)).expect("begun");
    world.delete(USER, "a", 0);
    world.seal(OTHER, late).expect("sealed");
    assert_eq!(world.after_its_maker(OTHER, "a"), None);
}

#[test]
fn seal_when_its_names_lasted_differently_then_the_group_has_the_longest_time_and_any_pin() {
    let [a, b, c] = [[object("a")], [object("b")], [object("c")]];
    let all = [object("a"), object("b"), object("c"), object("new")];
    let mut world = World::new(config());
    world.put_by(OWNER, &kept(&a, 100));
    world.put_by(OWNER, &kept(&b, 300));
    world.put_by(OWNER, &create(&c));
    world.put_by(OTHER, &replacing(&all));
    assert_eq!(world.after_its_maker(OTHER, "new"), Some((Some(300), false)));
    world.pin("a");
    let parts = [object("b"), object("d")];
    world.put_by(OWNER, &replacing(&parts));
    assert_eq!(world.after_its_maker(OWNER, "d"), Some((None, true)));
}

#[test]
fn seal_when_a_version_is_expected_then_it_is_inherited_from_like_a_replaced_one() {
    let mut world = World::new(config());
    let version = world.put_by(OWNER, &kept(&[object("a")], 100));
    let expecting = [NewObject { expect: Some(version), ..object("a") }];
    world.put_by(OTHER, &Create { replace: false, ..replacing(&expecting) });
    assert_eq!(world.after_its_maker(OTHER, "a"), Some((Some(100), false)));
}

#[test]
fn seal_when_what_it_inherits_is_too_much_then_the_cap_says_so_and_the_old_version_stays() {
    let objects = [object("a")];
    let pinned = Create { pin: true, ..create(&objects) };
    for (caps, first, said) in [
        (
            Caps { permanent_bytes: SIZE, ..Caps::NONE },
            pinned,
            "new version inherits the pin: make it without",
        ),
        (
            Caps { kept_bytes: SIZE, ..Caps::NONE },
            kept(&objects, 100),
            "new version inherits that: make it without",
        ),
    ] {
        let mut world = World::new(Config { domain: caps, ..config() });
        let version = world.put_by(OWNER, &first);
        let group = world.create_with(OTHER, &replacing(&objects)).expect("begun");
        let refused = world.seal(OTHER, group).expect_err("two do not fit");
        assert_eq!(refused.result(), Err(ErrorCode::NoQuota));
        assert!(refused.to_string().contains(said), "{refused}");
        assert_eq!(world.get(USER, &["a"]).versions(), [version]);
        let asked = Create { replace: true, ..first };
        let group = world.create_with(OTHER, &asked).expect("begun");
        let refused = world.seal(OTHER, group).expect_err("two do not fit").to_string();
        assert!(!refused.contains("inherits"), "{refused}");
    }
}

#[test]
fn abort_when_a_seal_has_found_others_under_its_names_then_watchers_hear_nothing() {
    let mut world = World::new(config());
    let version = world.put(OWNER, &["a"]);
    assert_eq!(world.watch(USER, ""), Status::OK);
    let expecting = [NewObject { expect: Some(version + 7), ..object("a") }, object("b")];
    let group = world.create_with(OTHER, &create(&expecting)).expect("begun");
    world.seal(OTHER, group).expect_err("another version");
    // Neither if its maker gives it up, nor if that ends.
    let other = world.create_with(OTHER, &create(&expecting[..1])).expect("begun");
    world.seal(OTHER, other).expect_err("another version");
    world.abort(OTHER, group);
    world.step(Input::Gone { client: OTHER });
    world.settle();
    assert_eq!(world.news(USER), []);
    let given_up = world.create(OWNER, &["c"]);
    world.abort(OWNER, given_up);
    assert_eq!(world.news(USER), [(ObjectEvent::Aborted, 0, "c".to_owned())]);
}
