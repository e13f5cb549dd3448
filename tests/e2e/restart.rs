//! Brokers that go and come back: what clients are told, what no longer counts, and that no old
//! handle ever names something new.

use crate::support::broker::{Broker, Setup};
use crate::support::memory::{assert_bytes, memory_kind};
use crate::support::owner::{Notices, Owner, notices};
use crate::support::wait::{eventually, patience};
use fdbroker_client::{AllocationId, Client, Handle, Notice};
use fdbroker_protocol::{ErrorCode, MemoryKind};
use std::collections::{HashMap, HashSet};

fn until_disconnected(told: &Notices) {
    told.until("disconnected", |notice| matches!(notice, Notice::Disconnected).then_some(()));
}

fn until_reconnected(told: &Notices) -> u64 {
    told.until("reconnected", |notice| match notice {
        Notice::Reconnected { incarnation, .. } => Some(incarnation),
        _ => None,
    })
}

#[track_caller]
fn assert_never_resolves(client: &Client, handle: &Handle) {
    let error = client.acquire(handle, patience()).expect_err("a grant");
    let codes = [ErrorCode::Stale, ErrorCode::BadHandle, ErrorCode::OwnerGone];
    assert!(codes.contains(&error.code), "{error}");
}

#[test]
fn clients_when_the_broker_is_killed_then_every_call_answers_not_connected() {
    let mut broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 2);
    let grant = owner.client.acquire(&owner.handle(0), patience()).expect("ready");
    broker.kill();
    until_disconnected(&owner.notices);
    let client = &owner.client;
    let deposit = owner.blocks.deposit(0);
    let answers = [
        client.acquire(&owner.handle(0), patience()).map(drop),
        client.acquire_many(&owner.handles(), patience()).map(drop),
        client.register_with(&[deposit], |_| Ok(owner.blocks.export(0)), patience()).map(drop),
        grant.lease.release(),
    ];
    for answer in answers {
        let error = answer.expect_err("there is no broker");
        assert_eq!(error.code, ErrorCode::NotConnected, "{error}");
    }
    client.unregister(&owner.registrations[1]).expect("it ends all the same");
    assert!(!client.is_connected());
}

#[test]
fn clients_when_blocked_while_the_broker_is_killed_then_not_connected() {
    let mut broker = Setup::new().config("[caps.node]\nopen_leases = 1").start();
    let owner = Owner::of(&broker, "owner", 2);
    let held = owner.client.acquire(&owner.handle(0), patience()).expect("ready");
    let (waiter, wanted) = (broker.client("waiter"), owner.handle(1));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.acquire(&wanted, patience()));
        eventually("it waits", || broker.status().uses.parked_requests.now.get() == 1);
        broker.kill();
        let error = waits.join().expect("no panic").expect_err("there is no broker");
        assert_eq!(error.code, ErrorCode::NotConnected, "{error}");
    });
    drop(held);
}

#[test]
fn clients_when_the_broker_comes_back_then_connected_again_and_only_what_is_ended_never_resolves() {
    let mut broker = Broker::start();
    let mut owner = Owner::of(&broker, "owner", 3);
    let import =
        assert_bytes(owner.client.acquire(&owner.handle(0), patience()).expect("ready"), 0);
    let (before, old) = (owner.client.incarnation(), owner.handles());
    broker.kill();
    until_disconnected(&owner.notices);
    broker.restart();
    let incarnation = until_reconnected(&owner.notices);
    assert_ne!(incarnation, before);
    assert_eq!(owner.client.incarnation(), incarnation);

    for (index, handle) in (0..).zip(&old) {
        drop(assert_bytes(owner.client.acquire(handle, patience()).expect("named again"), index));
        let record = broker.admin().allocation(handle.id()).expect("on the ledger");
        let files = (record.inode.get() != 0, record.files_ms.get());
        // Leases of before may be of a dma-buf that it has not seen; a memfd is the same for ever.
        let since_ms = if memory_kind() == MemoryKind::Memfd { u64::MAX } else { 0 };
        assert_eq!(files, (true, since_ms));
    }
    assert!(import.is_current(), "its lease is declared");
    for registration in &owner.registrations {
        owner.client.unregister(registration).expect("named again");
    }
    owner.register(0..3, |deposit| deposit);
    for index in 0..3 {
        let grant = owner.client.acquire(&owner.handle(3 + index), patience()).expect("anew");
        drop(assert_bytes(grant, index as u64));
    }
    for handle in &old {
        assert_never_resolves(&owner.client, handle);
    }
    drop((import, owner));
    broker.assert_nothing_left();
}

#[test]
fn leases_when_of_before_a_restart_then_giving_them_back_touches_no_new_one() {
    let mut broker = Broker::start();
    let mut owner = Owner::of(&broker, "owner", 1);
    let old = owner.client.acquire(&owner.handle(0), patience()).expect("ready");
    broker.kill();
    until_disconnected(&owner.notices);
    broker.restart();
    until_reconnected(&owner.notices);
    owner.register(0..1, |deposit| deposit);
    let new = owner.client.acquire(&owner.handle(1), patience()).expect("anew");
    drop(old);
    // A round trip after it: what the drop might have sent has been read.
    drop(assert_bytes(owner.client.acquire(&owner.handle(1), patience()).expect("anew"), 0));
    let leases: Vec<_> = broker.admin().leases().iter().map(|record| record.lease.get()).collect();
    assert!(leases.contains(&new.lease.number()), "{leases:?}");
}

#[test]
fn generations_when_the_broker_is_restarted_in_the_same_directory_then_they_only_grow() {
    let mut broker = Broker::start();
    let mut newest: HashMap<u32, u32> = HashMap::new();
    let mut seen: HashSet<AllocationId> = HashSet::new();
    for round in 0..6 {
        let owner = Owner::of(&broker, "owner", 5);
        for id in owner.registrations.iter().map(|one| one.id()) {
            assert!(seen.insert(id), "{id} was given out twice");
            let before = newest.insert(id.slot, id.generation);
            assert!(before < Some(id.generation), "round {round}: {id} after {before:?}");
        }
        drop(owner);
        match round % 2 {
            0 => broker.kill(),
            _ => broker.terminate(),
        }
        broker.restart();
    }
}

#[test]
fn clients_when_the_broker_is_asked_to_end_then_told_before_the_connection_ends() {
    let mut broker = Broker::start();
    let (told, on_notice) = notices();
    let client = broker.builder("client").on_notice(on_notice).connect().expect("connect");
    broker.terminate();
    let first = told.until("the first notice", Some);
    assert!(matches!(first, Notice::GoingAway { .. }), "{first:?}");
    until_disconnected(&told);
    assert!(!client.is_connected());
    let gone = [broker.socket(), broker.admin_socket()];
    assert!(gone.iter().all(|path| !path.exists()), "sockets are left behind");
}

#[test]
fn client_when_there_is_no_broker_then_not_connected_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let builder = Client::builder().socket(dir.path().join("no.sock"));
    let error = builder.connect().expect_err("nobody listens");
    assert_eq!(error.code, ErrorCode::NotConnected, "{error}");
}
