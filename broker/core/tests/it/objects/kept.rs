//! Groups that outlive the broker itself: what the table of them hears, and what a broker after a
//! crash makes of it.

use super::*;
use fdbroker_core::{
    Former, FormerLife, FormerSlot, KeptChange, KeptGroup, KeptObject, OwnerKey, Record,
};

fn kept<'a>(objects: &'a [NewObject<'a>]) -> Create<'a> {
    Create { keep_us: Some(100 * MS), ..create(objects) }
}

impl World {
    /// Begins and seals a kept group; its number, its version, and what the table heard.
    fn keep(
        &mut self,
        objects: &[NewObject<'_>],
        replace: bool,
    ) -> (GroupId, u64, Vec<KeptChange>) {
        let create = Create { replace, ..kept(objects) };
        let group = self.create_with(OWNER, &create).expect("begun");
        let version = self.seal(OWNER, group).expect("sealed");
        (group, version, self.fx.kept.clone())
    }
}

fn lost(version: u64, name: &str) -> KeptChange {
    KeptChange::Lost(version, name.as_bytes().into())
}

#[test]
fn table_when_groups_are_kept_replaced_and_deleted_then_it_hears_of_each_change_once() {
    let mut world = World::new(config());
    let (group, first, heard) = world.keep(&[object("a"), object("b"), object("c")], false);
    assert_eq!(heard, [KeptChange::Began(group)]);
    world.put(OWNER, &["x"]);
    assert_eq!(world.fx.kept, [], "one that is not kept");
    let (other, second, heard) = world.keep(&[object("a")], true);
    assert_eq!(heard, [lost(first, "a"), KeptChange::Began(other)]);
    world.delete(USER, "b", 0);
    assert_eq!(world.fx.kept, [lost(first, "b")]);
    let view = world.core.kept_group(group).expect("it is kept");
    assert_eq!(view.objects.iter().map(|it| it.name).collect::<Vec<_>>(), [b"c"]);
    world.delete(USER, "c", 0);
    assert_eq!(world.fx.kept, [KeptChange::Ended(first)]);
    assert!(world.core.kept_group(group).is_none());
    world.settle();
    world.at(1000);
    assert_eq!(world.fx.kept, [KeptChange::Ended(second)], "its time is over");
    assert_eq!(world.core.kept_groups().count(), 0);
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
        let live = core.allocations(0).map(|view| {
            let domain = DomainKey { listener: 0, uid: 1000 };
            let (share, recallable, owner) = (Share::Uid, false, OwnerKey::default());
            let record = Record { domain, gid: 100, share, recallable, owner };
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
fn after_crash_when_groups_were_kept_then_they_are_there_and_the_others_are_not() {
    let mut world = World::new(config());
    let data = [object("a"), NewObject { offset: 64, metadata: b"shape", ..object("b") }];
    let (group, version, _) = world.keep(&data, false);
    let pinned = world.create_with(OWNER, &Create { pin: true, ..create(&[object("p")]) });
    let (pinned, second) = (pinned.expect("begun"), version + 1);
    world.seal(OWNER, pinned).expect("sealed");
    world.put(OWNER, &["gone"]);
    world.create_with(OWNER, &kept(&[object("unsealed")])).expect("begun");
    world.delete(OWNER, "a", 0);
    let before = world.get(USER, &["b"]);
    let charged = [Resource::KeptBytes, Resource::KeptFds, Resource::PermanentBytes];
    let charges = charged.map(|resource| world.now_of(resource));

    let left = Left::of(&world.core);
    let groups = [group, pinned].map(|group| world.core.kept_group(group).expect("it is kept"));
    world.core = left.begin(&groups, world.now).expect("it fits");
    world.core.check_invariants();
    [OWNER, USER].into_iter().for_each(|client| world.connect(client, 1000));
    world.connect(OTHER, 2000);
    world.settle();

    assert_eq!(world.names(USER, ""), ["b", "p"]);
    assert_eq!(world.names(OTHER, ""), Vec::<String>::new());
    let got = world.get(USER, &["b", "p"]);
    assert_eq!(got.versions(), [version, second]);
    assert_eq!(got.grants()[0].wanted, before.grants()[0].wanted, "the same memory");
    let view = world.core.object_for(USER, false, b"b").expect("a domain").expect("it is there");
    assert_eq!((view.metadata, view.offset, view.is_creator_gone), (&b"shape"[..], 64, true));
    assert_eq!(charged.map(|resource| world.now_of(resource)), charges);
    let used = [Resource::HeldFds, Resource::Allocations, Resource::ObjectNames];
    assert_eq!(used.map(|resource| world.now_of(resource)), [2, 2, 2]);
    assert!(world.put(OWNER, &["new"]) > left.last_version, "no version is given twice");
    for grant in got.grants() {
        world.release(USER, grant.lease);
    }
    world.at(1000);
    world.settle();
    assert_eq!(world.names(USER, ""), ["new", "p"], "its time has begun again, and is over");
    world.delete(USER, "p", second);
    world.settle();
    world.close_all();
    assert_eq!(charged.map(|resource| world.now_of(resource)), [0; 3]);
}

#[test]
fn after_crash_when_a_group_cannot_have_been_one_then_refused() {
    let mut world = World::new(config());
    let (group, ..) = world.keep(&[object("a"), object("b")], false);
    let (other, ..) = world.keep(&[object("c")], false);
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
    }
}
