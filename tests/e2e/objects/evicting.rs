//! Groups that may go when bytes are short: the one not used for longest first, and never one that
//! is leased.

use crate::support::broker::{Broker, Setup};
use crate::support::objects::{Group, Known, SIZE, code, flags, memory, new, seal_memory};
use crate::support::raw::Raw;
use crate::support::wait::eventually_some;
use fdbroker_protocol::object::{ObjectEvent, object_flags};
use fdbroker_protocol::{ErrorCode, Resource, Status};

/// A broker that may hold the memory of three groups.
fn three() -> Broker {
    Setup::new().config(&format!("[caps.node]\nheld_bytes = {}", 3 * SIZE)).start()
}

fn put(client: &mut Raw, name: &str, with: u32) -> u64 {
    client.put(&memory(&[1; SIZE]), &flags(with), &[new(name)])
}

fn names(client: &mut Raw) -> Vec<String> {
    client.list("").iter().map(Known::text).collect()
}

#[test]
fn create_when_bytes_are_short_then_the_one_not_used_for_longest_goes_and_watchers_are_told() {
    let broker = three();
    let (mut client, mut watcher) =
        (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    assert_eq!(watcher.watch("", 0), Status::OK);
    let versions = ["a", "b", "c"].map(|name| put(&mut client, name, object_flags::EVICTABLE));
    let got = client.get(&["a"]).expect("it is there");
    assert_eq!(client.release(&got.leases()), [Status::OK]);
    let version = put(&mut client, "d", 0);
    assert_eq!(names(&mut client), ["a", "c", "d"], "b was not used for longest");
    assert_eq!(code(&client.get(&["b"]).expect_err("it went")), ErrorCode::NotFound);
    let mut news = watcher.news(5).split_off(3);
    news.sort_by(|one, other| one.2.cmp(&other.2));
    assert_eq!(
        news,
        [
            (ObjectEvent::Evicted, versions[1], "b".to_owned()),
            (ObjectEvent::Sealed, version, "d".to_owned()),
        ]
    );
    drop((client, watcher, got));
    broker.assert_nothing_left();
}

#[test]
fn create_when_all_are_leased_pinned_or_not_evictable_then_no_quota_and_all_stay() {
    let broker = three();
    let mut client = Raw::connect(&broker.socket());
    put(&mut client, "leased", object_flags::EVICTABLE);
    put(&mut client, "pinned", object_flags::EVICTABLE | object_flags::PIN);
    put(&mut client, "plain", 0);
    let leased = client.get(&["leased"]).expect("it is there");
    // First the reader is asked for its lease.
    let status = eventually_some("the refusal", || {
        let status = client.create(&memory(&[1; SIZE]), &Group::default(), &[new("d")]);
        Some(status.expect_err("nothing can go")).filter(|it| code(it) != ErrorCode::Again)
    });
    let found = (code(&status), status.resource);
    assert_eq!(found, (ErrorCode::NoQuota, Resource::HeldBytes as u8));
    assert_eq!(names(&mut client), ["leased", "pinned", "plain"]);
    assert_eq!(client.release(&leased.leases()), [Status::OK]);
    put(&mut client, "d", 0);
    assert_eq!(names(&mut client), ["d", "pinned", "plain"]);
    assert_eq!(leased.bytes(0), [1; 16], "an fd that a reader has is not torn down");
    assert_eq!(client.delete(&["pinned"]), [Status::OK]);
    drop((client, leased));
    broker.assert_nothing_left();
}

#[test]
fn seal_when_kept_bytes_are_short_then_kept_ones_that_may_go_make_room() {
    let broker = Setup::new().config(&format!("[caps.node]\nkept_bytes = {}", 2 * SIZE)).start();
    let mut client = Raw::connect(&broker.socket());
    let may_go = object_flags::KEEP | object_flags::EVICTABLE;
    put(&mut client, "a", may_go);
    put(&mut client, "stays", object_flags::KEEP);
    put(&mut client, "not kept", object_flags::EVICTABLE);
    put(&mut client, "b", may_go);
    assert_eq!(names(&mut client), ["b", "not kept", "stays"]);
    assert_eq!(client.delete(&["b"]), [Status::OK]);
    put(&mut client, "c", object_flags::KEEP);
    let memory = memory(&[1; SIZE]);
    let group = client.create(&memory, &flags(may_go), &[new("d")]).expect("begun");
    seal_memory(&memory);
    assert_eq!(code(&client.seal(group).expect_err("full")), ErrorCode::NoQuota);
    assert_eq!(client.delete(&["c", "stays"]), [Status::OK; 2]);
    drop(client);
    broker.assert_nothing_left();
}
