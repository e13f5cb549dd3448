//! Tests of the order of eviction.

use super::*;
use fdbroker_protocol::MemoryKind;

#[test]
fn evict_when_the_node_is_short_of_fds_then_its_last_one_of_cuda_goes_last() {
    let cuda = |number| Deposit { kind: MemoryKind::CudaVmm, ..deposit(number) };
    let mut world = World::new(node_fds(3));
    let anchor = world.register(cuda(1)).id;
    let others: Vec<AllocationId> = (2..=7).map(|it| world.register(deposit(it)).id).collect();
    world.close_all();
    assert_eq!(world.state(anchor), AllocationState::Held, "six came after it");
    assert_eq!(world.state(others[3]), AllocationState::Evicted);

    // Another one: the order counts again.
    let next = world.register(cuda(8)).id;
    for number in 9..=10 {
        world.register(deposit(number));
        world.close_all();
    }
    assert_eq!(world.state(anchor), AllocationState::Evicted);
    assert_eq!(world.state(next), AllocationState::Held);
}

#[test]
fn evict_when_nothing_but_the_last_one_of_cuda_can_go_then_it_goes() {
    let cuda = |number| Deposit { kind: MemoryKind::CudaVmm, ..deposit(number) };
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
