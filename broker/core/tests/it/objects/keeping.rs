//! Objects that outlive their creator, for a time or for ever.

use super::*;

fn kept<'a>(objects: &'a [NewObject<'a>], ms: u64) -> Create<'a> {
    Create { keep_us: Some(ms * MS), ..create(objects) }
}

impl World {
    fn put_with(&mut self, client: ClientId, create: &Create<'_>) -> u64 {
        let group = self.create_with(client, create).expect("begun");
        self.seal(client, group).expect("sealed")
    }
}

#[test]
fn seal_when_kept_then_the_domain_is_charged_and_it_outlives_its_creator() {
    let mut world = World::new(config());
    let version = world.put_with(OWNER, &kept(&[object("a")], 100));
    let of_client = [Resource::HeldBytes, Resource::Allocations, Resource::HeldFds];
    assert_eq!(of_client.map(|it| world.client(OWNER).account.now(it)), [0; 3]);
    assert_eq!(of_client.map(|it| world.now_of(it)), [SIZE, 1, 1]);
    assert_eq!((world.now_of(Resource::KeptBytes), world.now_of(Resource::KeptFds)), (SIZE, 1));
    world.step(Input::Gone { client: OWNER });
    world.settle();
    assert_eq!(world.get(USER, &["a"]).versions(), [version]);
    let view = world.core.object_for(USER, false, b"a").expect("a domain").expect("it is there");
    assert!(view.is_kept && view.is_creator_gone && !view.is_pinned);
}
