//! Host arenas with a scripted broker: a range is reused only when drained, and the library answers
//! recalls.

use crate::support::*;
use fdbroker_client::host::{Arena, HostBuffer, HostMemory};
use fdbroker_client::{Client, Deadline, ErrorCode, MemoryKind, Notice, Share, backend};
use fdbroker_protocol::Kind;
use fdbroker_protocol::message::register_flags;
use nix::sys::stat::fstat;
use std::sync::mpsc::channel;
use std::thread;

const PAGE: usize = 4096;

/// Registers a buffer, which gets slot 1.
fn register(buffer: &HostBuffer, peer: &Peer) {
    thread::scope(|scope| {
        let call = scope.spawn(|| buffer.register(soon()).unwrap());
        peer.registered(&peer.recv(), 8, 1);
        call.join().unwrap();
    });
}

#[test]
fn register_when_memfd_then_every_buffer_is_the_same_file_at_its_offset() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, 4 * PAGE).unwrap();
    let buffers: Vec<_> = (0..3).map(|_| arena.alloc(100).unwrap()).collect();
    buffers[1].write_at(0, b"second").unwrap();
    let call = || arena.register(&buffers, soon()).unwrap();
    thread::scope(|scope| {
        let handles = scope.spawn(call);
        let request = peer.recv();
        let (_, items) = request.register();
        let inodes: Vec<_> = request.fds.iter().map(|fd| fstat(fd).unwrap().st_ino).collect();
        assert_eq!(inodes, [inodes[0]; 3]);
        let offsets: Vec<_> =
            items.iter().map(|item| item.facts.fd_offset.get() as usize).collect();
        assert_eq!(offsets, [0, PAGE, 2 * PAGE]);
        assert!(items.iter().all(|item| item.facts.kind == MemoryKind::Memfd as u8));
        assert!(items.iter().all(|item| item.facts.size_bytes.get() as usize == PAGE));
        let base = buffers[0].as_ptr().addr() as u64;
        assert_eq!(items[2].base.get(), base + 2 * PAGE as u64);
        let mut bytes = [0; 6];
        nix::sys::uio::pread(&request.fds[1], &mut bytes, PAGE as i64).unwrap();
        assert_eq!(&bytes, b"second");
        peer.registered(&request, 8, 1);
        let handles: Vec<_> = handles.join().unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!(handles, [handle(1), handle(2), handle(3)]);
    });
    // A second time sends nothing.
    assert_eq!(call()[2].as_ref().unwrap(), &handle(3));
    assert_eq!(buffers[0].handle(), Some(handle(1)));
}

#[test]
fn drop_when_leased_then_range_is_reused_only_after_drained() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, PAGE).unwrap();
    let buffer = arena.alloc(PAGE).unwrap();
    let (first_id, base) = (buffer.owner_allocation_id(), buffer.as_ptr().addr() as u64);
    register(&buffer, &peer);
    let id = buffer.id().unwrap();
    drop(buffer);
    let request = peer.recv();
    assert_eq!(request.unregister(), [id]);
    assert_eq!(arena.alloc(1).unwrap_err().code, ErrorCode::NoQuota);
    peer.unregistered(&request, false);
    peer.drained(id, first_id + 1000, base);
    thread::sleep(SILENCE);
    assert_eq!(arena.alloc(1).unwrap_err().code, ErrorCode::NoQuota, "another was drained");
    peer.drained(id, first_id, base);
    eventually("the range's return", || arena.free_bytes() == PAGE);
    let again = arena.alloc(1).unwrap();
    assert_eq!(again.as_ptr().addr() as u64, base);
    assert_ne!(again.owner_allocation_id(), first_id);
}

#[test]
fn retire_when_others_have_it_then_it_waits_for_the_last_and_the_range_stays_the_buffers() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, PAGE).unwrap();
    let buffer = arena.alloc(PAGE).unwrap();
    let (owner_id, base) = (buffer.owner_allocation_id(), buffer.as_ptr().addr() as u64);
    register(&buffer, &peer);
    let (handle, id) = (buffer.handle().unwrap(), buffer.id().unwrap());
    thread::scope(|scope| {
        let call = scope.spawn(|| client.retire(&handle, Deadline::from_ms(50)));
        let request = peer.recv_kind(Kind::Unregister);
        assert_eq!(request.unregister(), [id]);
        peer.unregistered(&request, false);
        let error = call.join().unwrap().unwrap_err();
        assert_eq!(error.code, ErrorCode::TimedOut);
        assert!(error.to_string().contains(&format!("fdbroker holders {id}")), "{error}");
        // A second call sends nothing, and hears of the drain.
        let call = scope.spawn(|| client.retire(&handle, soon()));
        thread::sleep(SILENCE);
        peer.drained(id, owner_id, base);
        call.join().unwrap().unwrap();
    });
    client.retire(&handle, soon()).unwrap();
    assert_eq!(arena.alloc(1).unwrap_err().code, ErrorCode::NoQuota);
    buffer.write_at(0, b"still").unwrap();
    // Drained before: free at once.
    drop(buffer);
    assert_eq!((arena.free_bytes(), arena.held_back_bytes()), (PAGE, 0));
    assert_eq!(
        client.retire(&crate::support::handle(7), soon()).unwrap_err().code,
        ErrorCode::Stale
    );
}

#[test]
fn retire_when_nobody_has_it_then_the_answer_is_enough() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, PAGE).unwrap();
    let buffer = arena.alloc(PAGE).unwrap();
    register(&buffer, &peer);
    let handle = buffer.handle().unwrap();
    thread::scope(|scope| {
        let call = scope.spawn(|| client.retire(&handle, soon()));
        peer.unregistered(&peer.recv_kind(Kind::Unregister), true);
        call.join().unwrap().unwrap();
    });
}

#[test]
fn retire_when_the_broker_is_lost_meanwhile_then_the_next_one_says_it_is_drained() {
    for answer in [Ok(()), Err(ErrorCode::BadHandle)] {
        let broker = FakeBroker::listen();
        let (client, peer) = broker.client();
        let arena = Arena::new(&client, HostMemory::Memfd, PAGE).unwrap();
        let buffer = arena.alloc(PAGE).unwrap();
        let (owner_id, base) = (buffer.owner_allocation_id(), buffer.as_ptr().addr() as u64);
        register(&buffer, &peer);
        let handle = buffer.handle().unwrap();
        thread::scope(|scope| {
            let call = scope.spawn(|| client.retire(&handle, soon()));
            peer.unregistered(&peer.recv_kind(Kind::Unregister), false);
            drop(peer);
            let peer = broker.accept(Terms::default());
            let request = peer.recv();
            assert_eq!(
                request.redeposit()[0].item.flags & register_flags::ENDED,
                register_flags::ENDED
            );
            peer.named(&request, &[answer]);
            if answer.is_ok() {
                peer.drained(handle.id(), owner_id, base);
            }
            let known = call.join().unwrap().map_err(|error| error.code);
            assert_eq!(known, answer.map_err(|_| ErrorCode::Stale));
        });
        drop(buffer);
        let orphaned = if answer.is_ok() { 0 } else { PAGE };
        assert_eq!(arena.orphaned_bytes(), orphaned);
    }
}

#[test]
fn drop_when_retired_and_leased_then_range_is_reused_after_drained_and_never_orphaned() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, PAGE).unwrap();
    let buffer = arena.alloc(PAGE).unwrap();
    let (owner_id, base) = (buffer.owner_allocation_id(), buffer.as_ptr().addr() as u64);
    register(&buffer, &peer);
    let handle = buffer.handle().unwrap();
    let error = client.retire(&handle, Deadline::from_ms(0)).unwrap_err();
    assert_eq!(error.code, ErrorCode::TimedOut);
    drop(buffer);
    peer.unregistered(&peer.recv_kind(Kind::Unregister), false);
    assert_eq!((arena.orphaned_bytes(), arena.held_back_bytes()), (0, PAGE));
    peer.drained(handle.id(), owner_id, base);
    eventually("the range's return", || arena.free_bytes() == PAGE);
    client.retire(&handle, soon()).unwrap();
}

#[test]
fn drop_when_no_lease_was_left_then_reply_alone_frees_the_range() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, 300 * PAGE).unwrap();
    let buffers: Vec<_> = (0..300).map(|_| arena.alloc(PAGE).unwrap()).collect();
    thread::scope(|scope| {
        let call = scope.spawn(|| arena.register(&buffers, soon()).unwrap());
        let mut registered = 0;
        while registered < 300 {
            let request = peer.recv();
            peer.registered(&request, 253, registered as u32);
            registered += request.count;
        }
        assert!(call.join().unwrap().iter().all(Result::is_ok));
    });
    // No call is made meanwhile: the library thread reads the replies, and the waiting releases go
    // in batches.
    drop(buffers);
    let (mut unregistered, mut messages) = (0, 0);
    while unregistered < 300 {
        let request = peer.recv_kind(Kind::Unregister);
        peer.unregistered(&request, true);
        unregistered += request.count;
        messages += 1;
    }
    assert!(messages <= 150, "{messages} messages for 300 buffers");
    eventually("all ranges' return", || arena.free_bytes() == 300 * PAGE);
}

#[test]
fn recall_when_of_an_arena_then_library_supplies_and_freed_is_stale() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, 2 * PAGE).unwrap();
    let _first = arena.alloc(PAGE).unwrap();
    let buffer = arena.alloc(PAGE).unwrap();
    let (owner_id, base) = (buffer.owner_allocation_id(), buffer.as_ptr().addr() as u64);
    register(&buffer, &peer);
    let id = buffer.id().unwrap();
    peer.recall(&[recall_item(id, owner_id, base), recall_item(id, owner_id + 1, base)]);
    let supply = peer.recv_event();
    let items = supply.supply();
    assert_eq!((items[0].code.get(), items[0].facts.fd_offset.get()), (0, PAGE as u64));
    assert_eq!(items[0].facts.owner_allocation_id.get(), owner_id);
    assert_eq!(items[1].code.get(), ErrorCode::Stale as u16, "the address has another id");
    assert_eq!(supply.fds.len(), 1);
    drop(buffer);
    peer.recv_kind(Kind::Unregister);
    peer.recall(&[recall_item(id, owner_id, base)]);
    let supply = peer.recv_event();
    assert_eq!(supply.supply()[0].code.get(), ErrorCode::Stale as u16);
    assert!(supply.fds.is_empty());
}

#[test]
fn reconnect_when_buffers_are_registered_then_they_go_on_and_freed_ones_are_named_as_ended() {
    let broker = FakeBroker::listen();
    let (sender, notices) = channel();
    let builder = Client::builder().on_notice(move |notice| {
        let _ = sender.send(notice);
    });
    let (client, peer) = broker.client_with(builder, Terms::default());
    let arena = Arena::new(&client, HostMemory::Memfd, 2 * PAGE).unwrap();
    let (buffer, freed) = (arena.alloc(PAGE).unwrap(), arena.alloc(PAGE).unwrap());
    thread::scope(|scope| {
        let call = scope.spawn(|| arena.register([&buffer, &freed], soon()).unwrap());
        peer.registered(&peer.recv(), 8, 1);
        call.join().unwrap();
    });
    drop(peer);
    assert_eq!(notices.recv_timeout(PATIENCE).unwrap(), Notice::Disconnected);
    // Freed while no broker can tell which consumers have it mapped.
    drop(freed);
    assert_eq!(arena.orphaned_bytes(), PAGE);
    let peer = broker.accept(Terms::default());
    let request = peer.recv();
    let named = request.redeposit();
    let ended = |id| {
        let item = named.iter().find(|item| item.handle == handle(id).into()).expect("it is named");
        assert_eq!(item.token, [9; 16]);
        (item.item.flags & register_flags::ENDED != 0).then_some(item.item)
    };
    assert_eq!((named.len(), ended(1)), (2, None));
    let ended = ended(2).expect("it has ended");
    peer.named(&request, &[Ok(()), Ok(())]);
    notices.recv_timeout(PATIENCE).unwrap();
    assert_eq!((arena.orphaned_bytes(), arena.held_back_bytes()), (0, PAGE));
    assert_eq!(buffer.register(soon()).unwrap(), handle(1));
    drop(buffer);
    peer.unregistered(&peer.recv_kind(Kind::Unregister), true);
    eventually("the held one's drain", || arena.free_bytes() == PAGE);
    assert_eq!(arena.reclaim_orphans(), 0);
    peer.drained(handle(2).id(), ended.facts.owner_allocation_id.get(), ended.base.get());
    eventually("the freed one's drain", || arena.free_bytes() == 2 * PAGE);
    assert_eq!(arena.held_back_bytes(), 0);
}

#[test]
fn reconnect_when_the_next_broker_knows_nothing_of_a_freed_range_then_orphaned_until_reclaimed() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, PAGE).unwrap();
    let buffer = arena.alloc(PAGE).unwrap();
    register(&buffer, &peer);
    // Freed, and leased when the broker dies.
    drop(buffer);
    peer.unregistered(&peer.recv_kind(Kind::Unregister), false);
    drop(peer);
    eventually("the loss", || arena.orphaned_bytes() == PAGE);
    let peer = broker.accept(Terms::default());
    peer.named(&peer.recv(), &[Err(ErrorCode::BadHandle)]);
    eventually("the next broker", || client.is_connected());
    assert_eq!((arena.orphaned_bytes(), arena.held_back_bytes()), (PAGE, PAGE));
    assert_eq!(arena.reclaim_orphans(), PAGE);
    assert_eq!((arena.free_bytes(), arena.held_back_bytes()), (PAGE, 0));
}

#[test]
fn freed_when_its_naming_is_not_answered_then_unregistered_and_used_again_when_drained() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, PAGE).unwrap();
    let buffer = arena.alloc(PAGE).unwrap();
    register(&buffer, &peer);
    drop(peer);
    let peer = broker.accept(Terms::default());
    let request = peer.recv();
    assert_eq!(request.redeposit()[0].item.flags & register_flags::ENDED, 0);
    drop(buffer);
    assert_eq!(arena.orphaned_bytes(), PAGE);
    peer.named(&request, &[Ok(())]);
    let request = peer.recv_kind(Kind::Unregister);
    eventually("the next broker", || client.is_connected());
    assert_eq!((arena.orphaned_bytes(), arena.held_back_bytes()), (0, PAGE));
    peer.unregistered(&request, true);
    eventually("the range is used again", || arena.free_bytes() == PAGE);
}

#[test]
fn reconnect_when_held_over_losses_then_ranges_are_used_again_by_themselves() {
    let broker = FakeBroker::listen();
    let (sender, notices) = channel();
    let builder = Client::builder().on_notice(move |notice| {
        let _ = sender.send(notice);
    });
    let (client, mut peer) = broker.client_with(builder, Terms::default());
    let arena = Arena::new(&client, HostMemory::Memfd, PAGE).unwrap();
    let buffer = arena.alloc(PAGE).unwrap();
    register(&buffer, &peer);
    for _ in 0..3 {
        drop(peer);
        assert_eq!(notices.recv_timeout(PATIENCE).unwrap(), Notice::Disconnected);
        peer = broker.accept(Terms::default());
        peer.named(&peer.recv(), &[Ok(())]);
        let told = notices.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(told, Notice::Reconnected { .. }), "{told:?}");
    }
    drop(buffer);
    let request = peer.recv_kind(Kind::Unregister);
    assert_eq!((arena.held_back_bytes(), arena.free_bytes()), (PAGE, 0), "it may be leased");
    peer.unregistered(&request, true);
    eventually("the range is used again", || arena.free_bytes() == PAGE);
    assert_eq!((arena.held_back_bytes(), arena.orphaned_bytes()), (0, 0));
}

#[test]
fn register_when_same_buffer_twice_in_one_call_then_counted_once() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, PAGE).unwrap();
    let buffer = arena.alloc(PAGE).unwrap();
    thread::scope(|scope| {
        let call = scope.spawn(|| arena.register([&buffer, &buffer], soon()).unwrap());
        // A real broker would give both the same handle.
        let request = peer.recv();
        assert_eq!(request.count, 1);
        peer.registered(&request, 8, 1);
        let handles = call.join().unwrap();
        assert_eq!(handles[0].as_ref().unwrap(), handles[1].as_ref().unwrap());
    });
}

#[test]
fn arena_when_memfd_for_others_then_not_permitted() {
    let broker = FakeBroker::listen();
    let (client, _peer) = broker.client();
    let memfd = backend::by_name("memfd").unwrap();
    let error = Arena::with_backend(&client, memfd, PAGE, Share::Any).unwrap_err();
    assert_eq!(error.code, ErrorCode::NotPermitted);
}

#[test]
fn alloc_when_slice_then_bytes_are_those_of_the_memory() {
    let broker = FakeBroker::listen();
    let (client, _peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, PAGE).unwrap();
    let mut buffer = arena.alloc(16).unwrap();
    // SAFETY: not registered, so nobody else has it.
    unsafe { buffer.as_mut_slice() }.copy_from_slice(&[7; 16]);
    let mut bytes = [0; 16];
    buffer.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 16]);
    buffer.write_at(16, &[1]).unwrap_err();
    assert_eq!(arena.alloc(usize::MAX).unwrap_err().code, ErrorCode::NoQuota);
}

#[test]
fn udmabuf_when_absent_then_not_supported_and_when_there_then_real_dma_bufs() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(Client::builder().own_fds(3), Terms::default());
    if let Err(error) = HostMemory::Udmabuf.available() {
        assert_eq!(error.code, ErrorCode::NotSupported);
        assert!(error.to_string().contains("/dev/udmabuf"), "{error}");
        let error = Arena::new(&client, HostMemory::Udmabuf, PAGE).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotSupported);
        return;
    }
    let arena = Arena::new(&client, HostMemory::Udmabuf, 3 * PAGE).unwrap();
    let buffers: Vec<_> = (0..3).map(|_| arena.alloc(PAGE).unwrap()).collect();
    thread::scope(|scope| {
        let call = scope.spawn(|| arena.register(&buffers, soon()).unwrap());
        let mut inodes = Vec::new();
        for (count, slot) in [(2, 1), (1, 3)] {
            let request = peer.recv();
            let (_, items) = request.register();
            assert_eq!(items.len(), count, "no more than the window");
            assert!(items.iter().all(|item| item.facts.kind == MemoryKind::DmaBuf as u8));
            assert!(items.iter().all(|item| item.facts.fd_offset.get() == 0));
            inodes.extend(request.fds.iter().map(|fd| fstat(fd).unwrap().st_ino));
            peer.registered(&request, 8, slot);
        }
        assert!(call.join().unwrap().iter().all(Result::is_ok));
        inodes.dedup();
        assert_eq!(inodes.len(), 3);
    });
}
