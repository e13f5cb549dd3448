//! Requests in the bare protocol, item by item. tests/e2e/messages.rs has whole messages that are
//! wrong. Must never depend on time.

use crate::common::inode;
use crate::support::broker::{Broker, Setup};
use crate::support::memory::{BLOCK_BYTES, all_seals, memfd};
use crate::support::raw::{Raw, block_item};
use fdbroker_protocol::message::{
    DeclareItem, LeaseItem, NO_FD, RedepositItem, RegisterHead, RegisterItem, declare_flags,
};
use fdbroker_protocol::page::{PageHeader, generation_offset, is_alive, page_bytes};
use fdbroker_protocol::{
    ErrorCode, FactsItem, Handle, Kind, MemoryKind, PROTOCOL_VERSION, Status, Writer,
};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

fn code(status: &Status) -> Option<ErrorCode> {
    status.result().err()
}

fn generation(page: &OwnedFd, slot: u32) -> u32 {
    let file = std::fs::File::from(page.try_clone().unwrap());
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, generation_offset(slot) as u64).unwrap();
    u32::from_ne_bytes(bytes)
}

#[test]
fn hello_when_versions_meet_then_welcome_with_event_socket_and_page() {
    let broker = Broker::start();
    let client = Raw::connect(&broker.socket());
    assert_eq!(client.reply().version.get(), PROTOCOL_VERSION.into());
    assert_eq!(client.reply().max_batch.get(), 253);
    assert!(client.reply().deposit_credits.get() >= 1);
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(client.reply().node.get(), fdbroker_protocol::node_id(&boot_id));

    let file = std::fs::File::from(client.generations().try_clone().unwrap());
    let size = file.metadata().unwrap().len();
    assert_eq!(size, page_bytes(client.reply().page_slots.get()) as u64);
    assert!(file.write_at(b"x", 0).is_err(), "the page is read-only");
    let mut word = [0; 4];
    file.read_exact_at(&mut word, std::mem::offset_of!(PageHeader, liveness) as u64).unwrap();
    assert!(is_alive(u32::from_ne_bytes(word)));
}

#[test]
fn memfd_when_registered_acquired_mapped_released_unregistered_then_each_step_holds() {
    let broker = Broker::start();
    let mut owner = Raw::connect(&broker.socket());
    let mut consumer = Raw::connect(&broker.socket());

    let fd = memfd(c"whole", BLOCK_BYTES, all_seals());
    let mut item = block_item();
    item.driver_data_len = 3;
    item.driver_data[..3].copy_from_slice(b"abc");
    let registered = owner.register(&[item], &[fd.as_fd()]);
    assert!(registered[0].status.get().is_ok());
    let handle = registered[0].handle;
    assert_eq!(handle.size_bytes, BLOCK_BYTES as u64);
    let (slot, live) = (handle.prefix.slot, handle.prefix.generation);
    assert_eq!(generation(consumer.generations(), slot.get()), live.get());

    let reply = consumer.acquire_once(&[handle.get()], 1000);
    let grant = reply.grants()[0];
    assert!(grant.status.get().is_ok());
    let facts = (grant.facts.size_bytes.get(), grant.facts.kind);
    assert_eq!(facts, (BLOCK_BYTES as u64, MemoryKind::Memfd as u8));
    assert_eq!((grant.fd_index.get(), grant.facts.owner_allocation_id.get()), (0, 7));
    assert_eq!(&reply.message().grants().unwrap().1[0][..3], b"abc");
    assert_eq!(inode(&reply.fds[0]), inode(&fd), "the same memory");

    let lease = grant.lease.get();
    assert!(consumer.mapped(&[lease])[0].is_ok());

    let ended = owner.unregister(&[handle.get().id()]);
    assert_eq!((ended[0].is_ok(), ended[0].value), (true, 0), "a lease is still out");
    assert_eq!(generation(consumer.generations(), slot.get()), 0);
    assert_eq!(consumer.receive_event().unwrap().kind(), Kind::Revoked);
    let late = consumer.acquire_once(&[handle.get()], 0).grants()[0];
    assert_eq!(code(&late.status.get()), Some(ErrorCode::Stale));

    assert!(consumer.release(&[lease])[0].is_ok());
    assert_eq!(owner.receive_event().unwrap().kind(), Kind::Drained);
    assert_eq!(code(&consumer.release(&[lease])[0]), Some(ErrorCode::BadHandle), "only once");
}

#[test]
fn mapped_and_release_when_id_is_0_then_one_way() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let handle = client.register_blocks(1)[0];
    let lease = client.acquire_once(&[handle], 0).grants()[0].lease.get();
    for kind in [Kind::Mapped, Kind::Release] {
        let mut writer = Writer::new();
        writer.start(kind, 0).push(&LeaseItem { lease: lease.into() });
        client.send(writer.finish(1, 0), &[]).unwrap();
    }
    assert_eq!(code(&client.release(&[lease])[0]), Some(ErrorCode::BadHandle), "it was released");
}

#[test]
fn register_when_an_item_is_broken_then_its_status_says_so() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    for change in [
        (|item| item.flags = 0x80) as fn(&mut RegisterItem),
        |item| item.facts.kind = 99,
        |item| item.share = 99,
        |item| item.driver_data_len = 65,
        |item| item.facts.size_bytes = 0.into(),
    ] {
        let mut item = block_item();
        change(&mut item);
        let fd = memfd(c"any", BLOCK_BYTES, all_seals());
        let registered = client.register(&[item], &[fd.as_fd()]);
        assert_eq!(code(&registered[0].status.get()), Some(ErrorCode::Protocol), "{item:?}");
    }
}

fn declared(handle: &Handle, flags: u32) -> DeclareItem {
    DeclareItem { handle: handle.prefix.into(), flags: flags.into(), reserved: 0.into() }
}

/// Registers one memfd; answers all that its owner gets to know of it.
fn register_known(client: &mut Raw, item: RegisterItem) -> RedepositItem {
    let fd = memfd(c"known", BLOCK_BYTES, all_seals());
    let registered = client.register(&[item], &[fd.as_fd()])[0];
    assert!(registered.status.get().is_ok(), "{}", registered.status.get());
    RedepositItem { item, handle: registered.handle, token: registered.token }
}

/// A broker that was killed with two live allocations, and its successor.
fn after_a_crash() -> (Broker, [RedepositItem; 2]) {
    let mut broker = Setup::new().config("[limits]\ngrace_ms = 60000").start();
    let mut owner = Raw::connect(&broker.socket());
    let known = [1, 2].map(|number: u64| {
        let item = RegisterItem {
            facts: FactsItem { owner_allocation_id: number.into(), ..block_item().facts },
            ..block_item()
        };
        register_known(&mut owner, item)
    });
    broker.kill();
    broker.restart();
    (broker, known)
}

#[test]
fn redeposit_when_anything_of_it_is_wrong_then_its_own_status_says_so() {
    let (broker, [known, other]) = after_a_crash();
    let mut client = Raw::connect(&broker.socket());
    let mut wrong_token = known;
    wrong_token.token[15] ^= 1;
    let mut forged = known;
    forged.handle.prefix.slot = 7.into();
    let another_token = RedepositItem { token: other.token, ..known };
    let mut another_kind = known;
    another_kind.item.facts.kind = MemoryKind::DmaBuf as u8;
    let mut broken = known;
    broken.item.flags = 0x80;
    let mut resident = other;
    resident.item.flags = 0;
    let items = [wrong_token, forged, another_token, another_kind, broken, resident, known];
    let head = RegisterHead { credits_wanted: 0.into(), deadline_ms: 0.into() };
    let reply = client.request(Kind::Redeposit, |it| it.push(&head).push(&items), items.len(), &[]);
    let codes: Vec<_> = reply.registered().1.iter().map(|item| code(&item.status.get())).collect();
    let expected = [
        Some(ErrorCode::NotPermitted),
        Some(ErrorCode::BadHandle),
        Some(ErrorCode::NotPermitted),
        Some(ErrorCode::Protocol),
        Some(ErrorCode::Protocol),
        // No process has its fd any more.
        Some(ErrorCode::Lost),
        None,
    ];
    assert_eq!(codes, expected);
    let late = client.acquire_once(&[other.handle.get()], 0).grants()[0];
    assert_eq!(code(&late.status.get()), Some(ErrorCode::Lost));
}

#[test]
fn declare_when_of_before_the_crash_then_a_lease_and_of_after_it_stale() {
    let (broker, [known, other]) = after_a_crash();
    let mut holder = Raw::connect(&broker.socket());
    let born_after = holder.register_blocks(1)[0];
    let mut forged = declared(&known.handle.get(), declare_flags::OPEN);
    forged.handle.generation = 9.into();
    let items = [
        declared(&known.handle.get(), declare_flags::OPEN),
        declared(&other.handle.get(), 0),
        declared(&born_after, 0),
        declared(&known.handle.get(), 0x80),
        forged,
    ];
    let reply = holder.request(Kind::Declare, |it| it.push(&items), items.len(), &[]);
    let codes: Vec<_> = reply.grants().iter().map(|item| code(&item.status.get())).collect();
    let (stale, protocol, bad) = (ErrorCode::Stale, ErrorCode::Protocol, ErrorCode::BadHandle);
    assert_eq!(codes, [None, None, Some(stale), Some(protocol), Some(bad)]);
    assert_eq!(reply.grants()[0].fd_index.get(), NO_FD);
    let leases = [0, 1].map(|at| reply.grants()[at].lease.get());
    assert!(holder.release(&leases).iter().all(Status::is_ok));
}
