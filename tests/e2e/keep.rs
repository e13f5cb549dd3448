//! Kept memory: it outlives its owner for a time, and no longer; whom it is charged to, and how
//! much of it there may be.

use crate::support::broker::{Broker, Setup};
use crate::support::memory::{Blocks, assert_bytes};
use crate::support::peer::from_words;
use crate::support::rank::rank;
use crate::support::wait::{eventually, patience};
use fdbroker_client::{Client, Handle, Registration};
use fdbroker_protocol::admin::AllocationState;
use fdbroker_protocol::message::register_flags;
use fdbroker_protocol::{ErrorCode, Resource, Scope};
use std::os::fd::AsFd;

/// A broker that keeps for this long.
fn keeping(ttl_ms: u64) -> Broker {
    Setup::new().config(&format!("[limits]\nkeep_ttl_ms = {ttl_ms}")).start()
}

/// Deposits one of the blocks, to be kept.
fn keep(
    client: &Client,
    blocks: &Blocks,
    index: usize,
) -> Result<Registration, fdbroker_client::Error> {
    let mut deposit = blocks.deposit(index);
    deposit.keep = true;
    client.register(&deposit, blocks.export(index).as_fd(), patience())
}

fn code(client: &Client, handle: &Handle) -> Option<ErrorCode> {
    client.acquire(handle, patience()).err().map(|error| error.code)
}

#[test]
fn kept_when_its_owner_is_killed_then_it_works_and_is_its_users() {
    let broker = keeping(600_000);
    let mut owner = rank(&broker.socket());
    let handle = from_words(owner.ask("deposit uid keep").split(' '))[0];
    let client = broker.client("consumer");
    owner.kill();
    eventually("it is noticed", || broker.status().uses.connections.now.get() == 1);

    drop(assert_bytes(client.acquire(&handle, patience()).expect("it is kept"), 0));
    let record = broker.admin().allocation(handle.id()).expect("it is kept");
    assert_eq!(record.owner_gone, 1);
    assert_eq!(record.state.get(), AllocationState::Resident as u32);
    assert_eq!(record.flags & register_flags::KEEP, register_flags::KEEP);
    assert_eq!(broker.status().gauges.stored_fds.get(), 1);
    let charged: u64 = broker.admin().clients().iter().map(|it| it.uses.allocations.get()).sum();
    assert_eq!(charged, 0, "no client is charged for it");
}

#[test]
fn kept_when_its_time_is_over_then_owner_gone_and_nothing_is_left() {
    let broker = keeping(100);
    let mut owner = rank(&broker.socket());
    let handle = from_words(owner.ask("deposit uid keep").split(' '))[0];
    let client = broker.client("consumer");
    // Held to the end: once nobody holds it, all that can be said of it is that it is stale.
    let held = client.acquire(&handle, patience()).expect("its owner lives");
    owner.kill();
    eventually("its time is over", || code(&client, &handle) == Some(ErrorCode::OwnerGone));
    drop((owner, held, client));
    broker.assert_nothing_left();
}

#[test]
fn kept_when_not_asked_for_then_the_owners_death_ends_it() {
    let broker = keeping(600_000);
    let mut owner = rank(&broker.socket());
    let handle = from_words(owner.ask("deposit uid").split(' '))[0];
    let client = broker.client("consumer");
    owner.kill();
    eventually("it ends", || code(&client, &handle).is_some());
}

#[test]
fn kept_when_there_are_as_many_as_may_be_then_no_quota_names_the_cap() {
    let setup = Setup::new().config("[caps.client]\nkept_allocations = 1");
    let broker = setup.start();
    let builder = broker.builder("owner").on_recall(|_| Err(ErrorCode::Again));
    let client = builder.connect().expect("connect");
    let blocks = Blocks::new(2);
    let first = keep(&client, &blocks, 0).expect("one may be");
    let error = keep(&client, &blocks, 1).expect_err("one too many");
    assert_eq!(error.code, ErrorCode::NoQuota, "{error}");
    let status = error.status.expect("the broker says it");
    assert_eq!(Resource::from_number(status.resource), Some(Resource::KeptAllocations), "{error}");
    assert_eq!(status.scope(), Some(Scope::Client), "{error}");
    assert_eq!(status.value, 1, "{error}");
    client.unregister(&first).expect("ended");
    keep(&client, &blocks, 1).expect("there is room again");
}
