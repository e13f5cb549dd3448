//! Objects that outlive their creator: who is charged for them, and what is said when that is too
//! much.

use super::*;
use crate::jobs::{JOB, connect_in_job, job_of};
use fdbroker_core::{Deleted, KeptChange, Touch};

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
    let mut all = world.core.names_for(USER, false, b"a", b"").expect("a domain");
    let view = all.next().and_then(|(_, view)| view).expect("it is there");
    assert!(view.is_kept && view.is_creator_gone && !view.group.pin);
}

#[test]
fn touch_when_it_keeps_then_the_domain_is_charged_and_it_outlives_its_creator() {
    let mut world = World::new(config());
    let version = world.put(OWNER, &["a", "b"]);
    let (of_job, keep_us, pin, names) = (false, Some(100 * MS), None, &[&b"a"[..]][..]);
    let touch = &Touch { of_job, keep_us, pin, names };
    assert_eq!(world.core.groups_to_keep(USER, touch).len(), 1);
    let request = world.request();
    world.step(Body::TouchObjects { touch }.by(USER, request));
    assert_eq!(world.fx.statuses, [Status::OK]);
    assert!(matches!(world.fx.kept[..], [KeptChange::Began(_)]));
    assert!(world.core.groups_to_keep(USER, touch).is_empty(), "it is kept");
    let kept = [Resource::KeptBytes, Resource::KeptFds, Resource::PermanentBytes];
    assert_eq!(kept.map(|it| world.now_of(it)), [SIZE, 1, 0]);
    world.step(Input::Gone { client: OWNER });
    world.settle();
    assert_eq!(world.get(USER, &["a", "b"]).versions(), [version; 2]);
}

#[test]
fn seal_when_what_it_inherits_is_too_much_then_the_cap_says_so_and_the_old_version_stays() {
    let objects = [object("a")];
    let pinned = Create { pin: true, ..create(&objects) };
    let inherits = Inherits { keep: true, pin: true };
    let replacing = Create { replace: true, inherits, ..create(&objects) };
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
        let version = world.put_with(OWNER, &first);
        let group = world.create_with(OTHER, &replacing).expect("begun");
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
fn seal_when_kept_by_a_job_then_the_job_is_known_and_counts_its_names_until_they_are_gone() {
    let mut world = World::new(config());
    let maker = ClientId(3);
    connect_in_job(&mut world, maker, JOB);
    let objects = [object("a"), object("b")];
    let version = world.put_with(maker, &kept(&objects, 100_000));
    world.step(Input::Gone { client: maker });
    world.settle();
    let left = |core: &Core| {
        let job = core.jobs(0).find(|(_, job, _)| job.key.1 == JOB)?.1;
        let kept = core.allocations(0..u32::MAX).find(|it| it.is_kept_object)?;
        let names = core.objects(0..u32::MAX, 0).map(|(_, it)| (it.record.name.to_vec(), it.job));
        Some((job.clients, job.objects, kept.object.map(<[u8]>::to_vec), kept.job, names.count()))
    };
    let both = Some((0, 2, Some(b"a".to_vec()), Some(JOB), 2));
    assert_eq!(left(&world.core), both);
    world.core.settle_parked(world.now, &mut world.fx);
    let next = Core::restore(config(), world.core.save(), world.now).expect("sound");
    assert_eq!(left(&next), both, "a successor knows it");
    let group = next.kept_groups().next().and_then(|group| next.kept_group(group)).expect("kept");
    assert_eq!((group.version, group.job.map(|(key, _)| key)), (version, Some(JOB)));
    for (name, after) in [("a", Some(1)), ("b", None)] {
        let objects = &[Deleted { name: name.as_bytes(), version: 0 }][..];
        let request = world.request();
        world.step(Body::DeleteObjects { of_job: false, objects }.by(USER, request));
        world.settle();
        assert_eq!(job_of(&world, JOB).map(|(_, job, _)| job.objects), after, "{name}");
    }
}

#[test]
fn objects_when_a_page_begins_within_a_group_then_it_goes_on_there() {
    let mut world = World::new(config());
    world.put(OWNER, &["a", "b", "c"]);
    world.create(USER, &["d"]);
    let names = |groups, from| -> Vec<((u32, u16), String)> {
        let all = world.core.objects(groups, from);
        all.map(|(at, it)| (at, String::from_utf8_lossy(&it.record.name).into_owned())).collect()
    };
    assert_eq!(names(0..u32::MAX, 2), [((0, 2), "c".to_owned()), ((1, 0), "d".to_owned())]);
    assert_eq!(names(1..2, 0), [((1, 0), "d".to_owned())]);
    assert_eq!((names(2..9, 0).len(), world.core.group_slots()), (0, 2));
}

#[test]
fn seal_when_kept_memory_is_of_a_gpu_then_its_own_cap_counts_it_and_host_memory_makes_no_room() {
    let node = Caps { kept_bytes: SIZE, kept_gpu_bytes: SIZE, ..Caps::NONE };
    let mut world = World::new(Config { node, ..config() });
    let on_gpu = |objects| {
        let mut memory = sized(SIZE, deposit(0));
        memory.facts.kind = fdbroker_protocol::MemoryKind::CudaVmm;
        Create { evictable: true, deposit: arrived(memory), ..kept(objects, 100_000) }
    };
    world.put_with(OWNER, &Create { evictable: true, ..kept(&[object("host")], 100_000) });
    let [gpu, more, other] = ["gpu", "more", "other"].map(|name| [object(name)]);
    world.put_with(OWNER, &Create { evictable: false, ..on_gpu(&gpu) });
    let both = [Resource::KeptBytes, Resource::KeptGpuBytes];
    assert_eq!(both.map(|it| world.now_of(it)), [SIZE; 2]);
    let more = world.create_with(OWNER, &on_gpu(&more)).expect("begun");
    let refused = world.seal(OWNER, more).expect_err("two do not fit").to_string();
    assert!(refused.contains("raise the cap (caps.node.kept_gpu_bytes)"), "{refused}");
    let is_there = |world: &World| {
        let mut names = world.core.names_for(USER, false, b"host", b"").expect("a domain");
        names.any(|(_, view)| view.is_some())
    };
    assert!(is_there(&world), "it would not have helped");
    world.put_with(OWNER, &Create { evictable: true, ..kept(&other, 100_000) });
    assert!(!is_there(&world), "it made room");
    assert_eq!(both.map(|it| world.now_of(it)), [SIZE; 2]);
}
