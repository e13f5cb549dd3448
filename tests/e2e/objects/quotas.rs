//! Caps of what objects are charged with: each is refused with its name, and comes back when they
//! go.

use crate::support::broker::{Broker, Setup};
use crate::support::objects::{Group, New, SIZE, code, flags, memory, new, seal_memory};
use crate::support::raw::Raw;
use fdbroker_core::limits::OBJECT_RECORD_BYTES;
use fdbroker_protocol::object::object_flags;
use fdbroker_protocol::{ErrorCode, Resource, Scope, Status};

fn capped(cap: &str) -> Broker {
    Setup::new().config(&format!("[caps.node]\n{cap}")).start()
}

#[track_caller]
fn assert_no_quota(status: &Status, resource: Resource, cap: u64) {
    let found = (code(status), status.resource, status.scope, status.value.get());
    assert_eq!(found, (ErrorCode::NoQuota, resource as u8, Scope::Node as u8, cap));
}

#[test]
fn create_when_names_are_at_their_cap_then_no_quota_until_some_go() {
    let broker = capped("object_names = 3");
    let mut client = Raw::connect(&broker.socket());
    client.put(&memory(&[0; SIZE]), &Group::default(), &[new("a"), new("b")]);
    let two = [new("c"), new("d")];
    let status = client.create(&memory(&[0; SIZE]), &Group::default(), &two);
    assert_no_quota(&status.expect_err("the cap is full"), Resource::ObjectNames, 3);
    let group = client.create(&memory(&[0; SIZE]), &Group::default(), &two[..1]).expect("begun");
    assert_no_quota(&client.add(group, &two[1..]).expect_err("full"), Resource::ObjectNames, 3);
    client.delete(&["a"]);
    client.add(group, &two[1..]).expect("added");
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn create_when_metadata_is_at_its_cap_then_no_quota_and_gets_that_wait_count_too() {
    let record = OBJECT_RECORD_BYTES + 1;
    let cap = 2 * record + 100;
    let broker = capped(&format!("metadata_bytes = {cap}"));
    let mut client = Raw::connect(&broker.socket());
    let with = |name: &str, bytes: usize| New { metadata: vec![1; bytes], ..new(name) };
    client.put(&memory(&[0; SIZE]), &Group::default(), &[with("a", 60)]);
    let status = client.create(&memory(&[0; SIZE]), &Group::default(), &[with("b", 41)]);
    assert_no_quota(&status.expect_err("the cap is full"), Resource::MetadataBytes, cap);
    let long = "x".repeat(255);
    let status = client.get_within(&[&long], 1000, 0).expect_err("it may not wait");
    assert_no_quota(&status, Resource::MetadataBytes, cap);
    client.put(&memory(&[0; SIZE]), &Group::default(), &[with("b", 40)]);
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn create_when_bytes_are_at_their_cap_then_no_quota() {
    let broker = capped(&format!("held_bytes = {}", 3 * SIZE));
    let mut client = Raw::connect(&broker.socket());
    let large = Group { size: 2 * SIZE as u64, ..Group::default() };
    client.put(&memory(&[1; 2 * SIZE]), &large, &[new("a")]);
    let status = client.create(&memory(&[1; 2 * SIZE]), &large, &[new("b")]).expect_err("full");
    assert_no_quota(&status, Resource::HeldBytes, 3 * SIZE as u64);
    client.put(&memory(&[1; SIZE]), &Group::default(), &[new("b")]);
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn seal_when_what_is_kept_is_at_its_cap_then_no_quota_and_the_group_is_as_before() {
    for (cap, flag, resource, most) in [
        ("kept_bytes = 5000", object_flags::KEEP, Resource::KeptBytes, 5000),
        ("kept_fds = 1", object_flags::KEEP, Resource::KeptFds, 1),
        ("permanent_bytes = 5000", object_flags::PIN, Resource::PermanentBytes, 5000),
    ] {
        let broker = capped(cap);
        let mut client = Raw::connect(&broker.socket());
        client.put(&memory(&[0; SIZE]), &flags(flag), &[new("a")]);
        let memory = memory(&[0; SIZE]);
        let group = client.create(&memory, &flags(flag), &[new("b")]).expect("begun");
        seal_memory(&memory);
        assert_no_quota(&client.seal(group).expect_err("full"), resource, most);
        assert_eq!(client.delete(&["a"]), [Status::OK]);
        client.seal(group).expect("sealed");
        assert_eq!(client.delete(&["b"]), [Status::OK]);
        drop(client);
        broker.assert_nothing_left();
    }
}
