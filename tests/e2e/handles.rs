//! Handles that are not, not of here, or not any more, presented to the real daemon by the real
//! library.

use crate::support::broker::{Broker, Setup};
use crate::support::memory::{BLOCK_BYTES, assert_bytes};
use crate::support::owner::Owner;
use crate::support::rank::rank;
use crate::support::wait::patience;
use fdbroker_client::{Access, Client};
use fdbroker_protocol::{ErrorCode, Handle};

/// An owner of one block and a consumer.
fn owner_and_consumer(broker: &Broker) -> (Owner, Client) {
    (Owner::of(broker, "owner", 1), broker.client("consumer"))
}

#[track_caller]
fn assert_refused(client: &Client, handle: &Handle, code: ErrorCode) {
    let error = client.acquire(handle, patience()).expect_err("a grant");
    assert_eq!(error.code, code, "{error}");
}

/// Makes a handle wrong.
type Change = fn(&mut Handle);

#[test]
fn acquire_when_any_part_of_a_handle_is_wrong_then_refused_by_name_and_the_rest_is_granted() {
    let broker = Broker::start();
    let (owner, consumer) = owner_and_consumer(&broker);
    let changes: [(Change, ErrorCode); 7] = [
        (|handle| handle.prefix.magic[0] ^= 1, ErrorCode::BadHandle),
        (|handle| handle.prefix.version += 1, ErrorCode::BadHandle),
        (|handle| handle.prefix.node += 1, ErrorCode::WrongNode),
        (|handle| handle.prefix.mac += 1, ErrorCode::BadHandle),
        (|handle| handle.prefix.generation += 1, ErrorCode::BadHandle),
        (|handle| handle.prefix.slot += 1, ErrorCode::BadHandle),
        (|handle| *handle = Handle::from_bytes([0; 64]), ErrorCode::BadHandle),
    ];
    let mut handles: Vec<Handle> = vec![owner.handle(0); changes.len() + 1];
    handles.iter_mut().zip(&changes).for_each(|(handle, (change, _))| change(handle));
    let mut outcomes = consumer.acquire_many(&handles, patience()).expect("connected");
    let granted = outcomes.pop().expect("of the true handle");
    for (index, (outcome, (_, code))) in outcomes.into_iter().zip(changes).enumerate() {
        let error = outcome.expect_err("a grant");
        assert_eq!(error.code, code, "{index}: {error}");
    }
    drop(assert_bytes(granted.expect("the true handle"), 0));
    assert_eq!(broker.status().counters.grants.get(), 1);
}

#[test]
fn acquire_when_handle_is_of_another_broker_then_bad_handle() {
    let (broker, other) = (Broker::start(), Broker::start());
    let owner = Owner::of(&other, "owner", 1);
    assert_refused(&broker.client("consumer"), &owner.handle(0), ErrorCode::BadHandle);
}

#[test]
fn acquire_when_hints_are_forged_then_the_grants_own_size_counts() {
    let broker = Broker::start();
    let (owner, consumer) = owner_and_consumer(&broker);
    let mut handle = owner.handle(0);
    handle.size_bytes = u64::MAX;
    handle.offset_bytes = 1 << 40;
    let grant = consumer.acquire(&handle, patience()).expect("hints are not covered by the MAC");
    assert_eq!(grant.info.facts.size_bytes, BLOCK_BYTES as u64);
    let refused = grant.import(Access::Read, handle.offset_bytes).expect_err("outside");
    assert_eq!(refused.code, ErrorCode::BadHandle);
}

#[test]
fn acquire_when_the_allocation_has_ended_then_stale() {
    let broker = Broker::start();
    let (owner, consumer) = owner_and_consumer(&broker);
    owner.client.unregister(&owner.registrations[0]).expect("its own");
    assert_refused(&consumer, &owner.handle(0), ErrorCode::Stale);
}

#[test]
fn acquire_when_the_slot_has_another_allocation_then_stale_for_the_old_and_bytes_for_the_new() {
    let broker = Setup::new().config("[limits]\nmax_slots = 1").start();
    let mut owner = Owner::of(&broker, "owner", 1);
    let consumer = broker.client("consumer");
    owner.client.unregister(&owner.registrations[0]).expect("its own");
    owner.register(0..1, |deposit| deposit);
    let (old, new) = (owner.handle(0), owner.handle(1));
    assert_eq!(old.id().slot, new.id().slot);
    assert!(old.id().generation < new.id().generation);
    assert_refused(&consumer, &old, ErrorCode::Stale);
    drop(assert_bytes(consumer.acquire(&new, patience()).expect("the new one"), 0));
}

#[test]
fn handle_when_copied_through_a_file_then_another_process_reads_the_bytes() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 1);
    let file = broker.dir().join("handle");
    std::fs::write(&file, owner.handle(0).to_bytes()).expect("write");
    let mut rank = rank(&broker.socket());
    assert_eq!(rank.ask(&format!("check-file 0 {}", file.display())), "OK");
}
