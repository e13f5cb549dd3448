//! What objects are charged with, and caps: on names, bytes, metadata, kept memory; and making
//! room, which never takes what somebody reads.

use super::maker::{EVICTABLE, KEEP, LONG_MS, PIN, REPLACE, sized, zeros};
use crate::support::broker::{Broker, Setup};
use crate::support::objects::{Group, Known, New, SIZE, code, flags, memory, new, seal_memory};
use crate::support::raw::Raw;
use crate::support::wait::{eventually, eventually_some};
use fdbroker_core::limits::OBJECT_RECORD_BYTES;
use fdbroker_protocol::object::ObjectEvent::Evicted;
use fdbroker_protocol::{ErrorCode, Resource, Scope, Status};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use std::os::fd::OwnedFd;

/// A broker with these caps of a domain.
fn capped(lines: &str) -> Broker {
    Setup::new().config(&format!("[caps.domain]\n{lines}")).start()
}

/// The cap that a refusal names.
#[track_caller]
fn cap_of(status: Status) -> (Resource, u64) {
    assert_eq!(status.result(), Err(ErrorCode::NoQuota), "{status}");
    assert_eq!(status.scope(), Some(Scope::Domain), "{status}");
    (Resource::from_number(status.resource).expect("a resource"), status.value)
}

#[test]
fn create_when_the_cap_on_names_is_full_then_no_quota_names_it_and_nothing_is_charged() {
    let broker = capped("object_names = 3");
    let mut client = Raw::connect(&broker.socket());
    client.put_group(&[("a", b"x"), ("b", b"x")], 0).expect("made");
    let refusal = client.put_group(&[("c", b"x"), ("d", b"x")], 0).expect_err("4 names");
    assert_eq!(cap_of(refusal), (Resource::ObjectNames, 3));
    assert_eq!(broker.status().uses.object_names.now.get(), 2);
    // One that is to replace another is a name more until it is sealed.
    client.put_bytes("a", b"y", REPLACE);
    eventually("the old one's name is free", || broker.status().uses.object_names.now.get() == 2);
    client.put_bytes("c", b"x", 0);
    assert_eq!(
        cap_of(client.put_group(&[("d", b"x")], 0).expect_err("4")),
        (Resource::ObjectNames, 3)
    );
    assert!(client.delete(&["c"])[0].is_ok());
    client.put_bytes("d", b"x", 0);
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn create_when_the_cap_on_metadata_is_full_then_no_quota_and_waiting_gets_count_too() {
    let beside = 2 * (OBJECT_RECORD_BYTES + 1);
    let cap = beside + 100;
    let broker = capped(&format!("metadata_bytes = {cap}"));
    let mut client = Raw::connect(&broker.socket());
    let with = |name: &str, bytes| New { metadata: vec![1; bytes], ..New::named(name, 1) };
    let memfd = zeros(1);
    let group = client.create(&memfd, &sized(1), &[with("a", 60)]).expect("begun");
    let refusal = client.add(group, &[with("b", 41)]).expect_err("101 bytes");
    assert_eq!(cap_of(refusal), (Resource::MetadataBytes, cap));
    client.add(group, &[with("b", 30)]).expect("90 bytes");
    let mut waiter = Raw::connect(&broker.socket());
    let id = waiter.start_get(&["12345678"], LONG_MS);
    eventually("it waits", || broker.status().uses.metadata_bytes.now.get() == beside + 98);
    let mut other = Raw::connect(&broker.socket());
    let refusal = other.get_within(&["123"], LONG_MS, 0).expect_err("a waiting name counts");
    assert_eq!(cap_of(refusal), (Resource::MetadataBytes, cap));
    drop(client);
    eventually("its group has gone", || broker.status().uses.metadata_bytes.now.get() == 8);
    other.put_bytes("12345678", b"x", 0);
    let got = waiter.finish_get(id).expect("here it is");
    assert_eq!(broker.status().uses.metadata_bytes.now.get(), OBJECT_RECORD_BYTES + 8);
    waiter.give_back(got);
    drop((waiter, other));
    broker.assert_nothing_left();
}

#[test]
fn create_when_the_cap_on_held_bytes_is_full_then_no_quota_and_the_memory_counts_from_the_begin() {
    const PAGE: u64 = 4096;
    let broker = capped(&format!("held_bytes = {}", 3 * PAGE));
    let mut client = Raw::connect(&broker.socket());
    let two = zeros(2 * PAGE);
    let group = client.create(&two, &sized(2 * PAGE), &[New::named("a", 2 * PAGE)]).expect("begun");
    assert_eq!(broker.status().uses.held_bytes.now.get(), 2 * PAGE, "before it is sealed");
    let refusal = client.create(&zeros(2 * PAGE), &sized(2 * PAGE), &[New::named("b", 1)]);
    assert_eq!(cap_of(refusal.expect_err("4 pages")), (Resource::HeldBytes, 3 * PAGE));
    seal_memory(&two);
    client.seal(group).expect("sealed");
    assert_eq!(broker.status().uses.object_names.now.get(), 1);
    drop((client, two));
    broker.assert_nothing_left();
}

/// A memfd without a page.
fn empty(bytes: u64) -> OwnedFd {
    let fd = memfd_create(c"empty", MFdFlags::MFD_ALLOW_SEALING).expect("memfd");
    ftruncate(&fd, i64::try_from(bytes).expect("small")).expect("its size");
    fd
}

/// A page of it is charged when it is begun. The rest, filled then, or by its readers after it is
/// sealed, would stay for good.
#[test]
fn seal_when_what_is_kept_was_empty_and_is_above_the_cap_then_no_quota_and_others_are_served() {
    const MIB: u64 = 1 << 20;
    let broker = Setup::new().config("[caps.node]\nheld_bytes = \"4Mi\"").start();
    let mut other = Raw::connect(&broker.socket());
    for (with, is_filled) in [(PIN, true), (PIN, false), (KEEP, true), (KEEP, false)] {
        let mut client = Raw::connect(&broker.socket());
        let memfd = empty(16 * MIB);
        let whole = Group { size: 16 * MIB, ..flags(with) };
        let refusal = client.create(&memfd, &whole, &[New::named("a", 1)]).expect_err("it counts");
        assert_eq!(refusal.resource, Resource::HeldBytes as u8, "{refusal}");
        let group = Group { size: 4096, ..whole };
        let group = client.create(&memfd, &group, &[New::named("a", 1)]).expect("one page");
        if is_filled {
            fallocate(&memfd, FallocateFlags::empty(), 0, 16 << 20).expect("memory");
        }
        seal_memory(&memfd);
        let refusal = client.seal(group).expect_err("above the cap");
        assert_eq!(refusal.scope(), Some(Scope::Node), "{refusal}");
        let of = (Resource::from_number(refusal.resource), refusal.value);
        assert_eq!(of, (Some(Resource::HeldBytes), 4 * MIB));
        // In the making it ends with its maker.
        drop((client, memfd));
        eventually("it is gone", || broker.status().uses.held_bytes.now.get() == 0);
        other.put_bytes("b", b"x", KEEP | REPLACE);
        assert!(other.delete(&["b"])[0].is_ok());
        eventually("it is gone", || broker.status().uses.held_bytes.now.get() == 0);
    }
}

// What was needed was evicted (arrow 4368).
#[test]
fn room_when_bytes_are_short_then_the_least_used_goes_and_never_what_is_leased_pinned_or_not_evictable()
 {
    const SIZE: u64 = 64 << 10;
    let bytes = vec![1; usize::try_from(SIZE).expect("small")];
    let broker = capped(&format!("held_bytes = {}", 6 * SIZE));
    let mut client = Raw::connect(&broker.socket());
    let mut watcher = Raw::connect(&broker.socket());
    assert_eq!(watcher.watch("", 0), Status::OK);
    client.put_bytes("pinned", &bytes, PIN | EVICTABLE);
    client.put_bytes("plain", &bytes, KEEP);
    let versions =
        ["leased", "old", "used"].map(|name| client.put_bytes(name, &bytes, KEEP | EVICTABLE));
    let mut reader = Raw::connect(&broker.socket());
    let held = reader.get(&["leased"]).expect("sealed");
    for name in ["old", "used"] {
        reader.read(name).expect("sealed");
    }
    let (half, half_memory) = client.begin(&[("half", &bytes)], EVICTABLE).expect("begun");
    client.put_bytes("new", &bytes, KEEP | EVICTABLE);
    let events = watcher.events_until(Evicted, "old");
    assert!(events.contains(&(Evicted, versions[1], "old".to_owned())), "{events:?}");
    assert!(!events.iter().any(|it| it.0 == Evicted && it.2 != "old"), "{events:?}");
    reader.read("used").expect("it was used later");
    client.put_bytes("newer", &bytes, KEEP);
    watcher.events_until(Evicted, "new");
    client.put_bytes("newest", &bytes, KEEP);
    watcher.events_until(Evicted, "used");
    // AGAIN while the reader may give back what it is asked for, which it does not.
    let refusal = eventually_some("the reader is not waited for any more", || {
        let refusal = client.put_group(&[("too much", &bytes)], KEEP).expect_err("nothing may go");
        (refusal.result() != Err(ErrorCode::Again)).then_some(refusal)
    });
    assert_eq!(cap_of(refusal), (Resource::HeldBytes, 6 * SIZE));
    assert_eq!(held.bytes(0), bytes);
    let names: Vec<_> = client.list("").into_iter().map(|it| it.name).collect();
    assert_eq!(
        names,
        ["half", "leased", "newer", "newest", "pinned", "plain"].map(|it| it.as_bytes().to_vec())
    );
    reader.give_back(held);
    client.put_bytes("at last", &bytes, KEEP);
    watcher.events_until(Evicted, "leased");
    assert!(client.abort(half).is_ok());
    drop((client, reader, watcher, half_memory));
}

#[test]
fn seal_when_what_is_kept_is_at_its_cap_then_no_quota_and_the_group_is_as_before() {
    for (cap, flag, resource, most) in [
        ("kept_bytes = 5000", KEEP, Resource::KeptBytes, 5000),
        ("kept_fds = 1", KEEP, Resource::KeptFds, 1),
        ("permanent_bytes = 5000", PIN, Resource::PermanentBytes, 5000),
    ] {
        let broker = capped(cap);
        let mut client = Raw::connect(&broker.socket());
        client.put(&memory(&[0; SIZE]), &flags(flag), &[new("a")]);
        let memory = memory(&[0; SIZE]);
        let group = client.create(&memory, &flags(flag), &[new("b")]).expect("begun");
        seal_memory(&memory);
        assert_eq!(cap_of(client.seal(group).expect_err("full")), (resource, most));
        assert_eq!(client.delete(&["a"]), [Status::OK]);
        client.seal(group).expect("sealed");
        assert_eq!(client.delete(&["b"]), [Status::OK]);
        drop(client);
        broker.assert_nothing_left();
    }
}

fn put(client: &mut Raw, name: &str, with: u32) -> u64 {
    client.put(&memory(&[1; SIZE]), &flags(with), &[new(name)])
}

fn names(client: &mut Raw) -> Vec<String> {
    client.list("").iter().map(Known::text).collect()
}

#[test]
fn seal_when_kept_bytes_are_short_then_kept_ones_that_may_go_make_room() {
    let broker = Setup::new().config(&format!("[caps.node]\nkept_bytes = {}", 2 * SIZE)).start();
    let mut client = Raw::connect(&broker.socket());
    let may_go = KEEP | EVICTABLE;
    put(&mut client, "a", may_go);
    put(&mut client, "stays", KEEP);
    put(&mut client, "not kept", EVICTABLE);
    put(&mut client, "b", may_go);
    assert_eq!(names(&mut client), ["b", "not kept", "stays"]);
    assert_eq!(client.delete(&["b"]), [Status::OK]);
    put(&mut client, "c", KEEP);
    let memory = memory(&[1; SIZE]);
    let group = client.create(&memory, &flags(may_go), &[new("d")]).expect("begun");
    seal_memory(&memory);
    assert_eq!(code(&client.seal(group).expect_err("full")), ErrorCode::NoQuota);
    assert_eq!(client.delete(&["c", "stays"]), [Status::OK; 2]);
    drop(client);
    broker.assert_nothing_left();
}
