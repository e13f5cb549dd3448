//! Tests of the times of an allocation: when it was registered, and when it was used last.

use super::lives::{SLOT, crashed, kept_deposit};
use super::*;

const SECOND: u64 = 1000;

impl World {
    /// How long ago an allocation was registered, and used last, in whole seconds.
    fn ages_s(&self, id: AllocationId) -> (u64, u64) {
        let view = self.core.allocations(id.slot..u32::MAX).next().expect("it is there");
        assert_eq!(view.id, id);
        let age_s = |then: Now| (self.now.0 - then.0) / 1_000_000;
        (age_s(view.record.registered.begin()), age_s(view.record.stamp.last_use().begin()))
    }
}

#[test]
fn ages_when_registered_granted_and_evicted_then_since_each_of_the_first_two() {
    let mut world = World::new(node_fds(2));
    world.at(100 * SECOND);
    let id = world.register(deposit(1)).id;
    world.at(103 * SECOND);
    assert_eq!(world.ages_s(id), (3, 3));
    let lease = world.grant(USER, id);
    world.at(110 * SECOND);
    assert_eq!(world.ages_s(id), (10, 7));
    world.release(USER, lease);
    let other = world.register(deposit(2)).id;
    world.acquire(USER, &[Ok(other)], 0);
    assert_eq!(world.state(id), AllocationState::Evicted, "there is room for two fds");
    // Registered once more, it is the same still.
    world.register(deposit(1));
    assert_eq!(world.ages_s(id), (10, 7));
}

#[test]
fn ages_when_the_broker_is_replaced_then_they_go_on() {
    let mut world = World::new(config());
    world.at(50 * SECOND);
    let (used, unused) = (world.register(deposit(1)).id, world.register(kept_deposit(2)).id);
    world.at(60 * SECOND);
    world.grant(USER, used);
    world.at(65 * SECOND);
    world.restart(config());
    assert_eq!(world.ages_s(used), (15, 5));
    assert_eq!(world.ages_s(unused), (15, 15));
    world.at(70 * SECOND);
    world.grant(OTHER, unused);
    world.gone(OWNER);
    world.at(71 * SECOND);
    assert_eq!(world.ages_s(unused), (21, 1), "without an owner, too");
}

#[test]
fn ages_when_named_again_after_a_crash_then_since_then() {
    let mut world = crashed(config(), &[SLOT], &[]);
    world.at(SECOND / 2);
    assert!(world.redeposit(OWNER, SLOT, deposit(1)).is_ok());
    world.at(4 * SECOND);
    assert_eq!(world.ages_s(SLOT), (3, 3));
}

#[test]
fn restore_when_an_allocation_is_of_the_future_then_refused() {
    let mut world = World::new(config());
    world.at(20 * SECOND);
    world.register(deposit(1));
    let saved = world.core.save();
    Core::restore(config(), saved.clone(), Now(20 * SECOND * MS)).expect("of now");
    let refused = Core::restore(config(), saved, Now(19 * SECOND * MS)).expect_err("of later");
    assert!(refused.to_string().contains("allocation's times"), "{refused}");
}
