//! Virtual fds: numbers that name an allocation to clients of its owner's domain, as long as it
//! lives.

use crate::support::broker::{Broker, Setup};
use crate::support::memory::{BLOCK_BYTES, all_seals, assert_bytes, memfd};
use crate::support::owner::{Owner, notices};
use crate::support::peer::Peer;
use crate::support::raw::{Raw, block_item};
use crate::support::wait::{eventually, patience};
use crate::{comeback, common::not_run};
use fdbroker_client::{Client, Deadline, Error, Notice, Share, VirtualFd};
use fdbroker_protocol::ErrorCode;
use fdbroker_protocol::limits::MAX_NEIGHBOURS;
use fdbroker_protocol::message::{RegisterItem, register_flags};
use std::os::fd::AsFd;
use std::time::Duration;

/// An owner whose blocks have virtual fds.
fn owner_of(broker: &Broker, count: usize) -> Owner {
    Owner::with(broker, "owner", count, |deposit| deposit.virtual_fd(true))
}

fn virtual_fd(owner: &Owner, index: usize) -> VirtualFd {
    owner.registrations[index].virtual_fd().expect("it was asked for")
}

#[track_caller]
fn assert_names_nothing(client: &Client, fd: VirtualFd) {
    let found: Result<_, Error> = client.resolve(fd, 0, patience());
    assert_eq!(found.expect_err("a handle").code, ErrorCode::BadHandle);
}

#[test]
fn acquire_virtual_when_held_or_evicted_then_the_right_bytes() {
    let broker = Setup::new().max_fds(64).start();
    let owner = owner_of(&broker, 100);
    let consumer = broker.client("consumer");
    for index in 0..100 {
        let grant = consumer.acquire_virtual(virtual_fd(&owner, index), patience()).expect("named");
        assert_eq!(grant.info.id, owner.id(index));
        drop(assert_bytes(grant, index as u64));
    }
    assert!(owner.recalls() > 0, "more than the broker may hold");
}

#[test]
fn register_when_a_virtual_fd_is_not_asked_for_then_none_and_a_later_registration_may_ask() {
    let broker = Broker::start();
    let mut owner = Owner::of(&broker, "owner", 1);
    assert_eq!(owner.registrations[0].virtual_fd(), None);
    owner.register(0..1, |deposit| deposit.virtual_fd(true));
    assert_eq!(owner.id(0), owner.id(1), "the same, counted");
    let consumer = broker.client("consumer");
    let handles = consumer.resolve(virtual_fd(&owner, 1), 0, patience()).expect("named");
    assert_eq!(handles, [owner.handle(1)]);
}

#[test]
fn resolve_when_registered_several_times_then_the_same_number_until_the_last_is_gone() {
    let broker = Broker::start();
    let mut owner = owner_of(&broker, 1);
    owner.register(0..1, |deposit| deposit.virtual_fd(true));
    let fd = virtual_fd(&owner, 0);
    assert_eq!(virtual_fd(&owner, 1), fd);
    let consumer = broker.client("consumer");
    owner.client.unregister(&owner.registrations[0]).expect("once");
    assert_eq!(consumer.resolve(fd, 0, patience()).expect("named"), [owner.handle(0)]);
    owner.client.unregister(&owner.registrations[0]).expect("twice");
    assert_names_nothing(&consumer, fd);
}

#[test]
fn resolve_when_neighbours_are_wanted_then_those_registered_next_that_have_virtual_fds() {
    let broker = Broker::start();
    let mut owner = owner_of(&broker, 40);
    owner.register(3..4, |deposit| deposit.base(0).virtual_fd(false));
    owner.client.unregister(&owner.registrations[5]).expect("it lives");
    let consumer = broker.client("consumer");
    let handles = |index, neighbours| {
        consumer.resolve(virtual_fd(&owner, index), neighbours, patience()).expect("named")
    };
    assert_eq!(handles(0, 0), [owner.handle(0)]);
    let expected: Vec<_> = (2..9).filter(|index| *index != 5).map(|it| owner.handle(it)).collect();
    assert_eq!(handles(2, 5), expected, "an ended one is left out");
    assert_eq!(handles(1, u32::MAX).len(), 1 + MAX_NEIGHBOURS as usize);
    assert_eq!(handles(39, 31), [owner.handle(39)], "no virtual fd behind it");
}

#[test]
fn resolve_ahead_when_fds_were_fetched_before_then_the_first_is_there_with_the_answer() {
    let broker = Broker::start();
    let owner = owner_of(&broker, 8);
    let consumer = broker.client("consumer");
    let ask = || consumer.resolve_ahead(virtual_fd(&owner, 0), 7, patience()).expect("named");
    assert_eq!(ask(), (owner.handles(), 0), "there is no socket for them");
    assert_eq!(consumer.fetch_ahead(&owner.handles()[7..], patience()), 1);
    eventually("it is sent", || consumer.take_ahead(&owner.handle(7)).is_some());
    assert_eq!(ask(), (owner.handles(), 8));
    let take = |index| consumer.take_ahead(&owner.handle(index)).map(|it| it.expect("room"));
    drop(assert_bytes(take(0).expect("it came before the answer"), 0));
    for index in 1..8 {
        let mut grant = None;
        eventually("it follows", || {
            grant = take(index);
            grant.is_some()
        });
        drop(assert_bytes(grant.expect("it is there"), index as u64));
    }
    eventually("nothing is leased", || broker.status().uses.open_leases.now.get() == 0);
}

#[test]
fn resolve_ahead_when_the_first_is_not_held_then_none_comes() {
    let lines = format!("[caps.node]\nheld_bytes = {}", 4 * BLOCK_BYTES);
    let broker = Setup::new().config(&lines).start();
    let owner = owner_of(&broker, 4);
    let consumer = broker.client("consumer");
    assert_eq!(consumer.fetch_ahead(&owner.handles()[3..], patience()), 1);
    eventually("it is sent", || consumer.take_ahead(&owner.handle(3)).is_some());
    eventually("nothing is leased", || broker.status().uses.open_leases.now.get() == 0);
    let before = broker.status().uses.open_leases.peak.get();
    let _other = owner_of(&broker, 1);
    let asked = consumer.resolve_ahead(virtual_fd(&owner, 0), 3, patience()).expect("named");
    assert_eq!(asked, (owner.handles(), 4));
    assert!(consumer.take_ahead(&owner.handle(0)).is_none(), "its fd was evicted");
    assert_eq!(broker.status().uses.open_leases.now.get(), 0, "nobody would take the others");
    assert_eq!(broker.status().uses.open_leases.peak.get(), before);
    let grant = consumer.acquire(&owner.handle(0), patience()).expect("recalled");
    drop(assert_bytes(grant, 0));
}

#[test]
fn resolve_when_the_number_is_nobodys_or_of_another_broker_then_bad_handle() {
    let (broker, other) = (Broker::start(), Broker::start());
    let owner = owner_of(&broker, 8);
    let _other_owner = owner_of(&other, 8);
    let there = other.client("consumer");
    for index in 0..8 {
        assert_names_nothing(&there, virtual_fd(&owner, index));
    }
    for number in [VirtualFd::FIRST, VirtualFd::FIRST + 1, i32::MAX] {
        let fd = VirtualFd::new(number).expect("in their range");
        assert!((0..8).all(|index| virtual_fd(&owner, index) != fd), "once in 10^8 runs");
        assert_names_nothing(&owner.client, fd);
    }
}

#[test]
fn resolve_when_the_owner_has_died_then_bad_handle() {
    let broker = Broker::start();
    let owner = owner_of(&broker, 1);
    let fd = virtual_fd(&owner, 0);
    drop(owner);
    let consumer = broker.client("consumer");
    eventually("its allocations have ended", || broker.status().uses.allocations.now.get() == 0);
    assert_names_nothing(&consumer, fd);
}

#[test]
fn acquire_virtual_when_of_another_user_then_bad_handle_though_shared_with_any() {
    if !nix::unistd::geteuid().is_root() {
        return not_run("virtual fds of another user", "other users' processes need root");
    }
    let broker = Setup::new().service().start();
    let share = Share::Any;
    let owner = Owner::with(&broker, "owner", 1, |deposit| deposit.virtual_fd(true).share(share));
    let mut stranger = Peer::start("rank");
    assert_eq!(stranger.ask("user 61001 61001"), "OK");
    assert_eq!(stranger.ask(&format!("connect {}", broker.socket().display())), "OK");
    let by_number = format!("hold-virtual {}", virtual_fd(&owner, 0));
    assert_eq!(stranger.ask(&by_number), "BAD_HANDLE");
    assert_eq!(stranger.with_handles("check 0", &[owner.handle(0)]), "OK", "by its handle");
}

#[test]
fn acquire_virtual_when_the_broker_was_replaced_or_killed_then_the_number_lives_on() {
    let mut broker = comeback::long_grace().start();
    let owner = owner_of(&broker, 3);
    let (told, on_notice) = notices();
    let consumer = broker.builder("consumer").on_notice(on_notice).connect().expect("connect");
    broker.take_over();
    let grant = consumer.acquire_virtual(virtual_fd(&owner, 0), patience()).expect("named");
    drop(assert_bytes(grant, 0));
    broker.kill();
    broker.restart();
    told.until("reconnected", |notice| matches!(notice, Notice::Reconnected { .. }).then_some(()));
    for index in 0..3 {
        let fd = virtual_fd(&owner, index);
        let grant = consumer.acquire_virtual(fd, patience()).expect("its owner comes back");
        drop(assert_bytes(grant, index as u64));
    }
}

#[test]
fn resolve_when_the_owner_has_not_come_back_from_a_crash_then_again() {
    let mut broker = comeback::long_grace().start();
    // It does not look for the next broker.
    let mut owner = Raw::connect(&broker.socket());
    let flags = register_flags::RECALLABLE | register_flags::VIRTUAL_FD;
    let block = memfd(c"block", BLOCK_BYTES, all_seals());
    let registered = owner.register(&[RegisterItem { flags, ..block_item() }], &[block.as_fd()]);
    let fd = registered[0].handle.get().virtual_fd().expect("it was asked for");
    broker.kill();
    broker.restart();
    let consumer = broker.client("consumer");
    let error = consumer.resolve(fd, 0, Deadline::after(Duration::ZERO)).expect_err("not named");
    assert_eq!(error.code, ErrorCode::Again, "{error}");
}
