//! Isolated memory with a scripted broker: registered from the beginning, resident, no fd kept.

use crate::support::*;
use fdbroker_client::host::{IsolatedBuffer, IsolatedMemory};
use fdbroker_client::{Client, Deadline, ErrorCode, MemoryKind, Notice, Share};
use fdbroker_protocol::{Kind, Resource, Scope, Status};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::stat::fstat;
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;
use std::thread;

const PAGE: usize = 4096;

fn builder() -> fdbroker_client::ClientBuilder {
    Client::builder().own_fds(2)
}

/// Makes a buffer as slot `slot`; answers it with the fd that the broker got.
fn isolated(client: &Client, peer: &Peer, share: Share, slot: u32) -> (IsolatedBuffer, Received) {
    let memory = IsolatedMemory::Memfd;
    thread::scope(|scope| {
        let call = scope.spawn(|| IsolatedBuffer::new(client, memory, PAGE + 1, share, soon()));
        let request = peer.recv_kind(Kind::Register);
        peer.registered(&request, 8, slot);
        (call.join().unwrap().unwrap(), request)
    })
}

/// The inodes of the memfds of this name that this process has open or mapped, from /proc.
fn inodes(name: &str) -> (Vec<u64>, Vec<u64>) {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        let Ok(target) = std::fs::read_link(&path) else { continue };
        if target.to_string_lossy().contains(name)
            && let Ok(stat) = std::fs::metadata(&path)
        {
            open.push(std::os::unix::fs::MetadataExt::ino(&stat));
        }
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lines = maps.lines().filter(|line| line.contains(name));
    let inode = |line: &str| line.split_whitespace().nth(4).unwrap().parse().unwrap();
    (open, lines.map(inode).collect())
}

#[test]
fn new_when_made_then_resident_sealed_of_its_own_and_no_fd_is_left() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(builder(), Terms::default());
    let (buffer, request) = isolated(&client, &peer, Share::Any, 1);
    let item = request.register().1[0];
    assert_eq!((item.facts.kind, item.flags), (MemoryKind::Memfd as u8, 0), "not recallable");
    assert_eq!((item.share, item.facts.fd_offset.get()), (Share::Any as u8, 0));
    assert_eq!(item.facts.size_bytes.get() as usize, 2 * PAGE);
    assert_eq!(item.facts.owner_allocation_id.get(), buffer.owner_allocation_id());
    let seals =
        SealFlag::from_bits_truncate(fcntl(&request.fds[0], FcntlArg::F_GET_SEALS).unwrap());
    assert!(seals.contains(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL));
    assert_eq!((buffer.len(), buffer.span()), (PAGE + 1, 2 * PAGE));
    assert_eq!((buffer.handle(), buffer.id()), (Some(handle(1)), Some(handle(1).id())));

    buffer.write_at(PAGE - 5, b"shared").unwrap();
    let mut bytes = [0; 6];
    nix::sys::uio::pread(&request.fds[0], &mut bytes, PAGE as i64 - 5).unwrap();
    assert_eq!(&bytes, b"shared");
    nix::sys::uio::pwrite(&request.fds[0], b"back", 0).unwrap();
    buffer.read_at(0, &mut bytes[..4]).unwrap();
    assert_eq!(&bytes[..4], b"back");
    assert_eq!(buffer.write_at(PAGE, &[0; 2]).unwrap_err().code, ErrorCode::BadHandle);
    assert_eq!(buffer.read_at(usize::MAX, &mut bytes).unwrap_err().code, ErrorCode::BadHandle);

    let inode = fstat(&request.fds[0]).unwrap().st_ino;
    assert!(request.fds[0].as_raw_fd() >= 0 && inodes("fdbroker-isolated").0.contains(&inode));
    drop(request);
    let (open, mapped) = inodes("fdbroker-isolated");
    assert!(!open.contains(&inode), "the broker has the only fd");
    assert!(mapped.contains(&inode));
}

#[test]
fn drop_when_registered_then_unregistered_without_waiting_and_unmapped() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(builder(), Terms::default());
    let (first, request) = isolated(&client, &peer, Share::Uid, 1);
    let (second, _) = isolated(&client, &peer, Share::Uid, 2);
    assert_ne!(first.owner_allocation_id(), second.owner_allocation_id());
    let inode = fstat(&request.fds[0]).unwrap().st_ino;
    assert!(inodes("fdbroker-isolated").1.contains(&inode));
    first.free();
    assert!(!inodes("fdbroker-isolated").1.contains(&inode));
    let gone = peer.recv_kind(Kind::Unregister);
    assert_eq!(gone.unregister(), [handle(1).id()]);
    peer.unregistered(&gone, false);
    assert_eq!(second.handle(), Some(handle(2)));
}

#[test]
fn new_when_the_broker_is_full_then_no_quota_names_cap_and_holder_and_nothing_is_left() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(builder(), Terms { credits: 1, ..Terms::default() });
    let quota = Status::no_quota(Resource::HeldFds, Scope::Node, 3, 4711);
    let new = || IsolatedBuffer::new(&client, IsolatedMemory::Memfd, 1, Share::Uid, soon());
    // Refused in the answer to the deposit, then already when asked for a credit, before anything
    // is allocated.
    for deposits in [1, 0] {
        thread::scope(|scope| {
            let call = scope.spawn(new);
            let request = peer.recv_kind(Kind::Register);
            assert_eq!(request.count, deposits);
            let inode = request.fds.first().map(|fd| fstat(fd).unwrap().st_ino);
            peer.fail(request.id, quota);
            let error = call.join().unwrap().unwrap_err();
            assert_eq!((error.code, error.status), (ErrorCode::NoQuota, Some(quota)));
            for part in ["held_fds = 3", "4711"] {
                assert!(error.to_string().contains(part), "{error}");
            }
            drop(request);
            let (open, mapped) = inodes("fdbroker-isolated");
            let left = |inode| open.contains(&inode) || mapped.contains(&inode);
            assert!(!inode.is_some_and(left));
        });
    }
}

#[test]
fn reconnect_when_made_before_then_memory_stays_and_is_not_shared_any_more() {
    let broker = FakeBroker::listen();
    let (sender, notices) = channel();
    let on_notice = move |notice| drop(sender.send(notice));
    let (client, peer) = broker.client_with(builder().on_notice(on_notice), Terms::default());
    let (buffer, _) = isolated(&client, &peer, Share::Uid, 1);
    buffer.write_at(0, b"kept").unwrap();
    drop(peer);
    assert_eq!(notices.recv_timeout(PATIENCE).unwrap(), Notice::Disconnected);
    assert_eq!((buffer.is_shared(), buffer.handle()), (false, None));
    let peer = broker.accept(Terms::default());
    let lost = notices.recv_timeout(PATIENCE).unwrap();
    let (id, code) = (handle(1).id(), ErrorCode::Lost);
    assert!(
        matches!(lost, Notice::RegistrationLost { id: i, code: c, .. } if (i, c) == (id, code))
    );
    assert!(matches!(notices.recv_timeout(PATIENCE).unwrap(), Notice::Reconnected { .. }));
    // The new broker has given the same number to another allocation.
    peer.page.set(handle(1).id());
    assert_eq!((buffer.is_shared(), buffer.handle(), buffer.id()), (false, None, None));
    let mut bytes = [0; 4];
    buffer.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
    drop(buffer);
    peer.assert_silent();
    let (again, _) = isolated(&client, &peer, Share::Uid, 5);
    assert_eq!(again.handle(), Some(handle(5)));
}

#[test]
fn handle_when_revoked_by_the_administrator_then_none() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(builder(), Terms::default());
    let (buffer, _) = isolated(&client, &peer, Share::Uid, 1);
    peer.page.end(handle(1).id());
    assert_eq!((buffer.is_shared(), buffer.handle()), (false, None));
}

#[test]
fn new_when_it_cannot_be_then_says_why_and_sends_nothing() {
    let broker = FakeBroker::listen();
    let (narrow, narrow_peer) = broker.client();
    let new = |client, memory, len| IsolatedBuffer::new(client, memory, len, Share::Uid, soon());
    let error = new(&narrow, IsolatedMemory::Memfd, 1).unwrap_err();
    assert_eq!(error.code, ErrorCode::NotSupported);
    assert!(error.to_string().contains("own_fds"), "{error}");
    narrow_peer.assert_silent();

    let (client, peer) = broker.client_with(builder(), Terms::default());
    for (len, code) in [(0, ErrorCode::BadHandle), (usize::MAX, ErrorCode::Internal)] {
        assert_eq!(new(&client, IsolatedMemory::Memfd, len).unwrap_err().code, code);
    }
    if IsolatedMemory::DmaHeap.available().is_err() {
        let error = new(&client, IsolatedMemory::DmaHeap, 1).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotSupported);
        assert!(error.to_string().contains("/dev/dma_heap/system"), "{error}");
    }
    peer.assert_silent();
    // The credits and the export window of unsent deposits are free again.
    let (_buffer, _) = isolated(&client, &peer, Share::Uid, 1);
}

#[test]
fn new_when_the_answer_comes_too_late_then_undone() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(builder(), Terms::default());
    let memory = IsolatedMemory::Memfd;
    let deadline = Deadline::from_ms(1);
    let error = IsolatedBuffer::new(&client, memory, 1, Share::Uid, deadline).unwrap_err();
    assert_eq!(error.code, ErrorCode::TimedOut);
    let request = peer.recv_kind(Kind::Register);
    assert_eq!(peer.recv().kind, Kind::Cancel);
    peer.registered(&request, 8, 1);
    assert_eq!(peer.recv().unregister(), [handle(1).id()]);
}
