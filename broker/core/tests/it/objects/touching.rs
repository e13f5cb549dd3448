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
