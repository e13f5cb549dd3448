//! The memory of an arena: none until it is touched, none once it is freed. An error names the
//! limit that a large arena meets; such a test starts itself in a process of its own, because a
//! limit belongs to a process.

use crate::shared::full_name;
use crate::support::*;
use fdbroker_client::host::{Arena, HostBuffer, HostMemory};
use fdbroker_client::{Client, ErrorCode};
use fdbroker_protocol::Kind;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::fstat;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::thread;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// The freed memory that an arena may keep, and some for the kernel's bookkeeping.
const KEPT: usize = 5 * MIB;

/// Registers a buffer as slot `slot`; answers the arena's memfd that the broker got.
fn memfd_of(buffer: &HostBuffer, peer: &Peer, slot: u32) -> OwnedFd {
    thread::scope(|scope| {
        let call = scope.spawn(|| buffer.register(soon()).unwrap());
        let mut request = peer.recv_kind(Kind::Register);
        peer.registered(&request, 8, slot);
        call.join().unwrap();
        request.fds.remove(0)
    })
}

/// The bytes of memory that a file uses.
fn resident(fd: &OwnedFd) -> usize {
    usize::try_from(fstat(fd).unwrap().st_blocks).unwrap() * 512
}

fn fill(buffer: &HostBuffer, byte: u8) {
    buffer.write_at(0, &vec![byte; buffer.len()]).unwrap();
}

#[test]
fn new_when_64_gib_then_no_memory_until_touched() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, 64 << 30).unwrap();
    assert_eq!((arena.len(), arena.free_bytes()), (64 << 30, 64 << 30));
    let buffer = arena.alloc(40 << 30).unwrap();
    let memfd = memfd_of(&buffer, &peer, 1);
    assert_eq!(resident(&memfd), 0);
    buffer.write_at(39 << 30, &[1; 10 * PAGE]).unwrap();
    let touched = resident(&memfd);
    assert!((10 * PAGE..4 * MIB).contains(&touched), "{touched} bytes for 10 pages");
    drop(buffer);
    peer.unregistered(&peer.recv_kind(Kind::Unregister), true);
    eventually("its return", || arena.free_bytes() == 64 << 30);
    assert_eq!(resident(&memfd), 0);
}

#[test]
fn free_when_never_registered_then_the_system_has_its_memory_at_once() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, 256 * MIB).unwrap();
    let (before, large, after) =
        (arena.alloc(PAGE).unwrap(), arena.alloc(64 * MIB).unwrap(), arena.alloc(PAGE).unwrap());
    let memfd = memfd_of(&before, &peer, 1);
    [&before, &large, &after].into_iter().for_each(|buffer| fill(buffer, 7));
    assert!(resident(&memfd) >= 64 * MIB);
    drop(large);
    let left = resident(&memfd);
    assert!(left <= KEPT, "{left} bytes left");
    assert_eq!(arena.free_bytes(), 256 * MIB - 2 * PAGE);
    for neighbour in [&before, &after] {
        let mut bytes = vec![0; PAGE];
        neighbour.read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7), "a neighbour was emptied");
    }
    let again = arena.alloc(64 * MIB).unwrap();
    let mut bytes = vec![1; PAGE];
    again.read_at(32 * MIB, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn free_when_leased_then_the_memory_stays_until_drained() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, 64 * MIB).unwrap();
    let buffer = arena.alloc(32 * MIB).unwrap();
    let memfd = memfd_of(&buffer, &peer, 1);
    fill(&buffer, 7);
    let (id, owner_id) = (buffer.id().unwrap(), buffer.owner_allocation_id());
    let base = buffer.as_ptr().addr() as u64;
    drop(buffer);
    peer.unregistered(&peer.recv_kind(Kind::Unregister), false);
    thread::sleep(SILENCE);
    assert!(resident(&memfd) >= 32 * MIB, "a consumer still reads it");
    assert_eq!(arena.free_bytes(), 32 * MIB);
    peer.drained(id, owner_id, base);
    eventually("its return", || arena.free_bytes() == 64 * MIB);
    let left = resident(&memfd);
    assert!(left <= KEPT, "{left} bytes left");
}

#[test]
fn free_when_small_and_many_then_no_more_than_a_bound_is_kept() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, 64 * MIB).unwrap();
    let witness = arena.alloc(PAGE).unwrap();
    let memfd = memfd_of(&witness, &peer, 1);
    let buffers: Vec<_> = (0..600).map(|_| arena.alloc(MIB / 16).unwrap()).collect();
    buffers.iter().for_each(|buffer| fill(buffer, 7));
    assert!(resident(&memfd) >= 37 * MIB);
    drop(buffers);
    let left = resident(&memfd);
    assert!(left <= KEPT, "{left} bytes left");
}

#[test]
fn alloc_when_threads_free_meanwhile_then_nobody_is_given_what_becomes_zeros() {
    let broker = FakeBroker::listen();
    let (client, _peer) = broker.client();
    // Room for two of the four buffers, so that a freed one is taken again at once.
    let arena = Arena::new(&client, HostMemory::Memfd, 16 * MIB).unwrap();
    const THREADS: u8 = 4;
    const ROUNDS: usize = 40;
    let alloc = |bytes: usize| loop {
        match arena.alloc(bytes) {
            Ok(buffer) => return buffer,
            Err(error) => assert_eq!(error.code, ErrorCode::NoQuota),
        }
        thread::yield_now();
    };
    thread::scope(|scope| {
        for n in 1..=THREADS {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    // More than the arena keeps, so that each goes back to the system.
                    let buffer = alloc((5 + round % 3) * MIB);
                    let places = (0..buffer.len()).step_by(PAGE);
                    places.clone().for_each(|at| buffer.write_at(at, &[n; 8]).unwrap());
                    for at in places {
                        let mut bytes = [0; 8];
                        buffer.read_at(at, &mut bytes).unwrap();
                        assert_eq!(bytes, [n; 8], "thread {n}, round {round}, at {at}");
                    }
                }
            });
        }
    });
    assert_eq!(arena.free_bytes(), 16 * MIB);
}

/// The variable that is set in the process that a test starts.
const CHILD: &str = "FDBROKER_TEST_CHILD";

/// Runs `test` again in a process of its own, where `child` tries an arena of 1 GiB under the
/// limit.
#[track_caller]
fn assert_named(test: &str, resource: Resource, limit: u64, words: [&str; 2]) {
    if std::env::var_os(CHILD).is_none() {
        let broker = FakeBroker::listen();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &full_name(test), "--test-threads=1"]);
        command.env(CHILD, test).env("FDBROKER_SOCKET", &broker.path).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let _peer = broker.accept(Terms::default());
        assert!(child.wait().unwrap().success());
        return;
    }
    let client = Client::connect().unwrap();
    setrlimit(resource, limit, limit).unwrap();
    let error = Arena::new(&client, HostMemory::Memfd, 1 << 30).unwrap_err();
    assert_eq!(error.code, ErrorCode::Internal);
    for word in words.into_iter().chain([limit.to_string().as_str()]) {
        assert!(error.to_string().contains(word), "{error}");
    }
    Arena::new(&client, HostMemory::Memfd, 1 << 16).unwrap();
}

#[test]
fn new_when_addresses_are_limited_then_the_limit_is_named() {
    let test = "new_when_addresses_are_limited_then_the_limit_is_named";
    assert_named(test, Resource::RLIMIT_AS, 1 << 30, ["RLIMIT_AS", "1073741824 bytes"]);
}

#[test]
fn new_when_file_sizes_are_limited_then_the_limit_is_named_and_no_signal_comes() {
    let test = "new_when_file_sizes_are_limited_then_the_limit_is_named_and_no_signal_comes";
    assert_named(test, Resource::RLIMIT_FSIZE, 1 << 20, ["RLIMIT_FSIZE", "1073741824 bytes"]);
}
