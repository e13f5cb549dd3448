//! The time between a crash of the broker and the return of an owner: nothing of the owner's is
//! granted or current, its end is told as what it was, and nobody gets more than in life. Must
//! never wait for the end of the grace time.

use crate::comeback::{long_grace, short_grace};
use crate::common::not_run;
use crate::support::broker::Broker;
use crate::support::memory::{BLOCK_BYTES, pattern};
use crate::support::peer::{Peer, from_words};
use crate::support::wait::{eventually, patience};
use fdbroker_client::{Access, Client, Deadline, Handle, Import};
use fdbroker_protocol::ErrorCode;
use std::time::{Duration, Instant};

/// Shorter than the patience of a test, and longer than a round trip.
const SOON: Duration = Duration::from_millis(300);

/// A rank of its own process that shares `count` blocks, and their handles.
fn owner_of(broker: &Broker, count: usize) -> (Peer, Vec<Handle>) {
    let mut owner = Peer::start("comeback");
    assert_eq!(owner.ask(&format!("connect {}", broker.socket().display())), "OK");
    let shared = owner.ask(&format!("share {count} 0"));
    (owner, from_words(shared.split(' ')))
}

/// Imports all, each with its bytes.
fn import_all(client: &Client, handles: &[Handle]) -> Vec<Import> {
    let import = |handle| client.acquire(handle, patience())?.import(Access::Read, 0);
    handles.iter().map(import).collect::<Result<_, _>>().expect("granted")
}

/// Another broker after a crash, to which the client has come back.
fn crash(broker: &mut Broker, client: &Client) {
    let before = client.incarnation();
    broker.kill();
    broker.restart();
    eventually("the consumer is back", || client.is_connected() && client.incarnation() != before);
}

#[track_caller]
fn assert_waits(client: &Client, handle: &Handle) {
    let begun = Instant::now();
    let error = client.acquire(handle, Deadline::after(SOON)).expect_err("granted unconfirmed");
    assert!(matches!(error.code, ErrorCode::TimedOut | ErrorCode::Again), "{error}");
    // The broker answers a little before the deadline.
    assert!(begun.elapsed() >= SOON / 2, "{error}");
}

#[test]
fn grace_when_the_owner_is_stopped_then_nothing_is_granted_or_current_until_it_goes_on() {
    let mut broker = long_grace().start();
    let (mut owner, handles) = owner_of(&broker, 2);
    let consumer = broker.client("consumer");
    let imports = import_all(&consumer, &handles);
    owner.stop();
    // Two crashes in one grace time: the second finds what the first left.
    for _ in 0..2 {
        crash(&mut broker, &consumer);
        assert_waits(&consumer, &handles[0]);
        assert!(imports.iter().all(|import| !import.is_current()));
    }
    owner.go_on();
    let again = import_all(&consumer, &handles);
    for (seed, import) in (0..).zip(&again) {
        let mut bytes = vec![0; BLOCK_BYTES];
        import.read_at(0, &mut bytes).expect("in bounds");
        assert_eq!(bytes, pattern(seed));
    }
    assert!(imports.iter().chain(&again).all(Import::is_current));
    drop((imports, again));
    assert_eq!(owner.ask("drop"), "OK");
    drop((owner, consumer));
    broker.assert_nothing_left();
}

#[test]
fn grace_when_the_owner_died_while_no_broker_was_there_then_owner_gone_at_once() {
    let mut broker = short_grace().start();
    let (mut owner, handles) = owner_of(&broker, 1);
    let consumer = broker.client("consumer");
    let imports = import_all(&consumer, &handles);
    let before = consumer.incarnation();
    broker.kill();
    owner.kill();
    broker.restart();
    eventually("the consumer is back", || {
        consumer.is_connected() && consumer.incarnation() != before
    });
    for _ in 0..40 {
        let error = consumer.acquire(&handles[0], patience()).expect_err("its owner is dead");
        assert_eq!(error.code, ErrorCode::OwnerGone, "{error}");
    }
    assert!(!imports[0].is_current());
    drop((imports, consumer));
    broker.assert_nothing_left();
}

#[test]
fn grace_when_many_are_freed_while_no_broker_was_there_then_all_stale_and_others_are_served() {
    const FREED: usize = 1500;
    let mut broker = long_grace().start();
    let (mut owner, freed) = owner_of(&broker, FREED);
    let (mut other, others) = owner_of(&broker, 1);
    let consumer = broker.client("consumer");
    let before = consumer.incarnation();
    broker.kill();
    assert_eq!(owner.ask("drop"), "OK");
    broker.restart();
    eventually("the consumer is back", || {
        consumer.is_connected() && consumer.incarnation() != before
    });
    drop(import_all(&consumer, &others));
    for outcome in consumer.acquire_many(&freed, patience()).expect("connected") {
        assert_eq!(outcome.expect_err("freed").code, ErrorCode::Stale);
    }
    // Holders could still declare leases of them.
    assert_eq!(broker.status().uses.allocations.now.get(), FREED as u64 + 1);
    assert_eq!(other.ask("drop"), "OK");
    drop((owner, other, consumer));
    broker.assert_nothing_left();
}

#[test]
fn grace_when_another_user_has_the_handle_then_not_permitted_as_in_life() {
    const NAME: &str = "grace_when_another_user_has_the_handle_then_not_permitted_as_in_life";
    if !nix::unistd::geteuid().is_root() {
        return not_run(NAME, "other users' processes need root");
    }
    let mut broker = long_grace().service().start();
    let rank_of = |broker: &Broker, uid: u32| {
        let mut rank = Peer::start("rank");
        assert_eq!(rank.ask(&format!("user {uid} {uid}")), "OK");
        assert_eq!(rank.ask(&format!("connect {}", broker.socket().display())), "OK");
        rank
    };
    let mut alice = rank_of(&broker, 61_003);

    let own = from_words(alice.ask("share 1 0").split(' '))[0];
    alice.stop();
    broker.kill();
    broker.restart();
    let mut bob = rank_of(&broker, 61_004);
    assert_eq!(bob.with_handles("check 0", &[own]), "NOT_PERMITTED");
    alice.go_on();
    let mut other_alice = rank_of(&broker, 61_003);
    assert_eq!(other_alice.with_handles("check 0", &[own]), "OK");
    assert_eq!(bob.with_handles("check 0", &[own]), "NOT_PERMITTED");
    drop((alice, bob, other_alice));
    broker.assert_nothing_left();
}
