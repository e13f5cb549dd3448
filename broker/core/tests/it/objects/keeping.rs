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

#[test]
fn kept_when_its_time_is_over_then_it_ends_counted_from_the_last_use() {
    let mut world = World::new(config());
    world.put_with(OWNER, &kept(&[object("a")], 100));
    world.at(60);
    let got = world.get(USER, &["a"]);
    world.release(USER, got.grants()[0].lease);
    world.at(159);
    assert_eq!(world.names(USER, ""), ["a"]);
    world.at(160);
    world.settle();
    assert_eq!(world.names(USER, ""), Vec::<String>::new());
    world.close_all();
    let left = [Resource::KeptBytes, Resource::KeptFds, Resource::HeldBytes, Resource::ObjectNames];
    assert_eq!(left.map(|it| world.now_of(it)), [0; 4]);
    assert_eq!(world.core.poll_timeout(), None);
}

#[test]
fn kept_when_leased_or_pinned_then_no_time_ends_it() {
    let mut world = World::new(config());
    world.put_with(OWNER, &kept(&[object("a")], 10));
    world.put_with(OWNER, &Create { pin: true, ..create(&[object("b")]) });
    assert_eq!(world.now_of(Resource::PermanentBytes), SIZE);
    let got = world.get(USER, &["a"]);
    for ms in 1..100 {
        world.at(ms * 10);
    }
    assert_eq!(world.names(USER, ""), ["a", "b"]);
    world.release(USER, got.grants()[0].lease);
    world.at(1010);
    world.settle();
    assert_eq!(world.names(USER, ""), ["b"]);
}

#[test]
fn kept_when_deleted_then_its_charges_end_with_it() {
    let mut world = World::new(config());
    world.put_with(OWNER, &Create { pin: true, ..kept(&[object("a")], 10) });
    world.delete(USER, "a", 0);
    let left = [Resource::KeptBytes, Resource::KeptFds, Resource::PermanentBytes];
    assert_eq!(left.map(|it| world.now_of(it)), [0; 3]);
}

#[test]
fn create_when_names_of_a_job_are_to_be_kept_then_not_supported() {
    let mut world = World::new(config());
    let client = ClientId(7);
    let domain = DomainKey { listener: 0, uid: 1000 };
    let job = Some((JobKey(7), JobName::NONE));
    let peer = Peer { domain, job, pid: 9, gid: 100, groups: &[] };
    world.step(Input::Connect { client, peer });
    world.step(Body::Hello { own_fds: 0, deadline: Now(0) }.by(client, RequestId(1)));
    for create in [kept(&[object("a")], 10), Create { pin: true, ..create(&[object("a")]) }] {
        let status = world.create_with(client, &Create { of_job: true, ..create });
        assert_eq!(status, Err(ErrorCode::NotSupported.into()));
    }
    let objects = [object("a")];
    let create = Create { of_job: true, ..create(&objects) };
    let group = world.create_with(client, &create).expect("begun");
    world.seal(client, group).expect("sealed");
    assert_eq!(world.get(USER, &["a"]).error(), ErrorCode::NotFound);
    let of_job = world.core.names_for(client, true, b"", b"").expect("a job");
    assert_eq!(of_job.count(), 1);
}
