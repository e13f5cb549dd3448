//! Clients that do not read, ask too much, wait, or change their mind: bounded, and nobody else's
//! business.

use crate::support::broker::{Broker, Setup};
use crate::support::hello::hello_message;
use crate::support::memory::assert_bytes;
use crate::support::owner::Owner;
use crate::support::raw::{Raw, grants, hello};
use crate::support::wait::{eventually, eventually_ok, many_fds, patience};
use fdbroker_client::{Client, Deadline, Handle};
use fdbroker_protocol::message::LeaseItem;
use fdbroker_protocol::{ErrorCode, Kind, MAX_BATCH, Resource, Writer};
use fdbroker_scm::SendError;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Unread messages with fds that the design allows a client.
const UNREAD_MESSAGES: u64 = 16;

/// Sends acquires until the socket takes no more, or `most` are sent; how many.
fn ask_without_reading(raw: &mut Raw, handles: &[Handle], most: usize) -> usize {
    let mut sent = 0;
    let mut full_since = Instant::now();
    while sent < most {
        let id = raw.fresh_id();
        let mut writer = Writer::new();
        writer.start(Kind::Acquire, id).push(&[0_u32, 0]);
        for handle in handles {
            writer.push(&handle.prefix.to_bytes());
        }
        match fdbroker_scm::send(raw.socket.as_fd(), writer.finish(handles.len(), 0), &[]) {
            Ok(()) => (sent, full_since) = (sent + 1, Instant::now()),
            // The broker reads on, or does not: a while without room means that it does not.
            Err(SendError::WouldBlock) if full_since.elapsed() > Duration::from_millis(200) => {
                break;
            }
            Err(SendError::WouldBlock) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    sent
}

/// The client is served as if it were alone.
#[track_caller]
fn assert_served(client: &Client, owner: &Owner, times: usize) {
    for n in 0..times {
        let index = n % owner.registrations.len();
        let grant = client.acquire(&owner.handle(index), patience()).expect("still served");
        drop(assert_bytes(grant, index as u64));
    }
}

#[test]
fn client_when_it_never_reads_then_few_fds_wait_for_it_and_others_are_served() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 4);
    let client = broker.client("bystander");
    let mut deaf = Raw::connect(&broker.socket());
    let sent = ask_without_reading(&mut deaf, &[owner.handle(0)], 5000);
    assert!(sent as u64 > UNREAD_MESSAGES, "only {sent} requests were taken");
    assert_served(&client, &owner, 100);
    client.flush(patience()).expect("its own are given back");
    let held_by_it = broker.admin().leases().len() as u64;
    assert!(held_by_it <= UNREAD_MESSAGES, "{held_by_it} grants wait unread");
    // It begins to read, and what it asked for comes.
    for _ in 0..sent.min(100) {
        let (items, fds) = grants(deaf.receive().expect("an answer"));
        assert_eq!((items[0].status.get().result(), fds.len()), (Ok(()), 1));
    }
    drop((deaf, client, owner));
    broker.assert_nothing_left();
}

#[test]
fn client_when_it_never_reads_full_batches_then_at_most_one_batch_of_fds_waits_for_it() {
    if !crate::common::has_fds(2048) {
        return;
    }
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", MAX_BATCH);
    let client = broker.client("bystander");
    let mut deaf = Raw::connect(&broker.socket());
    ask_without_reading(&mut deaf, &owner.handles(), 100);
    assert_served(&client, &owner, 300);
    client.flush(patience()).expect("its own are given back");
    let held_by_it = broker.admin().leases().len();
    assert!(held_by_it <= MAX_BATCH, "{held_by_it} fds wait unread");
    drop((deaf, client, owner));
    broker.assert_nothing_left();
}

/// More than fit one message; the daemon holds as many where it may have 1,024 fds.
const HELD: usize = 300;

#[test]
fn holder_when_it_never_reads_its_events_then_owners_and_others_go_on() {
    if !crate::common::has_fds(2048) {
        return;
    }
    let broker = Broker::start();
    let _table = many_fds();
    let mut owner = Owner::of(&broker, "owner", HELD);
    let mut deaf = Raw::connect(&broker.socket());
    let mut leases = Vec::new();
    for chunk in owner.handles().chunks(MAX_BATCH) {
        let (items, fds) = deaf.acquire(chunk);
        assert!(items.iter().all(|item| item.status.get().is_ok()) && fds.len() == chunk.len());
        leases.extend(items.iter().map(|item| item.lease.get()));
    }
    for outcome in
        owner.client.unregister_many(&owner.registrations, patience()).expect("connected")
    {
        outcome.expect("its own");
    }
    owner.registrations.clear();
    owner.register(0..4, |deposit| deposit);
    assert_served(&owner.client, &owner, 20);
    // Its leases of ended allocations stay on the ledger until it gives them back.
    eventually_ok("only its leases are open", || {
        match broker.status().uses.open_leases.now.get() {
            open if open == HELD as u64 => Ok(()),
            open => Err(format!("{open} are open")),
        }
    });
    for chunk in leases.chunks(MAX_BATCH) {
        assert!(deaf.release(chunk).iter().all(|status| status.is_ok()));
    }
    drop((deaf, owner));
    broker.assert_nothing_left();
}

#[test]
fn client_when_another_floods_the_broker_then_served_all_the_same() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 4);
    let client = broker.client("bystander");
    let flood = Raw::connect(&broker.socket());
    let (stop, floods) = (AtomicBool::new(false), AtomicBool::new(false));
    let release = |id: u64| {
        let mut writer = Writer::new();
        writer.start(Kind::Release, id).push(&[LeaseItem { lease: u64::MAX.into() }; MAX_BATCH]);
        writer.finish(MAX_BATCH, 0).to_vec()
    };
    let last_id = u64::MAX;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sent = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                sent += 1;
                flood.send(&release(sent), &[]).expect("the broker reads");
                floods.store(true, Ordering::Relaxed);
            }
            flood.send(&release(last_id), &[]).expect("the broker reads");
        });
        scope.spawn(|| {
            let next = || flood.receive().expect("an answer to each").message().id;
            while next() != last_id {}
        });
        eventually("there is a flood", || floods.load(Ordering::Relaxed));
        assert_served(&client, &owner, 300);
        stop.store(true, Ordering::Relaxed);
    });
    drop((flood, client, owner));
    broker.assert_nothing_left();
}

#[test]
fn client_when_others_come_and_go_all_the_time_then_served_all_the_same() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 4);
    let client = broker.client("bystander");
    let (stop, storms) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut raw = Raw::connect(&broker.socket());
                raw.start_acquire(&[owner.registrations[0].handle], 0);
                storms.store(true, Ordering::Relaxed);
            }
        });
        eventually("there is a storm", || storms.load(Ordering::Relaxed));
        assert_served(&client, &owner, 300);
        stop.store(true, Ordering::Relaxed);
    });
    drop((client, owner));
    broker.assert_nothing_left();
}

/// A broker where a client may have one open lease and four parked requests; an owner; a raw client
/// that has its one.
fn full_client() -> (Broker, Owner, Raw, u64) {
    let lines = "[caps.client]\nopen_leases = 1\n[limits]\nmax_parked_per_client = 4";
    let broker = Setup::new().config(lines).start();
    let owner = Owner::of(&broker, "owner", 8);
    let mut raw = Raw::connect(&broker.socket());
    let (items, _fds) = raw.acquire(&[owner.handle(0)]);
    (broker, owner, raw, items[0].lease.get())
}

const LONG_MS: u32 = 3_000_000;

#[test]
fn acquire_when_too_many_requests_are_parked_then_no_quota_names_that() {
    let (broker, owner, mut raw, lease) = full_client();
    let parked: Vec<_> = (1..5).map(|n| raw.start_acquire(&[owner.handle(n)], LONG_MS)).collect();
    eventually("four are parked", || broker.status().uses.parked_requests.now.get() == 4);
    let fifth = raw.start_acquire(&[owner.handle(5)], LONG_MS);
    let answer = raw.receive().expect("an answer");
    assert_eq!(answer.message().id, fifth);
    let status = match answer.message().kind {
        Kind::Failed => answer.failure(),
        _ => grants(answer).0[0].status.get(),
    };
    assert_eq!(status.result(), Err(ErrorCode::NoQuota));
    assert_eq!((status.resource, status.value), (Resource::ParkedRequests as u8, 4));
    // The parked ones are served in turn, as they came.
    let mut lease = lease;
    for id in parked {
        raw.release_one_way(&[lease]);
        let answer = raw.receive().expect("an answer");
        assert_eq!(answer.message().id, id);
        let (items, fds) = grants(answer);
        assert_eq!((items[0].status.get().result(), fds.len()), (Ok(()), 1));
        lease = items[0].lease.get();
    }
}

/// The status of a request that was answered as a whole or by its one item.
fn status_of(raw: &Raw, id: u64) -> Result<(), ErrorCode> {
    let answer = raw.receive().expect("an answer");
    assert_eq!(answer.message().id, id);
    match answer.message().kind {
        Kind::Failed => answer.failure().result(),
        _ => grants(answer).0[0].status.get().result(),
    }
}

fn cancel(raw: &Raw, id: u64) {
    let mut writer = Writer::new();
    writer.start(Kind::Cancel, id);
    raw.send(writer.finish(0, 0), &[]).expect("sent");
}

#[test]
fn cancel_when_parked_then_cancelled_and_later_requests_are_served() {
    let (broker, owner, mut raw, lease) = full_client();
    let first = raw.start_acquire(&[owner.handle(1)], LONG_MS);
    let second = raw.start_acquire(&[owner.handle(2)], LONG_MS);
    eventually("both wait", || broker.status().uses.parked_requests.now.get() == 2);
    cancel(&raw, first);
    assert_eq!(status_of(&raw, first), Err(ErrorCode::Cancelled));
    // Of no such request: no answer, no harm.
    cancel(&raw, first);
    cancel(&raw, u64::MAX);
    raw.release_one_way(&[lease]);
    assert_eq!(status_of(&raw, second), Ok(()));
    drop((raw, owner));
    broker.assert_nothing_left();
}

#[test]
fn acquire_when_an_id_is_used_twice_then_both_are_answered_and_nothing_is_lost() {
    let (broker, owner, raw, lease) = full_client();
    let mut writer = Writer::new();
    for _ in 0..2 {
        writer
            .start(Kind::Acquire, 77)
            .push(&[LONG_MS.to_le(), 0])
            .push(&owner.handle(1).prefix.to_bytes());
        raw.send(writer.finish(1, 0), &[]).expect("sent");
    }
    eventually("both wait", || broker.status().uses.parked_requests.now.get() == 2);
    cancel(&raw, 77);
    assert_eq!(status_of(&raw, 77), Err(ErrorCode::Cancelled));
    raw.release_one_way(&[lease]);
    assert_eq!(status_of(&raw, 77), Ok(()));
    drop((raw, owner));
    broker.assert_nothing_left();
}

#[test]
fn acquire_when_the_deadline_passes_then_answered_and_nothing_stays_parked() {
    let (broker, owner, mut raw, _lease) = full_client();
    for deadline_ms in [0, 1, 50] {
        let id = raw.start_acquire(&[owner.handle(1)], deadline_ms);
        assert_eq!(status_of(&raw, id), Err(ErrorCode::NoQuota));
    }
    assert_eq!(broker.status().uses.parked_requests.now.get(), 0);
}

#[test]
fn acquire_when_the_answer_comes_too_late_then_neither_fd_nor_lease_is_lost() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 4);
    let client = broker.client("hasty");
    broker.stop();
    let error = client
        .acquire(&owner.handle(0), Deadline::after(Duration::from_millis(10)))
        .expect_err("the broker sleeps");
    assert_eq!(error.code, ErrorCode::TimedOut, "{error}");
    broker.go_on();
    assert_served(&client, &owner, 8);
    eventually("the late grant is given back", || {
        let status = broker.status();
        (status.uses.open_leases.now.get(), status.uses.mapped_leases.now.get()) == (0, 0)
    });
    drop((client, owner));
    broker.assert_nothing_left();
}

#[test]
fn hello_when_a_process_reads_none_of_many_answers_then_others_are_served_and_none_is_lost() {
    let broker = Broker::start();
    let before = broker.settled_fds();
    let raws: Vec<Raw> = (0..24).map(|_| Raw::silent(&broker.socket())).collect();
    let hello = hello_message(&hello());
    for raw in &raws {
        raw.send(&hello, &[]).expect("the broker reads");
    }
    eventually("all are noted", || {
        broker.status().uses.connections.now.get() as usize == raws.len()
    });
    let owner = Owner::of(&broker, "owner", 4);
    assert_served(&broker.client("another"), &owner, 4);
    for raw in &raws {
        let answer = raw.receive().expect("each is answered");
        assert_eq!(answer.message().kind, Kind::HelloReply);
    }
    drop((raws, owner));
    eventually("nothing is left", || broker.open_fds() == before);
}
