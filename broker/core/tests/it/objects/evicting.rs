//! Groups that may go when bytes are short: which one goes, and which ones stay.

use super::*;
use fdbroker_protocol::object::ObjectEvent;

/// A node with room for so many groups.
fn node_of(groups: u64) -> World {
    let node = Caps { held_bytes: groups * SIZE, ..Caps::NONE };
    World::new(Config { node, share_factor: u64::MAX, ..config() })
}

impl World {
    fn put_evictable(&mut self, name: &str) -> u64 {
        self.try_put(&Create { evictable: true, ..create(&[object(name)]) }).expect("room")
    }

    fn try_put(&mut self, create: &Create<'_>) -> Result<u64, Status> {
        let group = self.create_with(OWNER, create)?;
        let version = self.seal(OWNER, group);
        self.settle();
        self.close_all();
        version
    }

    fn use_it(&mut self, name: &str) {
        let lease = self.get(USER, &[name]).grants()[0].lease;
        self.release(USER, lease);
    }
}

#[test]
fn create_when_bytes_are_short_then_the_evictable_group_that_was_not_used_for_longest_goes() {
    let mut world = node_of(3);
    world.watch(USER, "");
    world.put_evictable("a");
    world.at(1);
    let second = world.put_evictable("b");
    world.at(2);
    world.try_put(&create(&[object("stays")])).expect("room");
    world.at(3);
    world.use_it("a");
    world.news(USER);
    world.at(4);
    let third = world.put_evictable("c");
    assert_eq!(world.names(USER, ""), ["a", "c", "stays"]);
    assert_eq!(world.get(USER, &["b"]).error(), ErrorCode::NotFound);
    let told = world.news(USER);
    assert!(told.contains(&(ObjectEvent::Evicted, second, "b".into())), "{told:?}");
    assert!(told.contains(&(ObjectEvent::Sealed, third, "c".into())), "{told:?}");
    assert_eq!(world.now_of(Resource::HeldBytes), 3 * SIZE);
}

#[test]
fn create_when_all_are_leased_pinned_or_not_evictable_then_no_quota_and_all_stay() {
    let mut world = node_of(3);
    world.put_evictable("leased");
    let pinned = [object("pinned")];
    world.try_put(&Create { evictable: true, pin: true, ..create(&pinned) }).expect("room");
    world.try_put(&create(&[object("plain")])).expect("room");
    let lease = world.get(USER, &["leased"]).grants()[0].lease;
    let evictable = [object("new")];
    let new = Create { evictable: true, ..create(&evictable) };
    let refused = world.try_put(&new).expect_err("no room");
    assert_eq!(refused.result(), Err(ErrorCode::NoQuota));
    assert_eq!(world.names(USER, ""), ["leased", "pinned", "plain"]);
    world.release(USER, lease);
    world.at(1);
    world.try_put(&new).expect("the one that was leased makes room");
    assert_eq!(world.names(USER, ""), ["new", "pinned", "plain"]);
}

#[test]
fn seal_when_kept_bytes_are_short_then_kept_groups_that_may_go_make_room() {
    let domain = Caps { kept_bytes: 2 * SIZE, ..Caps::NONE };
    let mut world = World::new(Config { domain, ..config() });
    let keep_us = Some(1_000_000 * MS);
    for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
        world.at(at as u64);
        let objects = [object(name)];
        let kept = Create { keep_us, evictable: true, ..create(&objects) };
        world.try_put(&kept).expect("room is made");
    }
    assert_eq!(world.names(USER, ""), ["b", "c"]);
    assert_eq!(world.now_of(Resource::KeptBytes), 2 * SIZE);
    let never = [object("d"), object("e")];
    let large = Deposit { size_bytes: 3 * SIZE, ..deposit(0) };
    let refused =
        world.try_put(&Create { keep_us, deposit: large, ..create(&never) }).expect_err("no room");
    assert_eq!(refused.resource, Resource::KeptBytes as u8);
}
