//! Tests of the order of eviction.

use super::*;
use fdbroker_protocol::MemoryKind;

fn of_cuda(deposit: Deposit) -> Deposit {
    Deposit { facts: deposit.facts.kind(MemoryKind::CudaVmm), ..deposit }
}

#[test]
fn evict_when_nothing_but_the_last_one_of_cuda_can_go_then_it_goes() {
    let cuda = |number| of_cuda(deposit(number));
    let mut world = World::new(node_fds(1));
    let anchor = world.register(cuda(1)).id;
    world.register(deposit(2));
    world.close_all();
    assert_eq!(world.state(anchor), AllocationState::Evicted);

    let client = Caps { held_fds: 2, ..Caps::NONE };
    let mut world = World::new(Config { client, base_credits: 0, ..config() });
    let anchor = world.register(cuda(1)).id;
    for number in 2..=3 {
        world.register(deposit(number));
    }
    world.close_all();
    assert_eq!(world.state(anchor), AllocationState::Evicted, "its own client is full");
}

/// A held and an evicted allocation of OWNER, which does not answer, in a world with room for so
/// many fds beside the first and a recall.
fn silent_owner(room: u64) -> (World, AllocationId, AllocationId) {
    let node = Caps { fds: room + 2, open_leases: 1, ..Caps::NONE };
    let mut world = World::new(Config { node, ..node_fds(0) });
    let [held, missed] = [1, 2].map(|base| world.register(deposit(base)).id);
    world.step(Input::Evict { ids: &[missed] });
    world.close_all();
    world.acquire(OTHER, &[Ok(missed)], 1000);
    world.at(101);
    assert!(world.client(OWNER).record.silent);
    (world, held, missed)
}

#[test]
fn evict_when_a_request_waits_for_a_lease_of_a_silent_owners_fd_then_it_is_answered_at_once() {
    let (mut world, silent, _) = silent_owner(2);
    let other = world.register_by(USER, deposit(3)).id;
    world.grant(USER, other);
    world.acquire(OTHER, &[Ok(silent)], 1000);
    for base in [4, 5] {
        let resident = Deposit { recallable: false, ..deposit(base) };
        assert_eq!(world.client(OTHER).record.parked.len(), 1);
        assert!(world.register_by(USER, resident).status.is_ok());
        world.close_all();
    }
    assert_eq!(world.state(silent), AllocationState::Evicted);
    assert_eq!(world.client(OTHER).record.parked.len(), 0);
}
