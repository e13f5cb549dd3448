//! Groups that may go when bytes are short: which one goes, and which ones stay.

use super::*;

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
    assert_eq!(refused.result(), Err(ErrorCode::Again), "the reader is asked");
    world.at(20);
    let refused = world.try_put(&new).expect_err("no room");
    assert_eq!(refused.result(), Err(ErrorCode::NoQuota));
    assert_eq!(world.names(USER, ""), ["leased", "pinned", "plain"]);
    world.release(USER, lease);
    world.at(21);
    world.try_put(&new).expect("the one that was leased makes room");
    assert_eq!(world.names(USER, ""), ["new", "pinned", "plain"]);
}

// --- what is refused ends nothing ----------------------------------------------------------------

/// Another user's client.
const STRANGER: ClientId = ClientId(7);

/// A node with kept bytes for so many groups, in shares, and a client of another user.
fn shared_node_of(groups: u64) -> World {
    let node = Caps { kept_bytes: groups * SIZE, ..Caps::NONE };
    let mut world = World::new(Config { node, share_factor: 8, ..config() });
    world.connect(STRANGER, 1001);
    world
}

impl World {
    fn put_kept(&mut self, client: ClientId, name: &str, groups: u64) -> Result<u64, Status> {
        let objects = [object(name)];
        let (keep_us, evictable) = (Some(1_000_000 * MS), true);
        let deposit = arrived(sized(groups * SIZE, deposit(0)));
        let kept = Create { keep_us, evictable, deposit, ..create(&objects) };
        let group = self.create_with(client, &kept)?;
        let sealed = self.seal(client, group);
        if sealed.is_err() {
            self.abort(client, group);
        }
        self.settle();
        self.close_all();
        sealed
    }

    fn fill(&mut self, client: ClientId, count: u64) {
        for at in 0..count {
            self.put_kept(client, &format!("{at}"), 1).expect("room");
        }
    }
}

#[test]
fn seal_when_refused_in_the_end_then_no_group_of_another_user_has_gone() {
    let mut world = shared_node_of(20);
    world.fill(USER, 17);
    let refused = world.put_kept(STRANGER, "large", 19).expect_err("beyond its share");
    assert_eq!(refused.resource, Resource::KeptBytes as u8, "{refused}");
    assert_eq!(world.names(USER, "").len(), 17, "a refusal costs others nothing");
    world.put_kept(STRANGER, "small", 2).expect("the others make room");
    assert!((15..17).contains(&world.names(USER, "").len()), "and no more than it takes");
}

#[test]
fn seal_when_the_node_is_full_then_who_has_most_makes_room() {
    let mut world = shared_node_of(20);
    world.put_kept(STRANGER, "its only one", 1).expect("room");
    world.at(1);
    world.fill(USER, 17);
    world.at(2);
    world.put_kept(USER, "more", 2).expect("its own make room");
    assert_eq!(world.names(STRANGER, ""), ["its only one"], "though it was not used for longest");
    world.put_kept(STRANGER, "its second one", 1).expect("whoever has most makes room");
    assert_eq!(world.names(STRANGER, "").len(), 2);
}

#[test]
fn seal_when_more_must_go_than_a_step_may_end_then_again_until_it_fits() {
    let mut world = shared_node_of(100);
    world.fill(OWNER, 90);
    let objects = [object("large")];
    let deposit = arrived(sized(80 * SIZE, deposit(0)));
    let large = Create { keep_us: Some(1_000_000 * MS), deposit, ..create(&objects) };
    let group = world.create_with(OWNER, &large).expect("begun");
    let refused = world.seal(OWNER, group).expect_err("70 or more must go");
    assert_eq!(refused.result(), Err(ErrorCode::Again));
    world.settle();
    world.seal(OWNER, group).expect("the rest goes now");
}

#[test]
fn create_when_the_clients_own_cap_is_full_then_no_group_goes_for_it() {
    let node = Caps { held_bytes: 4 * SIZE, ..Caps::NONE };
    let client = Caps { held_bytes: 3 * SIZE, ..Caps::NONE };
    let mut world = World::new(Config { node, client, share_factor: u64::MAX, ..config() });
    world.put_evictable("a");
    world.put_evictable("b");
    let large = [object("large")];
    let deposit = arrived(sized(3 * SIZE, deposit(0)));
    let refused = world.try_put(&Create { deposit, ..create(&large) }).expect_err("its own cap");
    assert_eq!(refused.resource, Resource::HeldBytes as u8, "{refused}");
    assert_eq!(world.names(USER, ""), ["a", "b"]);
}

// --- leases of what may go are asked for ---------------------------------------------------------

impl World {
    /// Leases that a client is asked for.
    fn asked(&mut self, client: ClientId) -> Vec<LeaseId> {
        let mut all = Vec::new();
        while let Some(events) = self.core.take_events(client) {
            if let Events::Reclaim(leases) = events {
                all.extend(leases);
            }
        }
        all
    }
}

#[test]
fn seal_when_groups_that_may_go_are_leased_then_the_leases_are_asked_for_and_it_fits_once_they_come()
 {
    let mut world = shared_node_of(20);
    world.fill(OWNER, 17);
    let leases: Vec<LeaseId> =
        (0..17).map(|at| world.get(USER, &[&format!("{at}")]).grants()[0].lease).collect();
    let refused = world.put_kept(OWNER, "new", 3).expect_err("all are leased");
    assert_eq!(refused.result(), Err(ErrorCode::Again), "others were asked");
    let asked = world.asked(USER);
    assert!(asked.len() >= 16 && asked.iter().all(|lease| leases.contains(lease)), "{asked:?}");
    assert_eq!(world.names(USER, "").len(), 17, "none has gone");
    for lease in asked {
        world.release(USER, lease);
    }
    world.put_kept(OWNER, "new", 3).expect("there is room now");
}

#[test]
fn seal_when_nobody_gives_leases_back_then_no_quota_after_a_pause() {
    let mut world = shared_node_of(20);
    world.fill(OWNER, 17);
    for at in 0..17 {
        world.get(USER, &[&format!("{at}")]);
    }
    for ms in 1..=2 {
        world.at(ms);
        let refused = world.put_kept(OWNER, "new", 3).expect_err("all are leased");
        assert_eq!(refused.result(), Err(ErrorCode::Again), "others were asked");
    }
    assert_eq!(world.asked(USER).len(), 17);
    world.at(100);
    let refused = world.put_kept(OWNER, "new", 3).expect_err("all are in use");
    assert_eq!(refused.resource, Resource::KeptBytes as u8, "{refused}");
    assert_eq!(world.asked(USER), [], "the same lease is asked for much later");
    world.at(2_000);
    let refused = world.put_kept(OWNER, "new", 3).expect_err("it may be idle now");
    assert_eq!(refused.result(), Err(ErrorCode::Again));
    assert!(world.asked(USER).len() >= 16);
}
