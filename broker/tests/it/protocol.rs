//! Requests in the bare protocol, item by item. tests/e2e/messages.rs has whole messages that are
//! wrong. Must never depend on time.

use crate::common::*;
use fdbroker_protocol::message::{
    AllocationItem, DeclareItem, NO_FD, RedepositItem, RegisterHead, RegisterItem, declare_flags,
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

fn unregister_bytes(id: u64, handles: &[Handle]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.start(Kind::Unregister, id);
    for handle in handles {
        let (slot, generation) = (handle.prefix.slot, handle.prefix.generation);
        writer.push(&AllocationItem { slot, generation });
    }
    writer.finish(handles.len(), 0).to_vec()
}

fn generation(page: &OwnedFd, slot: u32) -> u32 {
    let file = std::fs::File::from(page.try_clone().unwrap());
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, generation_offset(slot) as u64).unwrap();
    u32::from_ne_bytes(bytes)
}

#[test]
fn hello_when_versions_meet_then_welcome_with_event_socket_and_page() {
    let broker = Broker::start(&[]);
    let client = Client::connect(&broker.socket());
    assert_eq!(client.hello.version.get(), PROTOCOL_VERSION.into());
    assert_eq!(client.hello.max_batch.get(), 253);
    assert!(client.credits >= 1);
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(client.hello.node.get(), fdbroker_protocol::node_id(&boot_id));

    let file = std::fs::File::from(client.page.try_clone().unwrap());
    let size = file.metadata().unwrap().len();
    assert_eq!(size, page_bytes(client.hello.page_slots.get()) as u64);
    assert!(file.write_at(b"x", 0).is_err(), "the page is read-only");
    let mut word = [0; 4];
    file.read_exact_at(&mut word, std::mem::offset_of!(PageHeader, liveness) as u64).unwrap();
    assert!(is_alive(u32::from_ne_bytes(word)));
}

#[test]
fn memfd_when_registered_acquired_mapped_released_unregistered_then_each_step_holds() {
    let broker = Broker::start(&[]);
    let mut owner = Client::connect(&broker.socket());
    let mut consumer = Client::connect(&broker.socket());

    let fd = sealed_memfd(8192);
    let mut item = memfd_item(8192);
    item.driver_data_len = 3;
    item.driver_data[..3].copy_from_slice(b"abc");
    let id = owner.id();
    let reply = owner.call(&register_bytes(id, &[item], 0, 1), &[fd.as_fd()]);
    let (head, registered) = reply.registered();
    assert!(head.deposit_credits.get() >= 1);
    assert!(registered[0].status.is_ok());
    let handle = registered[0].handle;
    assert_eq!(handle.size_bytes.get(), 8192);
    let (slot, live) = (handle.prefix.slot.get(), handle.prefix.generation.get());
    assert_eq!(generation(&consumer.page, slot), live);

    let reply = consumer.acquire(&[handle.prefix], 1000);
    let grant = reply.grants()[0];
    assert!(grant.status.is_ok());
    assert_eq!((grant.facts.size_bytes.get(), grant.facts.kind), (8192, MemoryKind::Memfd as u8));
    assert_eq!((grant.fd_index.get(), grant.facts.owner_allocation_id.get()), (0, 7));
    assert_eq!(&reply.message().grants().unwrap().1[0][..3], b"abc");
    assert_eq!(inode(&reply.fds[0]), inode(&fd), "the same memory");

    let lease = grant.lease.get();
    let id = consumer.id();
    let mapped = consumer.call(&lease_bytes(Kind::Mapped, id, &[lease]), &[]).statuses();
    assert!(mapped[0].is_ok());

    let id = owner.id();
    let ended = owner.call(&unregister_bytes(id, &[handle]), &[]).statuses();
    assert_eq!((ended[0].is_ok(), ended[0].value.get()), (true, 0), "a lease is still out");
    assert_eq!(generation(&consumer.page, slot), 0);
    assert_eq!(consumer.event.recv().kind(), Kind::Revoked);
    let late = consumer.acquire(&[handle.prefix], 0).grants()[0];
    assert_eq!(code(&late.status), Some(ErrorCode::Stale));

    assert!(consumer.release(&[lease])[0].is_ok());
    assert_eq!(owner.event.recv().kind(), Kind::Drained);
    assert_eq!(code(&consumer.release(&[lease])[0]), Some(ErrorCode::BadHandle), "only once");
}

#[test]
fn mapped_and_release_when_id_is_0_then_one_way() {
    let broker = Broker::start(&[]);
    let mut client = Client::connect(&broker.socket());
    let handle = client.register_memfds(1)[0];
    let lease = client.acquire(&[handle.prefix], 0).grants()[0].lease.get();
    client.main.send(&lease_bytes(Kind::Mapped, 0, &[lease]), &[]);
    client.main.send(&lease_bytes(Kind::Release, 0, &[lease]), &[]);
    assert_eq!(code(&client.release(&[lease])[0]), Some(ErrorCode::BadHandle), "it was released");
}

#[test]
fn register_when_an_item_is_broken_then_its_status_says_so() {
    let broker = Broker::start(&[]);
    let mut client = Client::connect(&broker.socket());
    let mut changed = Vec::new();
    for change in [
        (|item| item.flags = 0x80) as fn(&mut fdbroker_protocol::message::RegisterItem),
        |item| item.facts.kind = 99,
        |item| item.share = 99,
        |item| item.driver_data_len = 65,
        |item| item.facts.size_bytes = 0.into(),
    ] {
        let mut item = memfd_item(4096);
        change(&mut item);
        changed.push(item);
    }
    let codes: Vec<_> = changed
        .iter()
        .map(|item| {
            let fd = sealed_memfd(4096);
            let id = client.id();
            let reply = client.call(&register_bytes(id, &[*item], 4, 1), &[fd.as_fd()]);
            code(&reply.registered().1[0].status).unwrap()
        })
        .collect();
    assert_eq!(codes, [ErrorCode::Protocol; 5]);
}

fn redeposit_bytes(id: u64, items: &[RedepositItem]) -> Vec<u8> {
    let mut writer = Writer::new();
    let head = RegisterHead { credits_wanted: 0.into(), deadline_ms: 0.into() };
    writer.start(Kind::Redeposit, id).push(&head).push(items);
    writer.finish(items.len(), 0).to_vec()
}

fn declare_bytes(id: u64, items: &[DeclareItem]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.start(Kind::Declare, id).push(items);
    writer.finish(items.len(), 0).to_vec()
}

fn declared(handle: &Handle, flags: u32) -> DeclareItem {
    DeclareItem { handle: handle.prefix, flags: flags.into(), reserved: 0.into() }
}

/// Registers one memfd; answers all that its owner gets to know of it.
fn register_known(client: &mut Client, item: RegisterItem) -> RedepositItem {
    let fd = sealed_memfd(4096);
    let id = client.id();
    let reply = client.call(&register_bytes(id, &[item], 4, 1), &[fd.as_fd()]);
    let registered = reply.registered().1[0];
    assert!(registered.status.is_ok(), "{}", registered.status);
    RedepositItem { item, handle: registered.handle, token: registered.token }
}

/// A broker that was killed with two live allocations, and its successor.
fn after_a_crash() -> (Broker, [RedepositItem; 2]) {
    let mut broker = Broker::start(&["--set", "limits.grace_ms=60000"]);
    let mut owner = Client::connect(&broker.socket());
    let known = [1, 2].map(|number: u64| {
        let item = RegisterItem {
            facts: FactsItem { owner_allocation_id: number.into(), ..memfd_item(4096).facts },
            ..memfd_item(4096)
        };
        register_known(&mut owner, item)
    });
    broker.signal(nix::sys::signal::Signal::SIGKILL);
    broker.child.wait().unwrap();
    broker.child = start_in(broker.dir.path(), &["--set", "limits.grace_ms=60000"]);
    (broker, known)
}

#[test]
fn redeposit_when_anything_of_it_is_wrong_then_its_own_status_says_so() {
    let (broker, [known, other]) = after_a_crash();
    let mut client = Client::connect(&broker.socket());
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
    let id = client.id();
    let reply = client.call(&redeposit_bytes(id, &items), &[]);
    let codes: Vec<_> = reply.registered().1.iter().map(|item| code(&item.status)).collect();
    let expected = [
        Some(ErrorCode::NotPermitted),
        Some(ErrorCode::BadHandle),
        Some(ErrorCode::NotPermitted),
        Some(ErrorCode::Protocol),
        Some(ErrorCode::Protocol),
        // No process has its fd any more.
        Some(ErrorCode::OwnerGone),
        None,
    ];
    assert_eq!(codes, expected);
    let late = client.acquire(&[other.handle.prefix], 0).grants()[0];
    assert_eq!(code(&late.status), Some(ErrorCode::OwnerGone));
}

#[test]
fn declare_when_of_before_the_crash_then_a_lease_and_of_after_it_stale() {
    let (broker, [known, other]) = after_a_crash();
    let mut holder = Client::connect(&broker.socket());
    let born_after = holder.register_memfds(1)[0];
    let mut forged = declared(&known.handle, declare_flags::OPEN);
    forged.handle.generation = 9.into();
    let items = [
        declared(&known.handle, declare_flags::OPEN),
        declared(&other.handle, 0),
        declared(&born_after, 0),
        declared(&known.handle, 0x80),
        forged,
    ];
    let id = holder.id();
    let reply = holder.call(&declare_bytes(id, &items), &[]);
    assert_eq!(reply.message().kind, Kind::Granted);
    let codes: Vec<_> = reply.grants().iter().map(|item| code(&item.status)).collect();
    let (stale, protocol, bad) = (ErrorCode::Stale, ErrorCode::Protocol, ErrorCode::BadHandle);
    assert_eq!(codes, [None, None, Some(stale), Some(protocol), Some(bad)]);
    assert_eq!(reply.grants()[0].fd_index.get(), NO_FD);
    let leases = [0, 1].map(|at| reply.grants()[at].lease.get());
    assert!(holder.release(&leases).iter().all(Status::is_ok));
}
