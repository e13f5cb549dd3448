//! A full fd table and fork(2), which change a whole process. Each test starts itself again in a
//! process of its own, which runs the `child_` function with the scripted broker of this process.

use crate::support::child::{is_child, leave_room_for, start};
use crate::support::*;
use fdbroker_client::{
    Access, Arena, CacheSettings, Client, Deposit, ErrorCode, Exports, HostMemory, Import,
    ImportCache, IsolatedBuffer, IsolatedMemory, Lease, MemoryKind, Share,
};
use fdbroker_protocol::Kind;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn acquire_many_when_fd_table_is_full_then_those_that_fit_stay_and_nothing_leaks() {
    if is_child() {
        return child_with_a_full_fd_table();
    }
    let broker = FakeBroker::listen();
    let mut child = start(
        "acquire_many_when_fd_table_is_full_then_those_that_fit_stay_and_nothing_leaks",
        &broker,
    );
    let mut peer = broker.accept(Terms::default());
    let fd = memory(b"");
    let request = peer.recv();
    peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096); 5]);
    // The kernel installs fds in order: the last two are gone, and the library gives their leases
    // back.
    assert_eq!(released(&peer, 2), [4, 5]);
    let request = peer.recv_kind(Kind::Acquire);
    assert_eq!(request.acquire().1.len(), 2);
    peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096); 2]);
    assert_eq!(released(&peer, 2), [6, 7]);
    // The caller has made room and tries again.
    assert_eq!(released(&peer, 3), [1, 2, 3]);
    let request = peer.recv_kind(Kind::Acquire);
    peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096); 2]);
    assert_eq!(released(&peer, 2), [8, 9]);
    peer.assert_eof();
    assert!(child.wait().unwrap().success());
}

fn released(peer: &Peer, count: usize) -> Vec<u64> {
    let mut leases = Vec::new();
    while leases.len() < count {
        leases.extend(peer.recv_kind(Kind::Release).leases());
    }
    leases.sort_unstable();
    leases
}

fn child_with_a_full_fd_table() {
    let client = Client::connect().unwrap();
    leave_room_for(3);
    let handles: Vec<_> = (0..5).map(handle).collect();
    let grants = client.acquire_many(&handles, soon()).unwrap();
    assert!(grants[..3].iter().all(Result::is_ok));
    for lost in &grants[3..] {
        assert_eq!(lost.as_ref().unwrap_err().code, ErrorCode::LocalFdLimit);
    }
    Lease::release_many(grants.into_iter().flatten().map(|grant| grant.lease));
    let grants = client.acquire_many(&handles[3..], soon()).unwrap();
    assert!(grants.iter().all(Result::is_ok));
}

#[test]
fn acquire_each_when_fd_table_is_nearly_full_then_all_come_in_turn() {
    if is_child() {
        return child_with_room_for_two();
    }
    let broker = FakeBroker::listen();
    let mut child =
        start("acquire_each_when_fd_table_is_nearly_full_then_all_come_in_turn", &broker);
    let mut peer = broker.accept(Terms::default());
    let fd = memory(b"");
    let (mut imported, mut released) = (0, 0);
    while imported < 5 {
        let request = peer.recv();
        match request.kind {
            Kind::Acquire => {
                peer.grant(request.id, &vec![Answer::Grant(fd.as_fd(), 4096); request.count]);
            }
            Kind::Mapped => imported += request.count,
            Kind::Release => released += request.count,
            kind => panic!("unexpected {kind}"),
        }
    }
    // Asks for 5: 2 fit and 3 come back; 2 fit and 1 comes back; 1 fits.
    assert_eq!(released, 4);
    assert!(child.wait().unwrap().success());
}

fn child_with_room_for_two() {
    let client = Client::connect().unwrap();
    leave_room_for(2);
    let handles: Vec<_> = (0..5).map(handle).collect();
    let mut imports = Vec::new();
    let each = |_, grant: Result<fdbroker_client::Grant, _>| {
        imports.push(grant.unwrap().import(Access::Read, 0).unwrap());
    };
    client.acquire_each(&handles, soon(), each).unwrap();
    assert_eq!(imports.len(), 5);
}

#[test]
fn fork_when_connected_then_child_is_dead_and_parent_goes_on() {
    if is_child() {
        return child_that_forks();
    }
    let broker = FakeBroker::listen();
    let mut child = start("fork_when_connected_then_child_is_dead_and_parent_goes_on", &broker);
    let mut peer = broker.accept(Terms::default());
    let fd = memory(b"abcd");
    let request = peer.recv();
    let first = peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096)]);
    assert_eq!(peer.recv_kind(Kind::Mapped).leases(), first);
    // The next message is the parent's: the child's drops sent none.
    let request = peer.recv_kind(Kind::Acquire);
    let second = peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096)]);
    assert_eq!(peer.recv_kind(Kind::Release).leases(), second);
    assert_eq!(peer.recv_kind(Kind::Release).leases(), first);
    peer.assert_eof();
    assert!(child.wait().unwrap().success());
}

fn child_that_forks() {
    let client = Client::connect().unwrap();
    let import = client.acquire(&handle(1), soon()).unwrap().import(Access::Read, 0).unwrap();
    // SAFETY: the child only calls this library and _exit; glibc's allocator survives a fork.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let checks = catch_unwind(AssertUnwindSafe(move || {
                let error = client.acquire(&handle(1), soon()).unwrap_err();
                assert_eq!(error.code, ErrorCode::NotConnected);
                assert!(!client.is_connected() && !import.is_current());
                assert!(!client.is_current(import.info().id));
                assert_eq!(client.node(), NODE);
                let error = import.read_at(0, &mut [0]).unwrap_err();
                assert_eq!(error.code, ErrorCode::NotConnected);
                drop(import);
                drop(client);
            }));
            // SAFETY: ends the child without running the test harness's exit handlers.
            unsafe { libc::_exit(i32::from(checks.is_err())) };
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    assert!(client.is_connected());
    drop(client.acquire(&handle(2), soon()).unwrap());
    let mut bytes = [0; 4];
    import.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"abcd");
}

#[test]
fn fork_when_memory_is_sealed_for_good_then_the_child_reads_it_whatever_it_drops() {
    if is_child() {
        return child_that_forks_with_sealed_memory();
    }
    let broker = FakeBroker::listen();
    let mut child = start(
        "fork_when_memory_is_sealed_for_good_then_the_child_reads_it_whatever_it_drops",
        &broker,
    );
    let mut peer = broker.accept(Terms::default());
    // What the child drops is not given back.
    let next = |peer: &Peer| loop {
        let message = peer.recv();
        match message.kind {
            Kind::Mapped => {}
            kind => {
                assert_eq!(kind, Kind::Acquire);
                return message;
            }
        }
    };
    // The first once more, by the cache, which asks the page.
    peer.page.set(handle(5).id());
    for seals in SEALS.into_iter().chain([SEALS[0]]) {
        let fd = memfd_create(c"sealed", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING);
        let fd = fd.unwrap();
        nix::unistd::ftruncate(&fd, 4096).unwrap();
        nix::sys::uio::pwrite(&fd, b"abcd", 0).unwrap();
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        let request = next(&peer);
        peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096)]);
    }
    next(&peer);
    drop(peer);
    assert!(child.wait().unwrap().success());
}

/// The first makes memory final; the others leave a way to change it.
const SEALS: [SealFlag; 4] = [
    SealFlag::F_SEAL_WRITE.union(SealFlag::F_SEAL_SHRINK),
    SealFlag::F_SEAL_WRITE,
    SealFlag::F_SEAL_SHRINK,
    SealFlag::F_SEAL_FUTURE_WRITE.union(SealFlag::F_SEAL_SHRINK),
];

fn child_that_forks_with_sealed_memory() {
    let client = Client::connect().unwrap();
    let import =
        |slot| client.acquire(&handle(slot), soon()).unwrap().import(Access::Read, 0).unwrap();
    let mut imports: Vec<Import> = (1..=4).map(import).collect();
    let cache = ImportCache::new(&client, CacheSettings::default());
    let cached = cache.import(&handle(5), Access::Read, soon()).unwrap();
    assert!(cached.is_final());
    let in_child = |imports: &[Import]| {
        // What takes the addresses that are free.
        let mut taken = [const { Vec::new() }; 64];
        taken.fill_with(|| vec![9_u8; 1 << 20]);
        for (import, is_final) in imports.iter().zip([true, false, false, false]) {
            let mut bytes = [0; 4];
            let read = import.read_at(0, &mut bytes);
            assert_eq!(import.is_final(), is_final);
            match read {
                Ok(()) => assert!(is_final && &bytes == b"abcd"),
                Err(error) => {
                    assert!(!is_final && error.code == ErrorCode::NotConnected);
                    assert!(error.to_string().contains("open there what it needs"), "{error}");
                }
            }
        }
    };
    // SAFETY: as above.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let checks = catch_unwind(AssertUnwindSafe(move || {
                in_child(&imports);
                let mut bytes = [0; 4];
                cached.read_at(0, &mut bytes).unwrap();
                assert_eq!(&bytes, b"abcd");
                assert!(!cached.is_current() && cached.write_at(0, b"x").is_err());
                let first = imports.remove(0);
                let ptr = first.as_ptr();
                drop((first, imports, client));
                // SAFETY: a child unmaps nothing that it has inherited.
                assert_eq!(unsafe { std::slice::from_raw_parts(ptr, 4) }, b"abcd");
            }));
            // SAFETY: ends the child without running the test harness's exit handlers.
            unsafe { libc::_exit(i32::from(checks.is_err())) };
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    assert_eq!(client.acquire(&handle(6), soon()).unwrap_err().code, ErrorCode::NotConnected);
    let mut bytes = [0; 4];
    imports[0].read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"abcd");
}

#[test]
fn fork_when_a_producer_then_its_child_frees_retires_and_empties_nothing() {
    if is_child() {
        return producer_that_forks();
    }
    let broker = FakeBroker::listen();
    let mut child =
        start("fork_when_a_producer_then_its_child_frees_retires_and_empties_nothing", &broker);
    let peer = broker.accept(Terms::default());
    peer.registered(&peer.recv_kind(Kind::Register), 8, 1);
    peer.registered(&peer.recv_kind(Kind::Register), 8, 2);
    // All messages are the parent's.
    for slot in [1, 2] {
        assert_eq!(peer.recv_kind(Kind::Unregister).unregister(), [handle(slot).id()]);
    }
    peer.assert_eof();
    assert!(child.wait().unwrap().success());
}

fn producer_that_forks() {
    const BYTES: usize = 8 << 20;
    let client = Client::builder().own_fds(3).connect().unwrap();
    let exports = Exports::new(&client);
    let deposit = Deposit::new(MemoryKind::Memfd, 64).base(0x7000);
    let known = exports.register(&deposit, || Ok(memory(b"")), soon()).unwrap();
    let kind = IsolatedMemory::Memfd;
    let isolated = IsolatedBuffer::new(&client, kind, 64, Share::Uid, soon()).unwrap();
    let arena = Arena::new(&client, HostMemory::Memfd, BYTES).unwrap();
    let buffer = arena.alloc(BYTES).unwrap();
    buffer.write_at(BYTES / 2, b"kept").unwrap();
    isolated.write_at(0, b"kept").unwrap();
    // SAFETY: as above.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let checks = catch_unwind(AssertUnwindSafe(move || {
                assert_eq!((exports.lookup(0, 0x7000), exports.len()), (None, 0));
                assert_eq!(exports.retire(0, 0x7000), None);
                let again = exports.register(&deposit, || Ok(memory(b"")), soon());
                assert_eq!(again.unwrap_err().code, ErrorCode::NotConnected);
                assert!(!isolated.is_shared());
                let new = IsolatedBuffer::new(&client, kind, 64, Share::Uid, soon());
                assert_eq!(new.unwrap_err().code, ErrorCode::NotConnected);
                drop((buffer, isolated, exports));
                drop(arena);
            }));
            // SAFETY: ends the child without running the test harness's exit handlers.
            unsafe { libc::_exit(i32::from(checks.is_err())) };
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    assert_eq!(exports.lookup(0, 0x7001), Some(known.at(1)));
    let mut bytes = [[0; 4]; 2];
    buffer.read_at(BYTES / 2, &mut bytes[0]).unwrap();
    isolated.read_at(0, &mut bytes[1]).unwrap();
    assert_eq!(&bytes, &[*b"kept", *b"kept"]);
    assert_eq!(exports.retire(0, 0x7000), Some(known.id()));
    drop(isolated);
}
