//! Fds that are fetched ahead, between the real library and the real daemon.

use crate::comeback;
use crate::support::broker::{Broker, Setup};
use crate::support::memory::assert_bytes;
use crate::support::owner::{Owner, notices};
use crate::support::wait::{eventually, patience};
use fdbroker_client::{Client, Grant, Handle, Notice};
use std::time::Duration;

/// The grant of a handle that was sent ahead. The message that asks for it is one-way, and what
/// lies there is given back after a while: then it is asked for again.
fn taken(consumer: &Client, handle: Handle) -> Grant {
    let mut grant = None;
    eventually("it is sent ahead", || {
        grant = consumer.take_ahead(&handle);
        grant.is_some() || {
            consumer.fetch_ahead(&[handle], patience());
            false
        }
    });
    grant.expect("it is there").expect("there is room in the table")
}

fn open_leases(broker: &Broker) -> u64 {
    broker.status().uses.open_leases.now.get()
}

#[test]
fn take_ahead_when_fetched_then_the_right_bytes_and_the_others_are_given_back() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 8);
    let consumer = broker.client("consumer");
    assert!(consumer.take_ahead(&owner.handle(0)).is_none(), "nothing was asked for");
    assert_eq!(consumer.fetch_ahead(&owner.handles(), patience()), 8);
    drop(assert_bytes(taken(&consumer, owner.handle(3)), 3));
    assert!(consumer.take_ahead(&owner.handle(1)).is_none(), "it was sent before that");
    eventually("nothing is leased", || open_leases(&broker) == 0);
}

/// Fds were sent, and all are given back.
fn come_and_gone(broker: &Broker, mut meanwhile: impl FnMut()) {
    eventually("they are sent and given back", || {
        meanwhile();
        let leases = broker.status().uses.open_leases;
        leases.peak.get() == 8 && leases.now.get() == 0
    });
}

#[test]
fn fetched_when_not_taken_in_time_then_the_library_thread_gives_it_back() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 8);
    let consumer = broker.client("consumer");
    assert_eq!(consumer.fetch_ahead(&owner.handles(), patience()), 8);
    come_and_gone(&broker, || {});
    drop(assert_bytes(taken(&consumer, owner.handle(0)), 0));
}

#[test]
fn fetched_when_not_taken_in_time_then_dispatch_gives_it_back() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 8);
    let consumer = broker.builder("consumer").dispatch(true).connect().expect("connect");
    assert_eq!(consumer.fetch_ahead(&owner.handles(), patience()), 8);
    come_and_gone(&broker, || drop(consumer.dispatch(Duration::ZERO)));
}

#[test]
fn fetched_when_the_broker_is_slow_to_send_then_given_back_all_the_same() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 8);
    let consumer = broker.client("consumer");
    drop(taken(&consumer, owner.handle(0)));
    broker.stop();
    assert_eq!(consumer.fetch_ahead(&owner.handles(), patience()), 8);
    // Longer than they may lie there.
    std::thread::sleep(Duration::from_millis(250));
    broker.go_on();
    come_and_gone(&broker, || {});
}

#[test]
fn fetched_when_memory_of_it_ends_then_given_back_and_nobody_hears_of_a_lease_that_was_not_taken() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 8);
    let (told, on_notice) = notices();
    let consumer = broker.builder("consumer").on_notice(on_notice).connect().expect("connect");
    assert_eq!(consumer.fetch_ahead(&owner.handles(), patience()), 8);
    let drained = owner.client.unregister(&owner.registrations[1]).expect("it lives");
    if !drained.0 {
        owner.notices.until_drained(owner.id(1));
    }
    eventually("nothing is leased", || open_leases(&broker) == 0);
    told.assert_never_revoked();
}

#[test]
fn take_ahead_when_its_allocation_has_ended_then_none() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 2);
    let consumer = broker.client("consumer");
    drop(assert_bytes(taken(&consumer, owner.handle(0)), 0));
    consumer.fetch_ahead(&owner.handles()[1..], patience());
    owner.client.unregister(&owner.registrations[1]).expect("it lives");
    assert!(consumer.take_ahead(&owner.handle(1)).is_none());
    eventually("nothing is leased", || open_leases(&broker) == 0);
}

#[test]
fn take_ahead_when_the_broker_was_replaced_then_there_and_when_it_was_killed_then_fetched_anew() {
    let mut broker = comeback::long_grace().start();
    let owner = Owner::of(&broker, "owner", 4);
    let (told, on_notice) = notices();
    let consumer = broker.builder("consumer").on_notice(on_notice).connect().expect("connect");
    assert_eq!(consumer.fetch_ahead(&owner.handles(), patience()), 4);
    broker.take_over();
    drop(assert_bytes(taken(&consumer, owner.handle(0)), 0));
    consumer.fetch_ahead(&owner.handles()[1..], patience());
    broker.kill();
    broker.restart();
    told.until("reconnected", |notice| matches!(notice, Notice::Reconnected { .. }).then_some(()));
    assert!(consumer.take_ahead(&owner.handle(1)).is_none(), "it died with the broker");
    assert_eq!(open_leases(&broker), 0);
    let grant = consumer.acquire(&owner.handle(1), patience()).expect("recalled");
    drop(assert_bytes(grant, 1));
    drop(assert_bytes(taken(&consumer, owner.handle(1)), 1));
}

#[test]
fn grant_when_alone_then_says_how_many_leases_may_be_kept_a_quarter_of_the_free_room() {
    let broker = Setup::new().config("[caps.client]\nopen_leases = 9").start();
    let owner = Owner::of(&broker, "owner", 4);
    let consumer = broker.client("consumer");
    let grants: Vec<_> = owner
        .handles()
        .iter()
        .map(|handle| consumer.acquire(handle, patience()).expect("granted"))
        .collect();
    let rooms: Vec<u64> = grants.iter().map(|grant| grant.lease.room()).collect();
    assert_eq!(rooms, [2, 1, 1, 1]);
}
