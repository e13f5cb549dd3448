//! Registrations that are sent early, between the real library and the real daemon.

use crate::comeback;
use crate::support::broker::{Broker, Setup};
use crate::support::memory::assert_bytes;
use crate::support::owner::Owner;
use crate::support::wait::{eventually, patience};
use fdbroker_client::{EarlyRegistration, ErrorCode, Notice, Registration};
use std::ops::Range;
use std::os::fd::AsFd;

fn begin(owner: &Owner, index: usize) -> Option<EarlyRegistration> {
    begin_all(owner, index..index + 1).pop()
}

/// The first ones, in one message.
fn begin_all(owner: &Owner, indices: Range<usize>) -> Vec<EarlyRegistration> {
    let blocks = &owner.blocks;
    let deposits: Vec<_> = indices.clone().map(|index| blocks.deposit(index)).collect();
    let export = |place| Some(blocks.export(indices.start + place));
    owner.client.register_early(&deposits, export, patience())
}

/// The registration of a block that was sent early, or that is sent now: where fds are still being
/// closed there is no room yet, and the answer to an early one is AGAIN.
fn take(owner: &Owner, early: Option<EarlyRegistration>, index: usize) -> Registration {
    match early.map(|early| owner.client.take_early(early, patience())) {
        Some(Ok(registration)) => return registration,
        Some(Err(error)) if error.code != ErrorCode::Again => panic!("{error}"),
        _ => {}
    }
    let (fd, deposit) = (owner.blocks.export(index), owner.blocks.deposit(index));
    owner.client.register(&deposit, fd.as_fd(), patience()).expect("there is room, or is made")
}

fn allocations(broker: &Broker) -> u64 {
    broker.status().uses.allocations.now.get()
}

#[test]
fn take_early_when_each_is_sent_before_the_one_before_is_taken_then_the_right_bytes() {
    const COUNT: usize = 200;
    let broker = Setup::new().max_fds(64).start();
    let owner = Owner::without(&broker, "owner", COUNT);
    let consumer = broker.client("consumer");
    let (mut before, mut early) = (begin(&owner, 0), 0);
    for index in 1..=COUNT {
        let next = if index < COUNT { begin(&owner, index) } else { None };
        early += u32::from(before.is_some());
        let registration = take(&owner, before, index - 1);
        let grant = consumer.acquire(&registration.handle, patience()).expect("it lives");
        drop(assert_bytes(grant, index as u64 - 1));
        before = next;
    }
    assert!(early > 0, "a credit was at hand");
    assert_eq!(allocations(&broker), COUNT as u64);
}

#[test]
fn take_early_when_several_are_sent_at_a_full_cap_then_room_is_made_ahead_of_the_row() {
    const COUNT: usize = 200;
    let broker = Setup::new().max_fds(64).start();
    let owner = Owner::without(&broker, "owner", COUNT);
    let consumer = broker.client("consumer");
    let (mut index, mut most) = (0, 0);
    while index < COUNT {
        let early = begin_all(&owner, index..COUNT.min(index + 4));
        most = most.max(early.len());
        let mut row: Vec<_> = early.into_iter().map(Some).collect();
        row.resize_with(row.len().max(1), || None);
        for early in row {
            let registration = take(&owner, early, index);
            let grant = consumer.acquire(&registration.handle, patience()).expect("it lives");
            drop(assert_bytes(grant, index as u64));
            index += 1;
        }
    }
    assert_eq!((most, allocations(&broker)), (4, COUNT as u64));
}

#[test]
fn drop_when_many_were_sent_early_then_the_broker_has_none() {
    let broker = Broker::start();
    let owner = Owner::without(&broker, "owner", 200);
    for index in (0..200).step_by(4) {
        drop(begin_all(&owner, index..index + 4));
        // One of a message is taken, and ends when the others do.
        let mut some = begin_all(&owner, index..index + 3);
        let Some(one) = some.pop() else { continue };
        drop(some);
        match owner.client.take_early(one, patience()) {
            Ok(registration) => owner.client.unregister_soon([registration]),
            Err(error) => assert_eq!(error.code, ErrorCode::Again),
        }
    }
    eventually("nothing is left", || allocations(&broker) == 0);
    eventually("all fds are closed", || broker.status().uses.held_fds.now.get() == 0);
}

#[test]
fn register_early_when_the_cap_is_full_of_what_stays_then_none_and_nobody_waits() {
    let broker = Setup::new().max_fds(16).start();
    let owner = Owner::without(&broker, "owner", 32);
    let mut kept = Vec::new();
    let send = |index| {
        let deposit = owner.blocks.deposit(index);
        let deposit = deposit.recallable(false);
        let export = |_| Some(owner.blocks.export(index));
        owner.client.register_early(&[deposit], export, patience()).pop()
    };
    while let Some(early) = send(kept.len()) {
        kept.push(owner.client.take_early(early, patience()).expect("there was a credit"));
        assert!(kept.len() <= 16, "no more than the cap");
    }
    assert!(!kept.is_empty());
    assert_eq!(allocations(&broker), kept.len() as u64);
}

#[test]
fn take_early_when_the_broker_was_replaced_then_registered_or_not_connected() {
    let mut broker = comeback::long_grace().start();
    let owner = Owner::without(&broker, "owner", 2);
    let early = begin(&owner, 0).expect("a credit");
    broker.take_over();
    // It was read by the one broker or the other, or is gone with the connection.
    let taken = owner.client.take_early(early, patience());
    assert!(taken.is_ok() || taken.is_err_and(|error| error.code == ErrorCode::NotConnected));
    eventually("there is a broker again", || begin(&owner, 1).is_some());
}

#[test]
fn take_early_when_the_broker_was_killed_then_not_connected_and_the_others_live_on() {
    let mut broker = comeback::long_grace().start();
    let owner = Owner::without(&broker, "owner", 3);
    let taken = owner.client.take_early(begin(&owner, 1).expect("a credit"), patience());
    let taken = taken.expect("registered");
    let early = begin(&owner, 2).expect("a credit");
    broker.kill();
    broker.restart();
    let is_back = |notice| matches!(notice, Notice::Reconnected { .. }).then_some(());
    owner.notices.until("reconnected", is_back);
    let lost = owner.client.take_early(early, patience()).expect_err("sent to the one before");
    assert_eq!(lost.code, ErrorCode::NotConnected);
    let consumer = broker.client("consumer");
    drop(assert_bytes(consumer.acquire(&taken.handle, patience()).expect("recalled"), 1));
    owner.client.unregister(&taken).expect("it lives");
}
