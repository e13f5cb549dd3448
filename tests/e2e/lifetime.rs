//! When an allocation begins and ends: counted registrations, reused addresses, who may end it, and
//! when its memory may be used for something else.

use crate::support::broker::{Broker, Setup};
use crate::support::memory::{
    BLOCK_BYTES, Blocks, all_seals, assert_bytes, assert_import, host_memory, memfd, pattern,
};
use crate::support::owner::{Owner, notices};
use crate::support::raw::{Raw, block_item, grants};
use crate::support::wait::{PATIENCE, eventually, eventually_ok, patience};
use fdbroker_client::{Access, AllocationId, Arena, Client, Drained, DriverData, Handle};
use fdbroker_protocol::ErrorCode;
use fdbroker_protocol::message::RevokedItem;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

#[track_caller]
fn assert_stale(client: &Client, owner: &Owner, index: usize) {
    let error = client.acquire(&owner.handle(index), patience()).expect_err("a grant");
    assert_eq!(error.code, ErrorCode::Stale, "{error}");
}

#[test]
fn register_when_the_same_allocation_twice_then_one_and_counted() {
    let broker = Broker::start();
    let mut owner = Owner::of(&broker, "owner", 1);
    owner.register(0..1, |deposit| deposit);
    assert_eq!(owner.id(0), owner.id(1));
    let status = broker.status();
    assert_eq!((status.uses.allocations.now.get(), status.gauges.stored_fds.get()), (1, 1));

    let consumer = broker.client("consumer");
    owner.client.unregister(&owner.registrations[0]).expect("the first of two");
    drop(assert_bytes(consumer.acquire(&owner.handle(0), patience()).expect("one is left"), 0));
    owner.client.unregister(&owner.registrations[1]).expect("the second of two");
    assert_stale(&consumer, &owner, 0);
    let error = owner.client.unregister(&owner.registrations[1]).expect_err("a third of two");
    assert_eq!(error.code, ErrorCode::Stale, "{error}");
    drop((owner, consumer));
    broker.assert_nothing_left();
}

#[test]
fn register_when_the_address_has_another_id_then_the_old_ends_and_holders_are_told() {
    let broker = Broker::start();
    let mut owner = Owner::of(&broker, "owner", 1);
    let (told, on_notice) = notices();
    let consumer = broker.builder("holder").on_notice(on_notice).connect().expect("connect");
    let import = assert_bytes(consumer.acquire(&owner.handle(0), patience()).expect("ready"), 0);
    assert!(import.is_current());

    owner.blocks.fill(0, 77);
    owner.register(0..1, |mut deposit| {
        deposit.facts.owner_allocation_id = 77;
        deposit
    });
    assert!(!import.is_current(), "a cached import of the old allocation still counts as good");
    assert_eq!(told.until_revoked(owner.id(0)), ErrorCode::Stale);
    assert_stale(&consumer, &owner, 0);
    drop(assert_bytes(consumer.acquire(&owner.handle(1), patience()).expect("the new one"), 77));

    import.release().expect("connected");
    owner.notices.until_drained(owner.id(0));
}

#[test]
fn register_when_a_range_overlaps_a_live_one_then_the_old_ends() {
    let broker = Broker::start();
    let mut owner = Owner::of(&broker, "owner", 2);
    owner.register(1..2, |mut deposit| {
        // Begins in the middle of block 0 and ends in the middle of block 1.
        deposit.base -= BLOCK_BYTES as u64 / 2;
        deposit.facts.owner_allocation_id = 99;
        deposit
    });
    let consumer = broker.client("consumer");
    assert_stale(&consumer, &owner, 0);
    assert_stale(&consumer, &owner, 1);
    drop(assert_bytes(consumer.acquire(&owner.handle(2), patience()).expect("the new one"), 1));
}

#[test]
fn register_when_without_an_address_then_never_the_same() {
    let broker = Broker::start();
    let mut owner = Owner::without(&broker, "owner", 2);
    let nowhere = |mut deposit: fdbroker_client::Deposit| {
        (deposit.base, deposit.facts.owner_allocation_id) = (0, 0);
        deposit.recallable = false;
        deposit
    };
    owner.register(0..2, nowhere);
    assert_ne!(owner.id(0), owner.id(1));
    for index in 0..2 {
        let grant = owner.client.acquire(&owner.handle(index), patience()).expect("a grant");
        drop(assert_bytes(grant, index as u64));
    }
}

#[test]
fn register_when_two_clients_have_the_same_address_then_both_live() {
    let broker = Broker::start();
    let (one, two) = (Owner::of(&broker, "one", 1), Owner::of(&broker, "two", 1));
    assert_ne!(one.id(0), two.id(0));
    let consumer = broker.client("consumer");
    for owner in [&one, &two] {
        drop(assert_bytes(consumer.acquire(&owner.handle(0), patience()).expect("it lives"), 0));
    }
}

#[test]
fn unregister_when_not_the_owner_then_not_permitted_and_it_lives() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 1);
    let stranger = broker.client("stranger");
    let error = stranger.unregister(owner.id(0)).expect_err("not its own");
    assert_eq!(error.code, ErrorCode::NotPermitted, "{error}");
    drop(assert_bytes(stranger.acquire(&owner.handle(0), patience()).expect("it lives"), 0));
}

#[test]
fn unregister_when_no_such_allocation_then_refused() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 1);
    for id in [
        AllocationId { slot: u32::MAX, generation: 1 },
        AllocationId { slot: owner.id(0).slot, generation: owner.id(0).generation + 1 },
        AllocationId { slot: owner.id(0).slot, generation: 0 },
    ] {
        let error = owner.client.unregister(id).expect_err("there is none");
        let codes = [ErrorCode::BadHandle, ErrorCode::Stale];
        assert!(codes.contains(&error.code), "{id}: {error}");
    }
}

#[test]
fn unregister_when_nobody_holds_it_then_drained_at_once() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 1);
    let drained = owner.client.unregister(&owner.registrations[0]).expect("its own");
    assert_eq!(drained, Drained(true));
}

/// Rounds in which a grant and the end of its allocation race each other. In every other one the
/// grant wins.
const RACES: usize = 100;

#[test]
fn unregister_when_a_grant_goes_out_just_before_then_revoked_names_its_lease() {
    let broker = Broker::start();
    let [mut owner, mut consumer] = [0; 2].map(|_| Raw::connect(&broker.socket()));
    let (block, mut granted) = (memfd(c"block", BLOCK_BYTES, all_seals()), 0);
    for round in 0..RACES {
        let handle = owner.register(&[block_item()], &[block.as_fd()])[0].handle;
        let request = consumer.start_acquire(&[handle.get()], 600_000);
        if round.is_multiple_of(2) {
            let socket = consumer.socket.as_fd();
            let is_read = || fdbroker_scm::unread_bytes(socket).is_ok_and(|bytes| bytes == 0);
            eventually("the broker has read it", is_read);
        }
        assert!(owner.unregister(&[handle.get().id()])[0].is_ok());
        let answer = consumer.receive().expect("granted, or stale");
        assert_eq!(answer.message().id, request);
        let (items, fds) = grants(answer);
        if fds.is_empty() {
            assert_eq!(items[0].status.get().result(), Err(ErrorCode::Stale));
            continue;
        }
        granted += 1;
        let event = consumer.receive_event().expect("told of the end");
        let told: Vec<(AllocationId, u64)> = event
            .message()
            .items::<RevokedItem>()
            .expect("revoked")
            .iter()
            .map(|it| {
                let (slot, generation) = (it.slot.get(), it.generation.get());
                (AllocationId { slot, generation }, it.lease.get())
            })
            .collect();
        assert_ne!(items[0].lease.get(), 0);
        assert_eq!(told, [(handle.get().id(), items[0].lease.get())]);
        assert!(consumer.release(&[items[0].lease.get()])[0].is_ok());
    }
    assert!(granted >= RACES / 2, "{granted} of {RACES} are granted");
}

#[test]
fn unregister_when_held_then_drained_after_the_last_lease() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 1);
    let consumer = broker.client("consumer");
    let grant = consumer.acquire(&owner.handle(0), patience()).expect("ready");
    let import = assert_bytes(consumer.acquire(&owner.handle(0), patience()).expect("ready"), 0);

    let drained = owner.client.unregister(&owner.registrations[0]).expect("its own");
    assert_eq!(drained, Drained(false));
    let status = broker.status();
    assert!(status.uses.pinned_bytes.now.get() >= BLOCK_BYTES as u64, "the holders pin the memory");
    assert_eq!(status.gauges.stored_fds.get(), 0, "the broker does not");
    drop(grant);
    owner.notices.assert_not_drained();
    assert_import(&import, 0);
    drop(import);
    owner.notices.until_drained(owner.id(0));
}

#[test]
fn arena_when_a_range_is_freed_then_used_again_only_after_drained() {
    let broker = Broker::start();
    let client = broker.builder("arena").own_fds(2).connect().expect("connect");
    let arena = Arena::new(&client, host_memory(), BLOCK_BYTES).expect("an arena");
    let buffer = arena.alloc(BLOCK_BYTES).expect("room for one");
    buffer.write_at(0, &pattern(1)).expect("in bounds");
    let handle = buffer.register(patience()).expect("registered");

    let consumer = broker.client("consumer");
    let grant = consumer.acquire(&handle, patience()).expect("ready");
    let import = grant.import(Access::Read, 0).expect("import");
    drop(buffer);
    let error = arena.alloc(BLOCK_BYTES).expect_err("a consumer still has it");
    assert_eq!(error.code, ErrorCode::NoQuota, "{error}");
    assert_import(&import, 1);

    drop(import);
    // Told by the answer to unregister or, if that came before the release, by `drained`.
    let buffer = eventually_ok("it is drained", || arena.alloc(BLOCK_BYTES));
    buffer.write_at(0, &pattern(2)).expect("in bounds");
    let anew = buffer.register(patience()).expect("registered");
    let error = consumer.acquire(&handle, patience()).expect_err("the old one has ended");
    assert_eq!(error.code, ErrorCode::Stale, "{error}");
    drop(assert_bytes(consumer.acquire(&anew, patience()).expect("ready"), 2));
}

#[test]
fn arena_when_ranges_are_reused_under_readers_then_nobody_ever_sees_another_allocations_bytes() {
    const ROUNDS: u64 = 200;
    const BUFFERS: usize = 4;
    // Fewer fds than buffers, so that what is read has often just been recalled.
    let broker =
        Setup::new().config("[caps.node]\nheld_fds = 2\n[limits]\nbase_credits = 0").start();
    let client = broker.builder("arena").own_fds(2).connect().expect("connect");
    let arena = Arena::new(&client, host_memory(), BUFFERS * BLOCK_BYTES).expect("an arena");
    let published: Mutex<VecDeque<(Handle, u64)>> = Mutex::default();
    let newest = || published.lock().expect("no panic").clone();
    let (is_over, seen) = (AtomicBool::new(false), AtomicBool::new(false));
    let read = |client: Client| {
        while !is_over.load(Ordering::Relaxed) {
            for (handle, seed) in newest() {
                match client.acquire(&handle, patience()) {
                    Ok(grant) => {
                        let import = assert_bytes(grant, seed);
                        std::thread::yield_now();
                        // Freed meanwhile or not: the range is nobody else's while it is held here.
                        assert_import(&import, seed);
                        seen.store(true, Ordering::Relaxed);
                    }
                    Err(error) => assert_eq!(error.code, ErrorCode::Stale, "{error}"),
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let clients = (0..3).map(|n| broker.client(&format!("reader {n}")));
        clients.for_each(|client| drop(scope.spawn(|| read(client))));
        let until = Instant::now() + PATIENCE;
        let mut buffers = VecDeque::new();
        for seed in 0.. {
            let is_enough = seen.load(Ordering::Relaxed) || Instant::now() >= until;
            if seed >= ROUNDS && is_enough {
                break;
            }
            if buffers.len() == BUFFERS - 1 {
                buffers.pop_front();
            }
            let buffer = eventually_ok("a range is drained", || arena.alloc(BLOCK_BYTES));
            buffer.write_at(0, &pattern(seed)).expect("in bounds");
            let handle = buffer.register(patience()).expect("registered");
            buffers.push_back(buffer);
            let mut published = published.lock().expect("no panic");
            published.push_back((handle, seed));
            if published.len() > BUFFERS {
                published.pop_front();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(seen.into_inner(), "nobody read anything");
    drop((arena, client));
    broker.assert_nothing_left();
}

#[test]
fn release_when_twice_then_bad_handle() {
    // The library cannot say it twice: a lease is given back by value.
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 1);
    let mut raw = Raw::connect(&broker.socket());
    let (items, fds) = raw.acquire(&[owner.handle(0)]);
    assert_eq!((items[0].status.get().result(), fds.len()), (Ok(()), 1));
    let lease = items[0].lease.get();
    assert_eq!(raw.mapped(&[lease])[0].result(), Ok(()));
    assert_eq!(raw.release(&[lease])[0].result(), Ok(()));
    assert_eq!(raw.release(&[lease])[0].result(), Err(ErrorCode::BadHandle));
    assert_eq!(raw.mapped(&[lease])[0].result(), Err(ErrorCode::BadHandle));
    drop((raw, owner));
    broker.assert_nothing_left();
}

#[test]
fn release_when_anothers_lease_then_bad_handle_and_it_stays() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 1);
    let grant = owner.client.acquire(&owner.handle(0), patience()).expect("ready");
    let mut stranger = Raw::connect(&broker.socket());
    let lease = grant.lease.number();
    let answers = stranger.release(&[lease, 0, u64::MAX]);
    assert!(answers.iter().all(|status| status.result() == Err(ErrorCode::BadHandle)));
    assert_eq!(broker.status().uses.open_leases.now.get(), 1);
}

#[test]
fn grant_when_the_owner_has_closed_every_fd_of_its_own_then_the_bytes_are_there() {
    let broker = Broker::start();
    let mut owner = Owner::without(&broker, "owner", 0);
    let blocks = Blocks::new(1);
    let mut deposit = blocks.deposit(0);
    deposit.recallable = false;
    let fd = blocks.export(0);
    let registered = owner.client.register(&deposit, fd.as_fd(), patience());
    drop((fd, blocks));
    owner.registrations.push(registered.expect("registered"));
    drop(assert_bytes(owner.client.acquire(&owner.handle(0), patience()).expect("held"), 0));
}

#[test]
fn grant_when_registered_with_more_than_bytes_then_all_of_it_is_told() {
    let broker = Broker::start();
    let mut owner = Owner::without(&broker, "owner", 2);
    owner.register(0..2, |mut deposit| {
        deposit.facts.device = 7;
        if deposit.facts.owner_allocation_id == 1 {
            deposit.driver_data = DriverData::new(b"handle of the driver").expect("20 bytes");
        }
        deposit
    });
    let client = broker.client("consumer");
    let grants = client.acquire_many(&owner.handles(), patience()).expect("connected");
    for (index, grant) in grants.into_iter().enumerate() {
        let info = grant.expect("ready").info;
        let told =
            (info.id, info.facts.device, info.facts.owner_allocation_id, info.facts.size_bytes);
        assert_eq!(told, (owner.id(index), 7, index as u64, BLOCK_BYTES as u64));
        let expected: &[u8] = if index == 1 { b"handle of the driver" } else { b"" };
        assert_eq!(info.driver_data.as_bytes(), expected);
    }
}

#[test]
fn flush_when_more_buffers_are_freed_than_unregister_at_once_then_all_are_stale_for_others() {
    let broker = Broker::start();
    let owner = broker.builder("owner").own_fds(2).connect().expect("connect");
    // Before the buffers: where the daemon may have 1,024 fds, they fill its table.
    let consumer = broker.client("consumer");
    // Unregisters go by 253, four messages at a time: the rest gathers in the library.
    const BUFFERS: usize = 2000;
    let arena = Arena::new(&owner, host_memory(), BUFFERS * BLOCK_BYTES).expect("an arena");
    let buffers: Vec<_> = (0..BUFFERS).map(|_| arena.alloc(BLOCK_BYTES).expect("room")).collect();
    let handles = arena.register(&buffers, patience()).expect("connected");
    let handles: Vec<Handle> = handles.into_iter().map(|one| one.expect("registered")).collect();

    drop(buffers);
    owner.flush(patience()).expect("the broker answers");

    // No wait, no second try: whoever hears of the flush finds nothing.
    assert!(handles.iter().all(|handle| !consumer.is_current(handle.id())));
    let outcomes = consumer.acquire_many(&handles, patience()).expect("connected");
    for outcome in outcomes {
        assert_eq!(outcome.expect_err("a grant of freed memory").code, ErrorCode::Stale);
    }
}
