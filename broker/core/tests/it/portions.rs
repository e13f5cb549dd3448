//! Tests of what one message may bring about at most, so that nobody waits long for another's.

use super::*;
use fdbroker_protocol::limits::ENDS_PER_MESSAGE;

/// A world in which the owner has so many live allocations, one beside the other from address
/// 0x1_0000 on.
fn row_of(count: usize) -> (World, Vec<AllocationId>) {
    let mut world = World::new(Config { max_credits: 64, ..config() });
    let ids = (1..=count as u64).map(|base| world.register(deposit(base)).id).collect();
    (world, ids)
}

fn unregister(world: &mut World, ids: &[AllocationId]) -> Vec<Status> {
    let request = world.request();
    world.step(Body::Unregister { ids }.by(OWNER, request));
    world.fx.statuses.clone()
}

#[test]
fn acquire_when_few_may_be_granted_then_the_rest_says_again_and_costs_no_lease() {
    let (mut world, ids) = row_of(4);
    let wanted: Vec<Wanted> = ids.iter().copied().map(Ok).collect();
    for (fds, expected) in [(2, 2), (0, 1), (253, 4)] {
        world.step(Input::MostGranted { fds });
        world.acquire(USER, &wanted, 0);
        let granted = world.fx.granted.clone();
        let again = Status::error(ErrorCode::Again);
        assert!(granted[..expected].iter().all(|granted| granted.status.is_ok()));
        assert!(granted[expected..].iter().all(|granted| granted.status == again));
        assert_eq!(world.core.totals().node.now(Resource::OpenLeases), expected as u64);
        granted[..expected].iter().for_each(|granted| _ = world.release(USER, granted.lease));
    }
}

#[test]
fn unregister_when_of_more_than_a_message_ends_then_the_rest_says_again_and_lives() {
    let (mut world, ids) = row_of(ENDS_PER_MESSAGE + 3);
    let statuses = unregister(&mut world, &ids);
    assert!(statuses[..ENDS_PER_MESSAGE].iter().all(|status| status.is_ok()));
    let again = Status::error(ErrorCode::Again);
    assert_eq!(statuses[ENDS_PER_MESSAGE..], [again; 3]);
    assert_eq!(world.core.totals().node.now(Resource::Allocations), 3);
    assert!(unregister(&mut world, &ids[ENDS_PER_MESSAGE..]).iter().all(|status| status.is_ok()));
    assert_eq!(world.core.totals().node.now(Resource::Allocations), 0);
}

#[test]
fn unregister_when_registered_several_times_then_what_only_counts_down_is_no_end() {
    let (mut world, ids) = row_of(ENDS_PER_MESSAGE);
    world.register(deposit(1));
    let twice: Vec<AllocationId> = [&ids[..1], &ids[..]].concat();
    assert!(unregister(&mut world, &twice).iter().all(|status| status.is_ok()));
    assert_eq!(world.core.totals().node.now(Resource::Allocations), 0);
}

#[test]
fn register_when_it_overlaps_more_than_a_message_ends_then_again_until_all_are_ended() {
    let (mut world, ids) = row_of(2 * ENDS_PER_MESSAGE + 1);
    let whole = sized(ids.len() as u64 * 0x1_0000, deposit(1));
    let is_held = |view: &AllocationView<'_>| view.state == AllocationState::Held;
    let left = |world: &World| world.core.allocations(0..u32::MAX).filter(is_held).count();
    for ends in [ENDS_PER_MESSAGE, 2 * ENDS_PER_MESSAGE] {
        assert_eq!(world.register(whole).status, Status::error(ErrorCode::Again));
        world.close_all();
        assert_eq!(left(&world), ids.len() - ends);
    }
    assert!(world.register(whole).status.is_ok());
    assert_eq!(left(&world), 1);
}
