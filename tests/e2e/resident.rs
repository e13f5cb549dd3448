//! Memory that its owner holds no fd of: resident in the broker, refused when only such memory is
//! left; and arenas, which make room for it, and whose freed memory goes back to the system. In the
//! run on dma-bufs it is the dma-heap's.

use crate::common::not_run;
use crate::support::broker::{Broker, Setup};
use crate::support::memory::{
    BLOCK_BYTES, assert_bytes, host_memory, isolated_memory, memory_kind, pattern,
};
use crate::support::owner::notices;
use crate::support::peer::Peer;
use crate::support::wait::{eventually, patience, soon};
use fdbroker_client::{
    Access, AllocationId, Arena, Client, Deadline, Error, IsolatedBuffer, IsolatedMemory, Notice,
    Share,
};
use fdbroker_protocol::admin::AllocationState;
use fdbroker_protocol::{ErrorCode, Resource, Scope};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// In this time a broker looks at all files that it holds, one and a half times.
const TO_LOOK_AT_ALL: Duration = Duration::from_secs(15);

/// More than an arena keeps of freed memory at hand.
const LARGE_BYTES: usize = 6 << 20;

fn owner(broker: &Broker) -> Client {
    broker.builder("resident").own_fds(2).connect().expect("connect")
}

/// A buffer with the bytes of `pattern(seed)`.
fn isolated(client: &Client, seed: u64, deadline: Deadline) -> Result<IsolatedBuffer, Error> {
    let buffer = IsolatedBuffer::new(client, isolated_memory(), BLOCK_BYTES, Share::Uid, deadline)?;
    buffer.write_at(0, &pattern(seed)).expect("in bounds");
    Ok(buffer)
}

#[track_caller]
fn assert_reads(client: &Client, buffer: &IsolatedBuffer, seed: u64) {
    let handle = buffer.handle().expect("shared");
    drop(assert_bytes(client.acquire(&handle, patience()).expect("resident"), seed));
}

/// Whether this process has an fd of the memory with this inode.
fn is_open_here(inode: u64) -> bool {
    let fds = std::fs::read_dir("/proc/self/fd").expect("/proc");
    let paths = fds.map(|entry| entry.expect("/proc").path());
    // Other tests close theirs meanwhile.
    paths.filter_map(|path| std::fs::metadata(path).ok()).any(|stat| stat.ino() == inode)
}

fn inode(broker: &Broker, id: AllocationId) -> u64 {
    broker.admin().allocation(id).expect("on the ledger").inode.get()
}

#[test]
fn isolated_when_made_then_resident_its_size_proved_and_no_fd_of_it_here() {
    let broker = Broker::start();
    let (client, consumer) = (owner(&broker), broker.client("consumer"));
    let len = 2 * BLOCK_BYTES + 1;
    let buffer = IsolatedBuffer::new(&client, isolated_memory(), len, Share::Uid, patience());
    let buffer = buffer.expect("made");
    let id = buffer.id().expect("shared");
    let record = broker.admin().allocation(id).expect("on the ledger");
    assert_eq!(record.state.get(), AllocationState::Resident as u32);
    assert_eq!(
        (record.facts.kind, record.facts.size_bytes.get()),
        (memory_kind() as u8, buffer.span() as u64)
    );
    assert_eq!(buffer.span(), 3 * BLOCK_BYTES);
    assert!(record.inode.get() != 0 && !is_open_here(record.inode.get()));

    let mut bytes = vec![1; len];
    buffer.read_at(0, &mut bytes).expect("in bounds");
    assert!(bytes.iter().all(|byte| *byte == 0), "new memory is zeros");
    buffer.write_at(BLOCK_BYTES, &pattern(5)).expect("in bounds");
    let grant = consumer.acquire(&buffer.handle().expect("shared"), patience()).expect("resident");
    if isolated_memory() == IsolatedMemory::DmaHeap {
        let fdinfo = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", grant.fd.as_raw_fd()));
        let fdinfo = fdinfo.expect("/proc");
        assert!(fdinfo.contains("exp_name:\tsystem"), "not of the system heap: {fdinfo}");
    }
    // Both ways, through the one page.
    let import = grant.import(Access::ReadWrite, BLOCK_BYTES as u64).expect("import");
    let mut bytes = vec![0; BLOCK_BYTES];
    import.read_at(0, &mut bytes).expect("in bounds");
    assert!(bytes == pattern(5));
    import.write_at(0, &pattern(6)).expect("in bounds");
    buffer.read_at(BLOCK_BYTES, &mut bytes).expect("in bounds");
    assert!(bytes == pattern(6));
    assert!(!is_open_here(record.inode.get()), "imported memory needs no fd either");
    drop((import, buffer, client, consumer));
    broker.assert_nothing_left();
}

#[test]
fn isolated_when_the_cap_is_full_of_such_then_no_quota_names_it_and_one_less_makes_room() {
    const CAP: u64 = 3;
    let broker =
        Setup::new().config("[caps.node]\nheld_fds = 3\n[limits]\nbase_credits = 0").start();
    let (client, consumer) = (owner(&broker), broker.client("consumer"));
    let make = |seed| isolated(&client, seed, patience()).expect("it fits");
    let mut buffers: Vec<_> = (0..CAP).map(make).collect();
    for turn in 0..3 {
        let error = isolated(&client, 9, soon()).expect_err("one too many");
        assert_eq!(error.code, ErrorCode::NoQuota, "{error}");
        let status = error.status.expect("from the broker");
        let named = (status.resource, status.scope, status.value);
        assert_eq!(named, (Resource::HeldFds as u8, Scope::Node as u8, CAP), "{error}");
        assert_eq!(status.pid, std::process::id(), "the holder: {error}");
        // The others still work, and one less makes room for one more.
        for (seed, buffer) in (turn..).zip(&buffers) {
            assert_reads(&consumer, buffer, seed);
        }
        drop(buffers.remove(0));
        buffers.push(make(turn + CAP));
    }
    assert_eq!(broker.status().uses.held_fds.peak.get(), CAP, "the cap was kept");
    drop((buffers, client, consumer));
    broker.assert_nothing_left();
}

#[test]
fn isolated_when_bytes_are_at_their_cap_then_no_quota_names_it() {
    let broker =
        Setup::new().config(&format!("[caps.client]\nheld_bytes = {}", 2 * BLOCK_BYTES)).start();
    let client = owner(&broker);
    let buffers = [0, 1].map(|seed| isolated(&client, seed, patience()).expect("it fits"));
    let error = isolated(&client, 9, soon()).expect_err("more than the cap");
    assert_eq!(error.code, ErrorCode::NoQuota, "{error}");
    let status = error.status.expect("from the broker");
    assert_eq!(status.resource, Resource::HeldBytes as u8, "{error}");
    drop(buffers);
    drop(isolated(&client, 2, patience()).expect("room again"));
}

/// ATTACKS 51: 64 MiB under a cap of 4, written long after the broker has looked at them.
#[test]
fn isolated_when_it_is_written_late_then_it_was_charged_before() {
    let broker = Setup::new().config(&format!("[caps.client]\nheld_bytes = {}", 4 << 20)).start();
    let client = owner(&broker);
    let make =
        || IsolatedBuffer::new(&client, isolated_memory(), LARGE_BYTES / 6, Share::Uid, soon());
    let all: Vec<Result<IsolatedBuffer, Error>> = (0..64).map(|_| make()).collect();
    let (made, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (4, 60));
    let held = || broker.status().uses.held_bytes.now.get();
    assert_eq!(held(), 4 << 20);
    std::thread::sleep(TO_LOOK_AT_ALL);
    assert_eq!(held(), 4 << 20, "they may be written now");
    for buffer in made.iter().flatten() {
        buffer.write_at(0, &[7; LARGE_BYTES / 6]).expect("in bounds");
    }
    std::thread::sleep(TO_LOOK_AT_ALL);
    assert_eq!(held(), 4 << 20, "each byte counts once");
}

#[test]
fn isolated_when_an_arenas_buffers_fill_the_cap_then_they_make_room_and_all_bytes_are_right() {
    let broker =
        Setup::new().config("[caps.node]\nheld_fds = 3\n[limits]\nbase_credits = 0").start();
    let (client, consumer) = (owner(&broker), broker.client("consumer"));
    let arena = Arena::new(&client, host_memory(), 8 * BLOCK_BYTES).expect("an arena");
    let buffers: Vec<_> = (0..8).map(|_| arena.alloc(BLOCK_BYTES).expect("room")).collect();
    for (seed, buffer) in (0..).zip(&buffers) {
        buffer.write_at(0, &pattern(seed)).expect("in bounds");
    }
    let registered = arena.register(&buffers, patience()).expect("connected");
    let handles: Vec<_> = registered.into_iter().map(|one| one.expect("registered")).collect();
    let residents: Vec<_> =
        (100..102).map(|seed| isolated(&client, seed, patience()).expect("room is made")).collect();
    for _ in 0..3 {
        for (seed, handle) in (0..).zip(&handles) {
            drop(assert_bytes(consumer.acquire(handle, patience()).expect("by recall"), seed));
        }
        for (seed, resident) in (100..).zip(&residents) {
            assert_reads(&consumer, resident, seed);
        }
    }
    let status = broker.status();
    assert!(
        status.uses.held_fds.peak.get() <= 3 && status.counters.evictions.get() >= 10,
        "{status:?}"
    );
    drop((buffers, residents, arena, client, consumer));
    broker.assert_nothing_left();
}

#[test]
fn isolated_when_dropped_while_mapped_then_revoked_and_the_consumer_keeps_the_bytes() {
    let broker = Broker::start();
    let client = owner(&broker);
    let (told, on_notice) = notices();
    let consumer = broker.builder("consumer").on_notice(on_notice).connect().expect("connect");
    let buffer = isolated(&client, 7, patience()).expect("made");
    let handle = buffer.handle().expect("shared");
    let import = assert_bytes(consumer.acquire(&handle, patience()).expect("resident"), 7);
    drop(buffer);
    assert_eq!(told.until_revoked(handle.id()), ErrorCode::Stale);
    assert!(!import.is_current());
    crate::support::memory::assert_import(&import, 7);
    let error = consumer.acquire(&handle, patience()).expect_err("it has ended");
    assert_eq!(error.code, ErrorCode::Stale, "{error}");
    drop((import, client, consumer));
    broker.assert_nothing_left();
}

#[test]
fn isolated_when_for_any_then_another_user_reads_it() {
    const NAME: &str = "isolated_when_for_any_then_another_user_reads_it";
    if !nix::unistd::geteuid().is_root() {
        return not_run(NAME, "other users' processes need root");
    }
    let broker = Setup::new().service().start();
    let client = owner(&broker);
    let make = |share| {
        let made = IsolatedBuffer::new(&client, isolated_memory(), BLOCK_BYTES, share, patience());
        let buffer = made.expect("made");
        buffer.write_at(0, &pattern(3)).expect("in bounds");
        buffer
    };
    let (open, closed) = (make(Share::Any), make(Share::Uid));
    let mut stranger = Peer::start("rank");
    assert_eq!(stranger.ask("user 61003 61003"), "OK");
    assert_eq!(stranger.ask(&format!("connect {}", broker.socket().display())), "OK");
    let handles = [&open, &closed].map(|buffer| buffer.handle().expect("shared"));
    assert_eq!(stranger.with_handles("check 3", &handles[..1]), "OK");
    assert_eq!(stranger.with_handles("check 3", &handles[1..]), "NOT_PERMITTED");
    drop((stranger, open, closed, client));
    broker.assert_nothing_left();
}

#[test]
fn isolated_when_the_broker_comes_back_then_only_new_ones_can_be_shared() {
    // The old handle is refused when the grace is over.
    let mut broker = crate::comeback::short_grace().start();
    let (told, on_notice) = notices();
    let builder = broker.builder("resident").own_fds(2).on_notice(on_notice);
    let client = builder.connect().expect("connect");
    let old = isolated(&client, 1, patience()).expect("made");
    let handle = old.handle().expect("shared");
    broker.kill();
    told.until("disconnected", |notice| matches!(notice, Notice::Disconnected).then_some(()));
    assert!(!old.is_shared() && old.handle().is_none());
    broker.restart();
    told.until("reconnected", |notice| matches!(notice, Notice::Reconnected { .. }).then_some(()));
    let new = isolated(&client, 2, patience()).expect("made");
    assert!(!old.is_shared() && old.handle().is_none());
    let mut bytes = vec![0; BLOCK_BYTES];
    old.read_at(0, &mut bytes).expect("in bounds");
    assert!(bytes == pattern(1), "the memory itself stays");
    let consumer = broker.client("consumer");
    assert!(consumer.acquire(&handle, patience()).is_err());
    drop(old);
    assert_reads(&consumer, &new, 2);
}

#[test]
fn dma_heap_when_in_the_run_on_dma_bufs_then_it_is_there_and_else_says_what_lacks() {
    match (isolated_memory(), IsolatedMemory::DmaHeap.available()) {
        (IsolatedMemory::DmaHeap, available) => available.expect("the machine has a dma-heap"),
        (_, Ok(())) => {}
        (_, Err(error)) => {
            assert_eq!(error.code, ErrorCode::NotSupported);
            assert!(error.to_string().contains("/dev/dma_heap/system"), "{error}");
        }
    }
}

#[test]
fn arena_when_a_freed_range_went_back_to_the_system_then_old_importers_and_new_ones_read_right() {
    let broker = Broker::start();
    let (client, consumer) = (owner(&broker), broker.client("consumer"));
    let arena = Arena::new(&client, host_memory(), LARGE_BYTES).expect("an arena");
    let mut before: Option<usize> = None;
    for seed in 0..3_u64 {
        let buffer = arena.alloc(LARGE_BYTES).expect("the whole arena");
        assert!(before.is_none_or(|address| address == buffer.as_ptr().addr()));
        before = Some(buffer.as_ptr().addr());
        let mut bytes = vec![1; BLOCK_BYTES];
        buffer.read_at(LARGE_BYTES / 2, &mut bytes).expect("in bounds");
        assert!(bytes.iter().all(|byte| *byte == 0), "the system has had it");
        for block in 0..LARGE_BYTES / BLOCK_BYTES {
            let bytes = pattern(seed * 10_000 + block as u64);
            buffer.write_at(block * BLOCK_BYTES, &bytes).expect("in bounds");
        }
        let handle = buffer.register(patience()).expect("registered");
        let grant = consumer.acquire(&handle, patience()).expect("held");
        let import = grant.import(Access::Read, 0).expect("import");
        drop(buffer);
        // Mapped by the consumer: neither reused nor emptied.
        assert_eq!(arena.free_bytes(), 0);
        for block in 0..LARGE_BYTES / BLOCK_BYTES {
            import.read_at(block * BLOCK_BYTES, &mut bytes).expect("in bounds");
            assert!(bytes == pattern(seed * 10_000 + block as u64), "round {seed}, block {block}");
        }
        drop(import);
        eventually("it is drained", || arena.free_bytes() == LARGE_BYTES);
    }
    drop((arena, client, consumer));
    broker.assert_nothing_left();
}

#[test]
fn isolated_when_dropped_then_the_brokers_fd_is_closed_and_its_place_is_free() {
    let broker = Broker::start();
    let client = owner(&broker);
    let buffer = isolated(&client, 1, patience()).expect("made");
    let id = buffer.id().expect("shared");
    assert!(inode(&broker, id) != 0);
    drop(buffer);
    eventually("it has ended", || broker.admin().allocation(id).is_none());
    eventually("its fd is closed", || {
        let status = broker.status();
        status.gauges.stored_fds.get() == 0 && status.gauges.closing_fds.get() == 0
    });
}
