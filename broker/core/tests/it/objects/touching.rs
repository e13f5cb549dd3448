//! Touches: a use of a group, and what keeps it from then on.

use super::*;
use fdbroker_core::{Body, KeptChange, Touch};

const TOUCH: Touch<'static> = Touch { of_job: false, keep_us: None, pin: None, names: &[b"a"] };

impl World {
    fn touch(&mut self, client: ClientId, touch: &Touch<'_>) -> Status {
        let request = self.request();
        self.step(Body::TouchObjects { touch }.by(client, request));
        assert_eq!(self.fx.statuses.len(), touch.names.len());
        self.fx.statuses[0]
    }
}

#[test]
fn touch_when_the_group_is_kept_then_its_time_begins_again() {
    let mut world = World::new(config());
    let objects = [object("a")];
    let kept = Create { keep_us: Some(100 * MS), ..create(&objects) };
    let group = world.create_with(OWNER, &kept).expect("begun");
    world.seal(OWNER, group).expect("sealed");
    world.at(60);
    assert_eq!(world.touch(USER, &TOUCH), Status::OK);
    assert_eq!(world.fx.kept, [KeptChange::Changed(group)]);
    world.at(159);
    assert_eq!(world.names(USER, ""), ["a"]);
    world.at(160);
    world.settle();
    assert_eq!(world.names(USER, ""), Vec::<String>::new());
}

#[test]
fn touch_when_it_keeps_then_the_domain_is_charged_and_it_outlives_its_creator() {
    let mut world = World::new(config());
    let version = world.put(OWNER, &["a", "b"]);
    let touch = Touch { keep_us: Some(100 * MS), ..TOUCH };
    assert_eq!(world.core.groups_to_keep(USER, &touch).len(), 1);
    assert_eq!(world.touch(USER, &touch), Status::OK);
    assert!(matches!(world.fx.kept[..], [KeptChange::Began(_)]));
    assert!(world.core.groups_to_keep(USER, &touch).is_empty(), "it is kept");
    let kept = [Resource::KeptBytes, Resource::KeptFds, Resource::PermanentBytes];
    assert_eq!(kept.map(|it| world.now_of(it)), [SIZE, 1, 0]);
    world.step(Input::Gone { client: OWNER });
    world.settle();
    assert_eq!(world.get(USER, &["a", "b"]).versions(), [version; 2]);
}

#[test]
fn touch_when_the_creator_is_gone_then_who_keeps_it_is_the_creator() {
    let mut world = World::new(config());
    let kept = [object("a")];
    let kept = Create { keep_us: Some(100 * MS), ..create(&kept) };
    let group = world.create_with(OWNER, &kept).expect("begun");
    world.seal(OWNER, group).expect("sealed");
    world.step(Input::Gone { client: OWNER });
    world.settle();
    let touch = Touch { keep_us: Some(200 * MS), ..TOUCH };
    assert_eq!(world.touch(USER, &touch), Status::OK);
    let pid = world.client(USER).pid;
    let view = world.core.object_for(USER, false, b"a").expect("a domain").expect("it is there");
    assert_eq!((view.creator_pid, view.is_creator_gone), (pid, false));
}

#[test]
fn touch_when_pinned_and_unpinned_then_the_charge_follows_and_its_time_begins() {
    let mut world = World::new(config());
    world.put(OWNER, &["a"]);
    assert_eq!(world.touch(USER, &Touch { pin: Some(true), ..TOUCH }), Status::OK);
    assert_eq!(world.now_of(Resource::PermanentBytes), SIZE);
    world.at(1_000_000);
    world.settle();
    assert_eq!(world.names(USER, ""), ["a"], "no time ends it");
    let unpin = Touch { pin: Some(false), keep_us: Some(10 * MS), ..TOUCH };
    assert_eq!(world.touch(USER, &unpin), Status::OK);
    assert_eq!(world.now_of(Resource::PermanentBytes), 0);
    assert_eq!(world.now_of(Resource::KeptBytes), SIZE);
    world.at(1_000_010);
    world.settle();
    assert_eq!(world.names(USER, ""), Vec::<String>::new());
    assert_eq!(world.now_of(Resource::KeptBytes), 0);
}

#[test]
fn touch_when_the_cap_is_full_then_no_quota_and_it_is_as_before() {
    let domain = Caps { kept_bytes: SIZE, permanent_bytes: 1, ..Caps::NONE };
    let mut world = World::new(Config { domain, ..config() });
    world.put(OWNER, &["a"]);
    world.put(OWNER, &["b"]);
    let no_quota = |resource, cap| Status::no_quota(resource, Scope::Domain, cap, 0);
    let pin = Touch { pin: Some(true), ..TOUCH };
    assert_eq!(world.touch(USER, &pin), no_quota(Resource::PermanentBytes, 1));
    let keep = Touch { keep_us: Some(100 * MS), ..TOUCH };
    assert_eq!(world.touch(USER, &keep), Status::OK);
    let other = Touch { names: &[b"b"], ..keep };
    assert_eq!(world.touch(USER, &other), no_quota(Resource::KeptBytes, SIZE));
    world.step(Input::Gone { client: OWNER });
    world.settle();
    assert_eq!(world.names(USER, ""), ["a"]);
}

#[test]
fn touch_when_there_is_no_such_object_or_it_is_of_a_job_then_says_so() {
    let mut world = World::new(config());
    assert_eq!(world.touch(USER, &TOUCH).result(), Err(ErrorCode::NotFound));
    let group = world.create(OWNER, &["a"]);
    assert_eq!(world.touch(USER, &TOUCH).result(), Err(ErrorCode::NotSealed));
    world.seal(OWNER, group).expect("sealed");
    let of_job = Touch { of_job: true, keep_us: Some(1), ..TOUCH };
    assert_eq!(world.touch(USER, &of_job).result(), Err(ErrorCode::NotSupported));
    assert_eq!(world.touch(USER, &TOUCH), Status::OK);
    assert_eq!(world.now_of(Resource::KeptBytes), 0, "a use alone keeps nothing");
}
