//! What objects are charged with, and caps: on names, bytes, metadata, kept memory; and making room, which never takes what
//! somebody reads.

use crate::support::broker::{Broker, Setup};
use crate::support::wait::{eventually, eventually_some};
use crate::wire::{
    EVICTABLE, JOB, KEEP, LONG_MS, New, Objects, PIN, REPLACE, code, memory, seal_memory,
};
use fdbroker_core::limits::OBJECT_RECORD_BYTES;
use fdbroker_protocol::object::ObjectEvent::Evicted;
use fdbroker_protocol::{ErrorCode, Resource, Scope, Status};

/// A broker with these caps of a domain.
fn capped(lines: &str) -> Broker {
    Setup::new().config(&format!("[caps.domain]\n{lines}")).start()
}

/// The cap that a refusal names.
#[track_caller]
fn cap_of(status: Status) -> (Resource, u64) {
    assert_eq!(status.result(), Err(ErrorCode::NoQuota), "{status}");
    assert_eq!(status.scope(), Some(Scope::Domain), "{status}");
    (Resource::from_number(status.resource).expect("a resource"), status.value.get())
}

#[test]
fn create_when_the_cap_on_names_is_full_then_no_quota_names_it_and_nothing_is_charged() {
    let broker = capped("object_names = 3");
    let mut client = Objects::connect(&broker.socket());
    client.put_group(&[("a", b"x"), ("b", b"x")], 0).expect("made");
    let refusal = client.put_group(&[("c", b"x"), ("d", b"x")], 0).expect_err("4 names");
    assert_eq!(cap_of(refusal), (Resource::ObjectNames, 3));
    assert_eq!(broker.status().uses.object_names.now.get(), 2);
    // One that is to replace another is a name more until it is sealed.
    client.put("a", b"y", REPLACE).expect("3 names");
    eventually("the old one's name is free", || broker.status().uses.object_names.now.get() == 2);
    client.put("c", b"x", 0).expect("3 names");
    assert_eq!(cap_of(client.put("d", b"x", 0).expect_err("4")), (Resource::ObjectNames, 3));
    assert!(client.delete(&["c"])[0].is_ok());
    client.put("d", b"x", 0).expect("there is room again");
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn create_when_the_cap_on_metadata_is_full_then_no_quota_and_waiting_gets_count_too() {
    let beside = 2 * (OBJECT_RECORD_BYTES + 1);
    let cap = beside + 100;
    let broker = capped(&format!("metadata_bytes = {cap}"));
    let mut client = Objects::connect(&broker.socket());
    let with = |name: &str, bytes| New { metadata: vec![1; bytes], ..New::named(name, 1) };
    let memfd = memory(1);
    let group = client.create(&[with("a", 60)], &memfd, 1, 0).expect("begun");
    let refusal = client.add(group, &[with("b", 41)]).expect_err("101 bytes");
    assert_eq!(cap_of(refusal), (Resource::MetadataBytes, cap));
    client.add(group, &[with("b", 30)]).expect("90 bytes");
    let mut waiter = Objects::connect(&broker.socket());
    let id = waiter.start_get(&["12345678"], LONG_MS);
    eventually("it waits", || broker.status().uses.metadata_bytes.now.get() == beside + 98);
    let mut other = Objects::connect(&broker.socket());
    let refusal = other.get(&["123"], LONG_MS).expect_err("a waiting name counts");
    assert_eq!(cap_of(refusal), (Resource::MetadataBytes, cap));
    drop(client);
    eventually("its group has gone", || broker.status().uses.metadata_bytes.now.get() == 8);
    other.put("12345678", b"x", 0).expect("made");
    let got = waiter.finish_get(id).expect("here it is");
    assert_eq!(broker.status().uses.metadata_bytes.now.get(), OBJECT_RECORD_BYTES + 8);
    waiter.release(got);
    drop((waiter, other));
    broker.assert_nothing_left();
}

#[test]
fn create_when_the_cap_on_held_bytes_is_full_then_no_quota_and_the_memory_counts_from_the_begin() {
    const PAGE: u64 = 4096;
    let broker = capped(&format!("held_bytes = {}", 3 * PAGE));
    let mut client = Objects::connect(&broker.socket());
    let two = memory(2 * PAGE);
    let group = client.create(&[New::named("a", 2 * PAGE)], &two, 2 * PAGE, 0).expect("begun");
    assert_eq!(broker.status().uses.held_bytes.now.get(), 2 * PAGE, "before it is sealed");
    let refusal = client.create(&[New::named("b", 1)], &memory(2 * PAGE), 2 * PAGE, 0);
    assert_eq!(cap_of(refusal.expect_err("4 pages")), (Resource::HeldBytes, 3 * PAGE));
    seal_memory(&two);
    client.seal(group).expect("sealed");
    assert_eq!(broker.status().uses.object_names.now.get(), 1);
    drop((client, two));
    broker.assert_nothing_left();
}

#[test]
fn seal_when_what_may_be_kept_is_full_then_no_quota_and_the_group_can_be_sealed_later() {
    let broker = capped("kept_fds = 1\npermanent_bytes = 5000");
    let mut client = Objects::connect(&broker.socket());
    client.put("a", b"x", KEEP).expect("kept");
    let uses = broker.status().uses;
    assert_eq!((uses.kept_fds.now.get(), uses.kept_bytes.now.get()), (1, 1));
    let (group, memfd) = client.begin(&[("b", b"x")], KEEP).expect("begun");
    seal_memory(&memfd);
    assert_eq!(cap_of(client.seal(group).expect_err("2")), (Resource::KeptFds, 1));
    assert!(client.delete(&["a"])[0].is_ok());
    eventually("there is room", || broker.status().uses.kept_fds.now.get() == 0);
    client.seal(group).expect("there is room");
    // A pinned one has a cap beside it.
    assert!(client.touch(&["b"], PIN, 0)[0].is_ok());
    assert_eq!(broker.status().uses.permanent_bytes.now.get(), 1);
    assert!(client.delete(&["b"])[0].is_ok());
    eventually("there is room", || broker.status().uses.kept_fds.now.get() == 0);
    let memfd = memory(5001);
    let group = client.create(&[New::named("c", 1)], &memfd, 5001, PIN).expect("begun");
    seal_memory(&memfd);
    assert_eq!(cap_of(client.seal(group).expect_err("5001")), (Resource::PermanentBytes, 5000));
    assert!(client.abort(group).is_ok());
    drop((client, memfd));
    broker.assert_nothing_left();
}

#[test]
fn create_when_names_of_a_job_are_to_be_kept_or_pinned_then_not_supported() {
    let broker = Broker::start();
    let mut client = Objects::connect(&broker.socket());
    for flags in [JOB | KEEP, JOB | PIN, JOB | KEEP | PIN | EVICTABLE] {
        assert_eq!(code(client.put("a", b"x", flags)), ErrorCode::NotSupported);
    }
    assert_eq!(broker.status().uses.object_names.now.get(), 0);
    drop(client);
    broker.assert_nothing_left();
}

// What was needed was evicted (arrow 4368).
#[test]
fn room_when_bytes_are_short_then_the_least_used_goes_and_never_what_is_leased_pinned_or_not_evictable()
 {
    const SIZE: u64 = 64 << 10;
    let bytes = vec![1; usize::try_from(SIZE).expect("small")];
    let broker = capped(&format!("held_bytes = {}", 6 * SIZE));
    let mut client = Objects::connect(&broker.socket());
    let mut watcher = Objects::connect(&broker.socket());
    watcher.watch("").expect("watched");
    client.put("pinned", &bytes, PIN).expect("made");
    client.put("plain", &bytes, KEEP).expect("made");
    for name in ["leased", "old", "used"] {
        client.put(name, &bytes, KEEP | EVICTABLE).expect("made");
    }
    let mut reader = Objects::connect(&broker.socket());
    let held = reader.get(&["leased"], 0).expect("sealed");
    for name in ["old", "used"] {
        reader.read(name).expect("sealed");
    }
    let (half, half_memory) = client.begin(&[("half", &bytes)], EVICTABLE).expect("begun");
    client.put("new", &bytes, KEEP | EVICTABLE).expect("there is room: the oldest goes");
    let events = watcher.events_until(Evicted, "old");
    assert!(!events.iter().any(|it| it.0 == Evicted && it.1 != "old"), "{events:?}");
    reader.read("used").expect("it was used later");
    client.put("newer", &bytes, KEEP).expect("there is room");
    watcher.events_until(Evicted, "new");
    client.put("newest", &bytes, KEEP).expect("there is room");
    watcher.events_until(Evicted, "used");
    // AGAIN while the reader may give back what it is asked for, which it does not.
    let refusal = eventually_some("the reader is not waited for any more", || {
        let refusal = client.put("too much", &bytes, KEEP).expect_err("nothing may go");
        (refusal.result() != Err(ErrorCode::Again)).then_some(refusal)
    });
    assert_eq!(cap_of(refusal), (Resource::HeldBytes, 6 * SIZE));
    assert_eq!(held.bytes(0), bytes);
    let names: Vec<_> = client.list("").into_iter().map(|it| it.name).collect();
    assert_eq!(
        names,
        ["half", "leased", "newer", "newest", "pinned", "plain"].map(|it| it.as_bytes().to_vec())
    );
    reader.release(held);
    client.put("at last", &bytes, KEEP).expect("what nobody reads goes");
    watcher.events_until(Evicted, "leased");
    assert!(client.abort(half).is_ok());
    drop((client, reader, watcher, half_memory));
}
