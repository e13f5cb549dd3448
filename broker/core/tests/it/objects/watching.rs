//! What it costs when clients that watch names do not listen.

use super::*;
use fdbroker_core::limits::{EVENTS_IN_LOG, OBJECT_RECORD_BYTES};
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
