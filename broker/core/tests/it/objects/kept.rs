//! Groups that outlive the broker itself: what is to be written of them, and what the next broker
//! refuses. The simulator has the rest.

use super::*;
use fdbroker_core::{Former, FormerLife, FormerSlot, KeptGroup, KeptObject, OwnerKey, Record};

fn kept<'a>(objects: &'a [NewObject<'a>]) -> Create<'a> {
    Create { keep_us: Some(100 * MS), ..create(objects) }
}

impl World {
    /// Begins and seals a kept group.
    fn keep(&mut self, objects: &[NewObject<'_>]) -> GroupId {
        let group = self.create_with(OWNER, &kept(objects)).expect("begun");
        self.seal(OWNER, group).expect("sealed");
        group
    }
}

#[test]
fn group_to_keep_when_it_is_made_then_what_it_will_be_and_none_of_others() {
    let mut world = World::new(config());
    let metadata = [NewObject { metadata: b"shape", ..object("a") }];
    let group = world.create_with(OWNER, &kept(&metadata)).expect("begun");
    let not_kept = world.create(OWNER, &["b"]);
    let view = world.core.group_to_keep(OWNER, group).expect("it is to be kept");
    assert_eq!((view.version, view.objects.len(), view.keep_us), (0, 1, Some(100 * MS)));
    assert_eq!(view.objects[0].metadata, b"shape");
    assert!(world.core.group_to_keep(USER, group).is_none());
    assert!(world.core.group_to_keep(OWNER, not_kept).is_none());
    assert!(world.core.group_to_keep(ClientId(99), group).is_none());
    world.seal(OWNER, group).expect("sealed");
    assert!(world.core.group_to_keep(OWNER, group).is_none());
    assert_eq!(world.core.last_version(), 1);
}

/// What a broker leaves that is killed.
struct Left {
    slots: Vec<FormerSlot>,
    last_version: u64,
}

impl Left {
    fn of(core: &Core) -> Left {
        let live = core.allocations(0..u32::MAX).map(|view| {
            let domain = DomainKey::new(0, 1000);
            let (share, recallable, owner) = (Share::Uid, false, OwnerKey::default());
            let (kind, gpu, size_bytes) =
                (fdbroker_protocol::MemoryKind::Memfd, fdbroker_protocol::Gpu::NONE, 4096);
            let record =
                Record { domain, gid: 100, kind, gpu, size_bytes, share, recallable, owner };
            FormerSlot { id: view.id, life: FormerLife::Live { record, owner_lives: true } }
        });
        Left { slots: live.collect(), last_version: core.last_version() + 1000 }
    }

    fn begin(&self, groups: &[KeptGroup<'_>], now: Now) -> Result<Core, ConfigError> {
        let (slots, last_version) = (&self.slots[..], self.last_version);
        let former = Former { slots, groups, last_version, ..Former::default() };
        Core::after_crash(Config { first_generation: 1000, ..config() }, former, now)
    }
}

#[test]
fn after_crash_when_a_group_cannot_have_been_one_then_refused() {
    let mut world = World::new(config());
    let group = world.keep(&[object("a"), object("b")]);
    let other = world.keep(&[object("c")]);
    let left = Left::of(&world.core);
    let good = world.core.kept_group(group).expect("it is kept");
    let other = world.core.kept_group(other).expect("it is kept");
    let begin = |groups: &[KeptGroup<'_>]| left.begin(groups, world.now).map(|_| ());
    assert_eq!(begin(&[good.clone(), other.clone()]), Ok(()));
    assert_eq!(begin(&[]), Ok(()));
    type Change<'c> = &'c dyn Fn(&mut KeptGroup<'_>);
    let changed = |change: Change<'_>| {
        let mut broken = good.clone();
        change(&mut broken);
        begin(&[broken, other.clone()])
    };
    let changes: [(&str, Change<'_>); 11] = [
        ("another slot", &|it| it.id.slot += 100),
        ("another generation", &|it| it.id.generation += 1),
        ("the memory of another", &|it| it.id = other.id),
        ("another domain", &|it| it.domain.uid += 1),
        ("no version", &|it| it.version = 0),
        ("a version to come", &|it| it.version = left.last_version + 1),
        ("kept for nothing", &|it| it.keep_us = None),
        ("no object", &|it| it.objects.clear()),
        ("an object beyond the memory", &|it| it.objects[0].offset = SIZE),
        ("a name of another", &|it| it.objects[0].name = b"c"),
        ("no name", &|it| it.objects[1] = KeptObject { name: b"", ..it.objects[1] }),
    ];
    for (what, change) in changes {
        assert!(changed(change).is_err(), "{what}");
        let mut groups = [good.clone(), other.clone()];
        change(&mut groups[0]);
        let (slots, last_version) = (&left.slots[..], left.last_version);
        let former = Former { slots, groups: &groups, last_version, ..Former::default() };
        let doubtful: Vec<_> = former.doubtful().into_iter().map(|(id, _)| id).collect();
        assert_eq!(doubtful.len(), 1, "{what}");
        let rest: Vec<_> = groups.iter().filter(|it| !doubtful.contains(&it.id)).cloned().collect();
        assert_eq!(begin(&rest), Ok(()), "{what}");
    }
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
