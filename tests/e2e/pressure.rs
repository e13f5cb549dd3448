//! Far more allocations than fds: eviction and recall under load, every byte right, every cap kept
//! and named.

use crate::support::broker::{Broker, Setup};
use crate::support::memory::{BLOCK_BYTES, all_seals, assert_bytes, memfd};
use crate::support::owner::Owner;
use crate::support::peer::{Peer, to_line};
use crate::support::rank::rank;
use crate::support::raw::{Raw, block_item};
use crate::support::wait::{eventually, many_fds, patience, soon};
use fdbroker_client::{Client, Deposit, Error, Handle};
use fdbroker_protocol::{ErrorCode, MAX_BATCH, Resource, Scope, Status};
use nix::fcntl::{FallocateFlags, fallocate};
use std::os::fd::{AsFd, OwnedFd};

/// The status of a NO_QUOTA names this cap, and says who holds most of it.
#[track_caller]
fn assert_cap(error: &Error, resource: Resource, scope: Scope, cap: u64) {
    assert_eq!(error.code, ErrorCode::NoQuota, "{error}");
    let status = error.status.expect("from the broker");
    let named = (status.resource, status.scope, status.cap());
    assert_eq!(named, (resource as u8, scope as u8, Some(cap)), "{error}");
    assert_eq!(status.pid, std::process::id(), "{error}");
}

/// Every helper has done what it was told.
#[track_caller]
fn assert_all_ok(peers: &mut [Peer]) {
    for peer in peers {
        assert_eq!(peer.hear(), "OK");
    }
}

#[test]
fn acquire_when_one_fd_fits_and_8_consumers_cycle_100_allocations_then_every_byte_is_right() {
    let broker = Setup::new()
        .config("[caps.node]\nheld_fds = 1\n[limits]\nbase_credits = 0\nrecall_timeout_ms = 600000")
        .start();
    let mut owner = rank(&broker.socket());
    let handles = owner.share(100, 0);
    let mut consumers: Vec<_> = (0..8).map(|_| rank(&broker.socket())).collect();
    for (n, consumer) in consumers.iter_mut().enumerate() {
        // Each begins elsewhere, so that they want different ones at any time.
        consumer.link.say(&format!("cycle {} {}", n * 13, to_line(&handles)));
    }
    assert_all_ok(&mut consumers);
    let status = broker.status();
    assert_eq!(status.uses.held_fds.peak.get(), 1, "the cap was kept");
    assert!(
        status.counters.evictions.get() >= 99 && status.counters.recalls.get() >= 99,
        "{status:?}"
    );
    drop((owner, consumers));
    broker.assert_nothing_left();
}

#[test]
fn acquire_when_two_ranks_recall_from_each_other_while_both_are_blocked_then_both_get_all() {
    let broker = Setup::new()
        .config("[caps.node]\nheld_fds = 2\n[limits]\nbase_credits = 0\nrecall_timeout_ms = 600000")
        .start();
    let mut ranks = [rank(&broker.socket()), rank(&broker.socket())];
    let (first, second) = (ranks[0].share(20, 1000), ranks[1].share(20, 2000));
    for _ in 0..3 {
        ranks[0].link.say(&format!("check 2000 {}", to_line(&second)));
        ranks[1].link.say(&format!("check 1000 {}", to_line(&first)));
        assert_all_ok(&mut ranks);
    }
    assert!(broker.status().counters.recalls.get() >= 36, "nothing was recalled");
    drop(ranks);
    broker.assert_nothing_left();
}

#[test]
fn acquire_when_all_ranks_share_with_all_then_every_byte_is_right_and_the_node_cap_is_kept() {
    const RANKS: usize = 4;
    const CAP: u64 = 48;
    let broker = Setup::new().max_fds(CAP).config("[limits]\nbase_credits = 0").start();
    let mut ranks: Vec<_> = (0..RANKS).map(|_| rank(&broker.socket())).collect();
    let shared: Vec<_> =
        ranks.iter_mut().zip(0..).map(|(rank, n)| rank.share(50, n * 1000)).collect();
    for turn in 1..RANKS {
        for (n, rank) in ranks.iter_mut().enumerate() {
            let of = (n + turn) % RANKS;
            rank.link.say(&format!("check {} {}", of * 1000, to_line(&shared[of])));
        }
        assert_all_ok(&mut ranks);
    }
    let status = broker.status();
    assert_eq!(status.uses.fds.cap.get(), CAP);
    assert!(status.uses.fds.peak.get() <= CAP, "{status:?}");
    drop(ranks);
    broker.assert_nothing_left();
}

#[test]
fn register_when_all_that_is_held_is_resident_then_no_quota_names_the_cap() {
    let broker =
        Setup::new().config("[caps.node]\nheld_fds = 3\n[limits]\nbase_credits = 0").start();
    let resident = |mut deposit: Deposit| {
        deposit.recallable = false;
        deposit
    };
    let mut owner = Owner::without(&broker, "resident", 4);
    owner.register(0..3, resident);
    let deposit = resident(owner.blocks.deposit(3));
    let outcomes = owner.client.register_with(&[deposit], |_| Ok(owner.blocks.export(3)), soon());
    let error = outcomes.expect("connected").remove(0).expect_err("no room");
    assert_cap(&error, Resource::HeldFds, Scope::Node, 3);

    owner.client.unregister(&owner.registrations[0]).expect("its own");
    owner.register(3..4, resident);
    drop(assert_bytes(owner.client.acquire(&owner.handle(3), patience()).expect("room now"), 3));
}

#[test]
fn acquire_when_the_clients_leases_are_at_their_cap_then_no_quota_names_it_and_release_cures_it() {
    let broker = Setup::new().config("[caps.client]\nopen_leases = 2").start();
    let owner = Owner::of(&broker, "owner", 3);
    let client = broker.client("greedy");
    let held = client.acquire_many(&owner.handles()[..2], patience()).expect("connected");
    assert!(held.iter().all(Result::is_ok));
    let error = client.acquire(&owner.handle(2), soon()).expect_err("the third of two");
    assert_cap(&error, Resource::OpenLeases, Scope::Client, 2);
    let another = broker.client("modest");
    drop(assert_bytes(another.acquire(&owner.handle(2), patience()).expect("a cap of its own"), 2));
    drop(held);
    drop(assert_bytes(client.acquire(&owner.handle(2), patience()).expect("room now"), 2));
}

#[test]
fn acquire_when_a_cap_is_in_the_way_then_served_as_soon_as_there_is_room() {
    let broker = Setup::new().config("[caps.node]\nopen_leases = 1").start();
    let owner = Owner::of(&broker, "owner", 2);
    let held = owner.client.acquire(&owner.handle(0), patience()).expect("ready");
    let (client, wanted) = (broker.client("waiter"), owner.handle(1));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.acquire(&wanted, patience()));
        eventually("it waits", || broker.status().uses.parked_requests.now.get() == 1);
        drop(held);
        drop(assert_bytes(waiter.join().expect("no panic").expect("room now"), 1));
    });
}

#[test]
fn import_when_open_leases_are_at_their_cap_then_mapped_ones_do_not_count() {
    let broker = Setup::new().config("[caps.client]\nopen_leases = 1").start();
    let owner = Owner::of(&broker, "owner", 5);
    let client = broker.client("importer");
    let imports: Vec<_> = (0..5)
        .map(|index| {
            let grant = client.acquire(&owner.handle(index), patience()).expect("one at a time");
            assert_bytes(grant, index as u64)
        })
        .collect();
    eventually("all are mapped", || broker.status().uses.mapped_leases.now.get() == 5);
    assert_eq!(broker.status().uses.open_leases.peak.get(), 1);
    drop(imports);
}

/// What became of each handle.
fn outcomes(client: &Client, handles: &[Handle]) -> Vec<Result<(), ErrorCode>> {
    let outcomes = client.acquire_many(handles, patience()).expect("connected");
    let check = |(index, outcome): (usize, Result<_, Error>)| {
        outcome.map(|grant| drop(assert_bytes(grant, index as u64))).map_err(|error| error.code)
    };
    outcomes.into_iter().enumerate().map(check).collect()
}

#[test]
fn acquire_when_a_full_batch_has_stale_ones_then_each_has_its_own_answer() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", MAX_BATCH);
    let stale = |index: &usize| index.is_multiple_of(5);
    let ended = (0..MAX_BATCH).filter(stale).map(|index| &owner.registrations[index]);
    for outcome in owner.client.unregister_many(ended, patience()).expect("connected") {
        outcome.expect("its own");
    }
    let client = broker.client("consumer");
    for (index, outcome) in outcomes(&client, &owner.handles()).into_iter().enumerate() {
        let expected = if stale(&index) { Err(ErrorCode::Stale) } else { Ok(()) };
        assert_eq!(outcome, expected, "handle {index}");
    }
    drop((owner, client));
    broker.assert_nothing_left();
}

#[test]
fn acquire_when_600_handles_in_one_call_then_all_are_granted() {
    let _table = many_fds();
    let broker = Broker::start();
    // Before the blocks: where the daemon may have 1,024 fds, they fill its table.
    let client = broker.client("consumer");
    let owner = Owner::of(&broker, "owner", 600);
    let outcomes = outcomes(&client, &owner.handles());
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(broker.status().counters.grants.get(), 600);
}

#[test]
fn acquire_when_600_handles_and_the_broker_holds_10_then_all_are_granted() {
    let _table = many_fds();
    let broker =
        Setup::new().config("[caps.node]\nheld_fds = 10\n[limits]\nbase_credits = 0").start();
    let owner = Owner::of(&broker, "owner", 600);
    let client = broker.client("consumer");
    let outcomes = outcomes(&client, &owner.handles());
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert!(owner.recalls() >= 590, "only {} recalls", owner.recalls());
    assert!(broker.status().uses.held_fds.peak.get() <= 10);
}

#[test]
fn evict_when_bytes_are_at_their_cap_then_as_few_are_held_as_fit() {
    let lines = format!("[caps.node]\nheld_bytes = {}", 4 * BLOCK_BYTES);
    let broker = Setup::new().config(&lines).start();
    let mut owner = Raw::connect(&broker.socket());
    for _ in 0..20 {
        let status = deposit_page(&mut owner, &file(BLOCK_BYTES, BLOCK_BYTES));
        assert!(status.is_ok(), "{status}");
    }
    let status = broker.status();
    assert_eq!(status.uses.held_bytes.now.get(), 4 * BLOCK_BYTES as u64, "{status:?}");
    assert_eq!(status.uses.held_bytes.peak.get(), 4 * BLOCK_BYTES as u64, "{status:?}");
    assert_eq!(status.counters.evictions.get(), 16, "{status:?}");
}

const MIB: usize = 1 << 20;

/// A memfd of a size, of which a part has memory.
fn file(bytes: usize, populated: usize) -> OwnedFd {
    let file = memfd(c"file", bytes, all_seals());
    populate(&file, populated);
    file
}

fn populate(file: &OwnedFd, bytes: usize) {
    let flags = FallocateFlags::empty();
    fallocate(file, flags, 0, i64::try_from(bytes).expect("small")).expect("memory");
}

/// Registers the first page of a file.
#[track_caller]
fn deposit_page(owner: &mut Raw, file: &OwnedFd) -> Status {
    assert!(owner.want_credits(1) > 0);
    owner.register(&[block_item()], &[file.as_fd()])[0].status.get()
}

#[track_caller]
fn assert_no_bytes(status: Status) {
    assert_eq!(status.result(), Err(ErrorCode::NoQuota), "{status}");
    assert_eq!((status.resource, status.value), (Resource::HeldBytes as u8, MIB as u64));
}

/// ATTACKS: a GiB deposited as 4 KiB, three times, under a cap of 1 MiB.
#[test]
fn register_when_a_page_of_a_large_memfd_then_refused_by_name_for_all_that_it_pins() {
    let broker = Setup::new().config(&format!("[caps.domain]\nheld_bytes = {MIB}")).start();
    let mut owner = Raw::connect(&broker.socket());
    let large = file(64 * MIB, 64 * MIB);
    for _ in 0..3 {
        assert_no_bytes(deposit_page(&mut owner, &large));
    }
    assert_eq!(broker.status().uses.held_bytes.now.get(), 0);
}

#[test]
fn register_when_a_memfd_is_sparse_then_charged_for_its_pages_and_for_those_that_it_gets() {
    let broker = Setup::new().config(&format!("[caps.domain]\nheld_bytes = {MIB}")).start();
    let (mut owner, mut other) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    let arena = file(65_536 * MIB, BLOCK_BYTES);
    for _ in 0..2 {
        let status = deposit_page(&mut owner, &arena);
        assert!(status.is_ok(), "{status}");
        let status = deposit_page(&mut other, &arena);
        assert!(status.is_ok(), "{status}");
    }
    let ranges = 4 * BLOCK_BYTES as u64;
    assert_eq!(broker.status().uses.held_bytes.now.get(), ranges, "no byte of the file beside");
    populate(&arena, 2 * MIB);
    // Above the cap what can be had again is evicted; a file of its size does not come back.
    eventually("it has been looked at again", || {
        broker.status().uses.held_bytes.now.get() != ranges
    });
    assert_no_bytes(deposit_page(&mut owner, &arena));
}
