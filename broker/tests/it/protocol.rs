//! The daemon end to end, in the bare protocol: every request, and every way to get one wrong. Must
//! never depend on time.

use crate::common::*;
use fdbroker_protocol::handle::HandlePrefix;
use fdbroker_protocol::message::{
    AllocationItem, DeclareItem, NO_FD, RecallItem, RedepositItem, RegisterHead, RegisterItem,
    SupplyItem, declare_flags,
};
use fdbroker_protocol::page::{PageHeader, generation_offset, is_alive, page_bytes};
use fdbroker_protocol::{
    ErrorCode, FactsItem, FdType, Handle, Kind, MemoryKind, PROTOCOL_VERSION, Status, Writer,
};
use nix::fcntl::SealFlag;
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
fn hello_when_no_common_version_then_protocol_with_the_brokers_version() {
    let broker = Broker::start(&[]);
    let socket = Socket::connect(&broker.socket());
    let mut writer = Writer::new();
    writer.start(Kind::Hello, 9).push(&hello_body(7, 9));
    let mut bytes = writer.finish(0, 0).to_vec();
    bytes[2] = 7;
    socket.send(&bytes, &[]);
    let reply = socket.recv();
    assert_eq!(reply.message().id, 9);
    assert_eq!(code(&reply.failed()), Some(ErrorCode::Protocol));
    assert_eq!(reply.failed().value.get(), PROTOCOL_VERSION.into());
    socket.expect_end();
}

#[test]
fn hello_when_magic_is_wrong_or_something_else_comes_first_then_ended() {
    let broker = Broker::start(&[]);
    let mut wrong = hello_body(PROTOCOL_VERSION.into(), PROTOCOL_VERSION.into());
    wrong.magic = *b"FDBROKER";
    let mut writer = Writer::new();
    writer.start(Kind::Hello, 1).push(&wrong);
    let wrong = writer.finish(0, 0).to_vec();
    for bytes in [wrong, acquire_bytes(3, &[], 0), b"x".to_vec(), vec![0xff; 65536]] {
        let socket = Socket::connect(&broker.socket());
        socket.send(&bytes, &[]);
        assert_eq!(code(&socket.recv().failed()), Some(ErrorCode::Protocol));
        socket.expect_end();
    }
    Client::connect(&broker.socket());
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
fn acquire_when_handle_is_not_good_then_each_item_says_why_and_the_rest_is_granted() {
    let broker = Broker::start(&[]);
    let mut client = Client::connect(&broker.socket());
    let good = client.register_memfds(1)[0].prefix;
    let bad = |change: &dyn Fn(&mut HandlePrefix)| {
        let mut prefix = good;
        change(&mut prefix);
        prefix
    };
    let handles = [
        bad(&|prefix| prefix.magic = *b"XXXX"),
        bad(&|prefix| prefix.version = 9),
        bad(&|prefix| prefix.mac = (prefix.mac.get() ^ 1).into()),
        bad(&|prefix| prefix.generation = (prefix.generation.get() + 1).into()),
        bad(&|prefix| prefix.node = (prefix.node.get() ^ 1).into()),
        good,
    ];
    let reply = client.acquire(&handles, 1000);
    let codes: Vec<_> = reply.grants().iter().map(|grant| code(&grant.status)).collect();
    let bad = Some(ErrorCode::BadHandle);
    assert_eq!(codes, [bad, bad, bad, bad, Some(ErrorCode::WrongNode), None]);
    assert_eq!(reply.fds.len(), 1);
    assert_eq!(reply.grants()[5].fd_index.get(), 0);
}

#[test]
fn acquire_when_253_then_253_fds_in_order() {
    if !crate::shared::has_fds(2048) {
        return;
    }
    let broker = Broker::start(&[]);
    let mut client = Client::connect(&broker.socket());
    let handles = client.register_memfds(253);
    let prefixes: Vec<_> = handles.iter().map(|handle| handle.prefix).collect();
    let reply = client.acquire(&prefixes, 1000);
    assert_eq!(reply.fds.len(), 253);
    let inodes: std::collections::HashSet<_> = reply.fds.iter().map(inode).collect();
    assert_eq!(inodes.len(), 253);
    for (index, grant) in reply.grants().iter().enumerate() {
        assert_eq!(usize::from(grant.fd_index.get()), index);
        assert_eq!(grant.slot, prefixes[index].slot);
    }
}

#[test]
fn register_when_fd_is_unsupported_then_named_and_nothing_is_kept() {
    let broker = Broker::start(&[]);
    let mut client = Client::connect(&broker.socket());
    client.register_memfds(1);
    let before = broker.open_fds();
    let (socket, _) = fdbroker_scm::seqpacket_pair().unwrap();
    let (pipe, _writer) = nix::unistd::pipe().unwrap();
    let file = |path: &str| OwnedFd::from(std::fs::File::open(path).unwrap());
    let unsealed = memfd(4096, SealFlag::F_SEAL_SHRINK);
    let cases = [
        (socket, FdType::Socket),
        (pipe, FdType::Pipe),
        (file("/dev/null"), FdType::Device),
        (file("/"), FdType::Directory),
        (file("/proc/self/exe"), FdType::File),
        (unsealed, FdType::UnsealedMemfd),
        (sealed_memfd(4095), FdType::TooSmall),
    ];
    for (fd, what) in &cases {
        let id = client.id();
        let reply = client.call(&register_bytes(id, &[memfd_item(4096)], 4, 1), &[fd.as_fd()]);
        let (_, registered) = reply.registered();
        assert_eq!(code(&registered[0].status), Some(ErrorCode::UnsupportedFd), "{what}");
        assert_eq!(registered[0].status.value.get(), *what as u64, "{what}");
    }
    let mut dmabuf = memfd_item(4096);
    dmabuf.facts.kind = MemoryKind::DmaBuf as u8;
    let fd = sealed_memfd(4096);
    let id = client.id();
    let reply = client.call(&register_bytes(id, &[dmabuf], 4, 1), &[fd.as_fd()]);
    assert_eq!(reply.registered().1[0].status.value.get(), FdType::KindMismatch as u64);
    eventually("refused fds are closed", || broker.open_fds() == before);
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

#[test]
fn message_when_broken_then_protocol_and_the_connection_ends() {
    let broker = Broker::start(&[]);
    let fd = sealed_memfd(4096);
    let item = memfd_item(4096);
    let short = register_bytes(5, &[item], 0, 1);
    let mut unknown = acquire_bytes(5, &[], 0);
    unknown[0] = 0x77;
    let mut version = hello_bytes(5);
    version[0] = Kind::Release as u8;
    version[2] = 9;
    // The bytes of a message, and the number of fds with it.
    let cases: Vec<(Vec<u8>, usize)> = vec![
        (vec![1], 0),
        (short[..short.len() - 1].to_vec(), 1),
        (short.clone(), 0),
        (short.clone(), 2),
        (register_bytes(5, &[item, item], 0, 1), 1),
        (register_bytes(0, &[item], 0, 1), 1),
        (acquire_bytes(5, &[], 0), 0),
        (acquire_bytes(5, &[], 0), 1),
        (unknown, 0),
        (version, 0),
        (hello_bytes(5), 0),
        (vec![0xff; 70_000], 0),
        (lease_bytes(Kind::Release, 5, &[1]), 3),
        (lease_bytes(Kind::Granted, 5, &[1]), 0),
    ];
    for (number, (bytes, fds)) in cases.iter().enumerate() {
        let client = Client::connect(&broker.socket());
        client.main.send(bytes, &vec![fd.as_fd(); *fds]);
        let status = client.main.recv().failed();
        assert_eq!(code(&status), Some(ErrorCode::Protocol), "case {number}");
        client.main.expect_end();
        client.event.expect_end();
    }
    let mut client = Client::connect(&broker.socket());
    client.register_memfds(1);
}

#[test]
fn message_when_empty_then_the_connection_ends() {
    let broker = Broker::start(&[]);
    let client = Client::connect(&broker.socket());
    use nix::sys::socket::{MsgFlags, send};
    use std::os::fd::AsRawFd;
    send(client.main.0.as_raw_fd(), b"", MsgFlags::MSG_NOSIGNAL).unwrap();
    assert_eq!(code(&client.main.recv().failed()), Some(ErrorCode::Protocol));
    client.main.expect_end();
}

#[test]
fn event_socket_when_something_but_a_supply_comes_then_ended() {
    let broker = Broker::start(&[]);
    let client = Client::connect(&broker.socket());
    client.event.send(&acquire_bytes(5, &[], 0), &[]);
    client.event.expect_end();
    client.main.expect_end();
}

/// Answers a recall with one fd.
fn supply_bytes(wanted: &RecallItem) -> Vec<u8> {
    let supply = SupplyItem {
        facts: wanted.facts,
        slot: wanted.slot,
        generation: wanted.generation,
        code: 0.into(),
        reserved: 0,
    };
    let mut writer = Writer::new();
    writer.start(Kind::Supply, 0).push(&supply);
    writer.finish(1, 1).to_vec()
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
fn redeposit_when_handle_and_token_are_right_then_the_old_handle_works_again() {
    let (broker, [known, _]) = after_a_crash();
    let mut owner = Client::connect(&broker.socket());
    let consumer = Client::connect(&broker.socket());
    let early = acquire_bytes(900, &[known.handle.prefix], 20_000);
    consumer.main.send(&early, &[]);

    let id = owner.id();
    let reply = owner.call(&redeposit_bytes(id, &[known]), &[]);
    let (_, registered) = reply.registered();
    assert!(registered[0].status.is_ok(), "{}", registered[0].status);
    assert_eq!(registered[0].handle.to_bytes(), known.handle.to_bytes());
    assert_eq!(registered[0].token, known.token);

    let recall = owner.event.recv();
    let recalled = recall.message().items::<RecallItem>().unwrap()[0];
    assert_eq!(recalled.slot, known.handle.prefix.slot);
    let fd = sealed_memfd(4096);
    owner.event.send(&supply_bytes(&recalled), &[fd.as_fd()]);
    let granted = consumer.main.recv();
    assert!(granted.grants()[0].status.is_ok(), "{}", granted.grants()[0].status);
    assert_eq!(inode(&granted.fds[0]), inode(&fd));
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

#[test]
fn redeposit_and_declare_when_empty_or_with_fds_then_protocol_and_the_connection_ends() {
    let broker = Broker::start(&[]);
    let fd = sealed_memfd(4096);
    for (bytes, fds) in [
        (redeposit_bytes(5, &[]), 0),
        (declare_bytes(5, &[]), 0),
        (redeposit_bytes(0, &[]), 0),
        (redeposit_bytes(5, &[]), 1),
    ] {
        let client = Client::connect(&broker.socket());
        client.main.send(&bytes, &vec![fd.as_fd(); fds]);
        assert_eq!(code(&client.main.recv().failed()), Some(ErrorCode::Protocol));
        client.main.expect_end();
    }
}

#[test]
fn recall_when_evicted_then_owner_supplies_and_consumer_is_served() {
    // Room for two held fds: the third deposit evicts one.
    let broker =
        Broker::start(&["--set", "caps.node.held_fds=4", "--set", "limits.base_credits=1"]);
    let mut owner = Client::connect(&broker.socket());
    let mut consumer = Client::connect(&broker.socket());
    let mut fds = Vec::new();
    let mut handles = Vec::new();
    for number in 0..6u64 {
        while owner.credits == 0 {
            let id = owner.id();
            let reply = owner.call(&register_bytes(id, &[], 1, 0), &[]);
            owner.credits = reply.registered().0.deposit_credits.get();
        }
        let fd = sealed_memfd(4096);
        let mut item = memfd_item(4096);
        item.facts.owner_allocation_id = (100 + number).into();
        let id = owner.id();
        let (head, registered) =
            owner.call(&register_bytes(id, &[item], 1, 1), &[fd.as_fd()]).registered();
        owner.credits = head.deposit_credits.get();
        assert!(registered[0].status.is_ok());
        handles.push(registered[0].handle);
        fds.push(fd);
    }
    // The first one is evicted by now.
    let id = consumer.id();
    consumer.main.send(&acquire_bytes(id, &[handles[0].prefix], 10_000), &[]);
    let recall = owner.event.recv();
    assert_eq!(recall.kind(), Kind::Recall);
    let wanted = recall.message().items::<RecallItem>().unwrap()[0];
    assert_eq!(wanted.facts.owner_allocation_id.get(), 100);
    owner.event.send(&supply_bytes(&wanted), &[fds[0].as_fd()]);
    let reply = consumer.main.recv();
    assert!(reply.grants()[0].status.is_ok(), "{}", reply.grants()[0].status);
    assert_eq!(inode(&reply.fds[0]), inode(&fds[0]));
}

#[test]
fn admin_when_asked_then_pages_of_what_there_is() {
    if !crate::shared::has_fds(2048) {
        return;
    }
    use fdbroker_protocol::admin::{
        AllocationRecord, ClientRecord, Filter, LeaseRecord, NodeStatus, Page, Query,
    };
    let broker = Broker::start(&[]);
    let mut client = Client::connect(&broker.socket());
    let handles = client.register_memfds(300);
    let prefixes: Vec<_> = handles[..10].iter().map(|handle| handle.prefix).collect();
    let _grants = client.acquire(&prefixes, 0);
    let admin = Socket::connect(&broker.admin_dir().join("admin.sock"));
    let ask = |kind, cursor: u32, filter: Filter, value: u64| {
        let mut writer = Writer::new();
        let query = Query {
            cursor: cursor.into(),
            filter: (filter as u32).into(),
            value: value.into(),
            reserved: 0.into(),
        };
        writer.start(kind, 4).push(&query);
        admin.send(writer.finish(0, 0), &[]);
        admin.recv()
    };

    let reply = ask(Kind::AdminStatus, 0, Filter::None, 0);
    let status = *reply.message().body_as::<NodeStatus>().unwrap();
    assert_eq!(status.pid.get(), broker.child.id());
    assert_eq!((status.uses.connections.now.get(), status.uses.allocations.now.get()), (1, 300));
    assert_eq!((status.gauges.stored_fds.get(), status.uses.open_leases.now.get()), (300, 10));

    let mut records = Vec::new();
    let mut cursor = 0;
    loop {
        let reply = ask(Kind::AdminAllocations, cursor, Filter::None, 0);
        let message = reply.message();
        let (page, items) = message.head_and_items::<Page, AllocationRecord>().unwrap();
        assert!(reply.bytes.len() <= 32 * 1024);
        records.extend_from_slice(items);
        cursor = page.next_cursor.get();
        if page.done.get() == 1 {
            break;
        }
    }
    assert_eq!(records.len(), 300);
    assert!(records.iter().all(|record| record.inode.get() != 0));
    assert_eq!(records[0].owner_pid.get(), std::process::id());
    assert_eq!(&records[0].owner_name[..6], b"a test");

    let reply = ask(Kind::AdminLeases, 0, Filter::Pid, std::process::id().into());
    let message = reply.message();
    let (page, leases) = message.head_and_items::<Page, LeaseRecord>().unwrap();
    assert_eq!((page.done.get(), leases.len()), (1, 10));
    assert_eq!(leases[0].state.get(), 1);

    let id = handles[3].id();
    let value = u64::from(id.slot) | u64::from(id.generation) << 32;
    let reply = ask(Kind::AdminLeases, 0, Filter::Allocation, value);
    let message = reply.message();
    assert_eq!(message.head_and_items::<Page, LeaseRecord>().unwrap().1.len(), 1);

    let reply = ask(Kind::AdminClients, 0, Filter::None, 0);
    let message = reply.message();
    let (_, clients) = message.head_and_items::<Page, ClientRecord>().unwrap();
    assert_eq!(clients.len(), 1);
    assert_eq!(clients[0].uses.allocations.get(), 300);
}
