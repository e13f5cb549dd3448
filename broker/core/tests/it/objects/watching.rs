//! What clients are told that watch names, and what it costs when they do not listen.

use super::*;
use fdbroker_core::limits::{EVENTS_IN_LOG, OBJECT_RECORD_BYTES, WATCHES_PER_CLIENT};
use fdbroker_protocol::object::ObjectEvent;

impl World {
    pub(super) fn watch(&mut self, client: ClientId, prefix: &str) -> Status {
        self.watch_or_not(client, prefix, true)
    }

    fn watch_or_not(&mut self, client: ClientId, prefix: &str, is_wanted: bool) -> Status {
        let (request, of_job, prefix) = (self.request(), false, prefix.as_bytes());
        self.step(Body::WatchObjects { of_job, prefix, is_wanted }.by(client, request));
        self.fx.statuses[0]
    }

    /// All that a watcher can hear now.
    pub(super) fn news(&mut self, client: ClientId) -> Vec<(ObjectEvent, u64, String)> {
        let mut all = Vec::new();
        while let Some(events) = self.core.take_events(client) {
            let Events::Objects(news) = events else { panic!("{events:?}") };
            all.extend(news.into_iter().map(|it| {
                let name = String::from_utf8(it.name.to_vec()).expect("UTF-8");
                (it.event, it.version, name)
            }));
            self.core.check_invariants();
        }
        all
    }

    fn replace(&mut self, name: &str) -> u64 {
        let objects = [object(name)];
        let group = self.create_with(OWNER, &Create { replace: true, ..create(&objects) });
        let version = self.seal(OWNER, group.expect("begun")).expect("sealed");
        self.settle();
        self.close_all();
        version
    }
}

fn event(event: ObjectEvent, version: u64, name: &str) -> (ObjectEvent, u64, String) {
    (event, version, name.into())
}

#[test]
fn watch_when_names_change_then_each_change_is_told_once_in_its_order() {
    let mut world = World::new(config());
    assert_eq!(world.watch(USER, "a"), Status::OK);
    let made = world.create(OWNER, &["a/1"]);
    assert_eq!(world.news(USER), [], "nobody sees what is made");
    let first = world.seal(OWNER, made).expect("sealed");
    let woken = world.fx.list.contains(&Effect::Events { client: USER });
    assert!(woken, "{:?}", world.fx.list);
    world.put(OWNER, &["b"]);
    let second = world.replace("a/1");
    let gone = world.create(OWNER, &["a/2"]);
    world.abort(OWNER, gone);
    world.delete(USER, "a/1", 0);
    world.settle();
    let expected = [
        event(ObjectEvent::Sealed, first, "a/1"),
        event(ObjectEvent::Replaced, second, "a/1"),
        event(ObjectEvent::Aborted, 0, "a/2"),
        event(ObjectEvent::Deleted, second, "a/1"),
    ];
    assert_eq!(world.news(USER), expected);
    assert_eq!(world.news(USER), []);
    assert_eq!(world.news(OTHER), [], "of another domain");
}

#[test]
fn watch_when_a_creator_dies_then_its_objects_are_told_as_deleted_or_aborted() {
    let mut world = World::new(config());
    world.watch(USER, "");
    let version = world.put(OWNER, &["a"]);
    world.create(OWNER, &["b"]);
    assert_eq!(world.news(USER), [event(ObjectEvent::Sealed, version, "a")]);
    world.step(Input::Gone { client: OWNER });
    world.settle();
    let mut told = world.news(USER);
    told.sort_by(|one, other| one.2.cmp(&other.2));
    let expected = [event(ObjectEvent::Deleted, version, "a"), event(ObjectEvent::Aborted, 0, "b")];
    assert_eq!(told, expected);
}

#[test]
fn watch_when_the_watcher_does_not_read_then_it_hears_how_much_it_has_missed() {
    let mut world = World::new(config());
    world.watch(USER, "");
    let missed = 10;
    for _ in 0..EVENTS_IN_LOG + missed {
        world.replace("a");
    }
    world.settle();
    let charged = world.now_of(Resource::MetadataBytes);
    assert!(charged > 0, "the log is charged");
    world.replace("a");
    world.settle();
    assert_eq!(world.now_of(Resource::MetadataBytes), charged, "and bounded");
    let told = world.news(USER);
    assert_eq!(told[0], event(ObjectEvent::Lost, missed as u64 + 1, ""));
    assert_eq!(told.len(), 1 + EVENTS_IN_LOG);
    world.step(Input::Gone { client: USER });
    world.settle();
    let left = world.now_of(Resource::MetadataBytes);
    assert_eq!(left, OBJECT_RECORD_BYTES + 1, "with the last watcher the log goes");
}

#[test]
fn watch_when_the_domain_has_no_room_for_events_then_they_are_lost_and_seals_go_on() {
    // Beside two names.
    let metadata_bytes = 2 * (OBJECT_RECORD_BYTES + 1) + 60;
    let domain = Caps { metadata_bytes, ..Caps::NONE };
    let mut world = World::new(Config { domain, ..config() });
    world.watch(USER, "");
    let first = world.replace("a");
    world.put(OWNER, &["b"]);
    let expected = [event(ObjectEvent::Sealed, first, "a"), event(ObjectEvent::Lost, 1, "")];
    assert_eq!(world.news(USER), expected);
}

#[test]
fn watch_when_too_many_or_no_more_then_says_so_and_is_silent() {
    let mut world = World::new(config());
    for number in 0..WATCHES_PER_CLIENT {
        assert_eq!(world.watch(USER, &format!("{number}")), Status::OK);
    }
    let most = Status::with_value(ErrorCode::TooLong, WATCHES_PER_CLIENT as u64);
    assert_eq!(world.watch(USER, "one more"), most);
    assert_eq!(world.watch(USER, "0"), Status::OK, "it watches that");
    assert_eq!(world.watch_or_not(USER, "0", false), Status::OK);
    assert_eq!(world.watch_or_not(USER, "0", false).result(), Err(ErrorCode::NotFound));
    world.put(OWNER, &["0"]);
    assert_eq!(world.news(USER), []);
}
