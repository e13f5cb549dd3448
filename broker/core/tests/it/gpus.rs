//! The GPUs that allocations are on, as their owners claim: told to whoever asks, bounded, carried
//! over to a successor, and gone with their last allocation.

use crate::*;
use fdbroker_core::limits::GPUS_PER_DOMAIN;
use fdbroker_protocol::Gpu;

fn gpu(number: u64) -> Gpu {
    let mut uuid = [0xfd; 16];
    uuid[8..].copy_from_slice(&number.to_le_bytes());
    Gpu::cuda(uuid, Gpu::pack_pci(0, 0xc0, 0, 0), false)
}

fn on(gpu: Gpu, deposit: Deposit) -> Deposit {
    Deposit { facts: deposit.facts.gpu(gpu), ..deposit }
}

#[test]
fn register_when_on_a_gpu_then_grants_recalls_and_views_say_which_and_a_successor_too() {
    let mut world = World::new(config());
    let id = world.register(on(gpu(1), deposit(1))).id;
    let other = world.register(on(gpu(2), deposit(2))).id;
    world.grant(USER, id);
    assert_eq!(world.fx.granted[0].facts.gpu, gpu(1));
    world.restart(config());
    assert_eq!(world.core.facts(id.slot).map(|it| it.gpu), Some(gpu(1)));
    assert_eq!(world.core.facts(other.slot).map(|it| it.gpu), Some(gpu(2)));
    assert_eq!(world.core.now_in_node(Resource::Gpus), 2);
    world.unregister(OWNER, other);
    assert_eq!(world.core.now_in_node(Resource::Gpus), 1);
    world.unregister(OWNER, id);
    assert_eq!(world.core.now_in_node(Resource::Gpus), 1, "it is leased");
}

#[test]
fn register_when_the_same_memory_is_said_to_be_on_another_gpu_then_it_is_other_memory() {
    let mut world = World::new(config());
    let first = world.register(on(gpu(1), deposit(1))).id;
    let again = world.register(on(gpu(1), deposit(1))).id;
    let other = world.register(on(gpu(2), deposit(1))).id;
    assert_eq!(again, first);
    assert_ne!(other, first);
    assert_eq!(world.core.end_of(first), Some(ErrorCode::Stale));
}

#[test]
fn register_when_gpus_are_claimed_by_the_thousand_then_refused_by_name_and_others_are_served() {
    let most = GPUS_PER_DOMAIN as u64;
    let mut world = World::new(Config { max_slots: 4096, ..node_fds(4096) });
    for it in 1..=most {
        assert!(world.register(on(gpu(it), deposit(it))).status.is_ok(), "{it}");
    }
    let refused = world.register(on(gpu(most + 1), deposit(most + 1))).status;
    let (resource, scope) = (Resource::Gpus as u8, Some(Scope::Domain));
    assert_eq!(refused.result(), Err(ErrorCode::NoQuota));
    assert_eq!((refused.resource, refused.scope(), refused.value), (resource, scope, most));
    assert!(refused.to_string().contains("gpus"), "{refused}");
    assert!(world.register(on(gpu(1), deposit(most + 2))).status.is_ok(), "a GPU that is known");
    assert!(world.register(deposit(most + 3)).status.is_ok(), "memory of no GPU");
    let next = ClientId(5);
    world.connect(next, 2000);
    let others = world.register_by(next, on(gpu(most + 1), deposit(1)));
    assert!(others.status.is_ok(), "another user");
    assert_eq!(world.core.now_in_node(Resource::Gpus), most + 1);
}

#[test]
fn register_when_the_device_has_more_than_16_bits_then_protocol() {
    let mut world = World::new(config());
    let wide = |device| {
        let one = deposit(1);
        Deposit { facts: one.facts.device(device), ..one }
    };
    assert_eq!(world.register(wide(1 << 16)).status.result(), Err(ErrorCode::Protocol));
    assert!(world.register(wide(u16::MAX.into())).status.is_ok());
}
