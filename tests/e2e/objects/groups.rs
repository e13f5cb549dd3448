//! Groups at their bounds: 253 objects with names of 255 bytes and 4 KiB of metadata each; and the
//! memory of a group, which goes with the last of its names.

use super::maker::{PIN, UNPIN, refused, sized, zeros};
use crate::support::broker::Broker;
use crate::support::objects::{New, seal_memory};
use crate::support::raw::Raw;
use crate::support::wait::eventually;
use fdbroker_core::limits::OBJECT_RECORD_BYTES;
use fdbroker_protocol::limits::{
    ENDS_PER_MESSAGE, MAX_GROUP, MAX_OBJECT_MESSAGE_BYTES, METADATA_BYTES, NAME_OF_OBJECT_BYTES,
};
use fdbroker_protocol::{ErrorCode, Status};

/// Bytes of each object.
const SIZE: u64 = 16;

fn long_name(number: usize) -> String {
    format!("{number:03}{}", "n".repeat(NAME_OF_OBJECT_BYTES - 3))
}

fn full(number: usize) -> New {
    let metadata = vec![number as u8; METADATA_BYTES];
    New { offset: number as u64 * SIZE, metadata, ..New::named(long_name(number), SIZE) }
}

/// As many of the largest objects as a message has room for.
const AT_ONCE: usize =
    (MAX_OBJECT_MESSAGE_BYTES - 200) / (32 + NAME_OF_OBJECT_BYTES + METADATA_BYTES);

#[test]
fn group_when_as_large_as_may_be_then_all_names_appear_at_once_with_all_metadata() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let mut reader = Raw::connect(&broker.socket());
    let size = MAX_GROUP as u64 * SIZE;
    let memfd = zeros(size);
    let text: Vec<u8> = (0..MAX_GROUP).flat_map(|it| [it as u8; SIZE as usize]).collect();
    nix::sys::uio::pwrite(&memfd, &text, 0).expect("written");
    let all: Vec<New> = (0..MAX_GROUP).map(full).collect();
    let group = maker.create(&memfd, &sized(size), &all[..AT_ONCE]).expect("begun");
    all[AT_ONCE..].chunks(AT_ONCE).for_each(|more| maker.add(group, more).expect("added"));
    let one_more = maker.add(group, &[New::named("more", 1)]).expect_err("254");
    assert_eq!(one_more.result(), Err(ErrorCode::TooLong));
    assert_eq!(one_more.value.get(), MAX_GROUP as u64);
    let uses = broker.status().uses;
    assert_eq!(uses.object_names.now.get(), MAX_GROUP as u64);
    let charged = MAX_GROUP as u64 * OBJECT_RECORD_BYTES
        + (MAX_GROUP * (NAME_OF_OBJECT_BYTES + METADATA_BYTES)) as u64;
    assert_eq!(uses.metadata_bytes.now.get(), charged);
    assert_eq!(uses.held_fds.now.get(), 1, "one fd for all of them");

    seal_memory(&memfd);
    let version = maker.seal(group).expect("sealed");
    let names: Vec<String> = (0..MAX_GROUP).map(long_name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // A get of all of them is more than a message has.
    for (part, first) in names.chunks(100).zip((0..).step_by(100)) {
        let got = reader.get(part).expect("sealed");
        assert_eq!((got.grants.len(), got.metadata.concat().len()), (1, 0));
        for at in 0..part.len() {
            assert_eq!(got.versions()[at], version);
            assert_eq!(got.bytes(at), [(first + at) as u8; SIZE as usize]);
            assert_eq!(usize::from(got.items[at].metadata_len.get()), METADATA_BYTES);
        }
        reader.give_back(got);
        let records = reader.stat(part);
        for (at, known) in records.iter().enumerate() {
            assert_eq!(known.name, part[at].as_bytes());
            assert_eq!(known.metadata, vec![(first + at) as u8; METADATA_BYTES]);
            assert_eq!(known.record.group_names.get() as usize, MAX_GROUP);
        }
    }
    assert_eq!(reader.list("").len(), MAX_GROUP);
    drop((maker, reader));
    broker.assert_nothing_left();
}

#[test]
fn group_when_252_of_253_are_deleted_then_the_last_one_keeps_the_memory() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let size = MAX_GROUP as u64 * 4096;
    let memfd = zeros(size);
    let name = |number: usize| format!("m/{number:03}");
    let objects: Vec<New> = (0..MAX_GROUP)
        .map(|at| New { offset: at as u64 * 4096, ..New::named(name(at), 4096) })
        .collect();
    let group = client.create(&memfd, &sized(size), &objects).expect("begun");
    seal_memory(&memfd);
    client.seal(group).expect("sealed");
    drop(memfd);
    let names: Vec<String> = (0..MAX_GROUP).map(name).collect();
    let doomed: Vec<&str> = names[1..].iter().map(String::as_str).collect();
    let mut left = doomed;
    while !left.is_empty() {
        let statuses = client.delete(&left);
        let is_left = |status: &Status| status.result() == Err(ErrorCode::Again);
        assert!(
            statuses.iter().filter(|it| it.is_ok()).count() >= ENDS_PER_MESSAGE.min(left.len())
        );
        assert!(statuses.iter().all(|it| it.is_ok() || is_left(it)));
        left = left.iter().zip(&statuses).filter(|it| is_left(it.1)).map(|it| *it.0).collect();
    }
    let record = client.stat(&[&names[0]])[0].record;
    assert_eq!(record.group_names.get(), 1);
    assert_eq!(record.group_bytes.get(), size, "a sealed memfd cannot be cut");
    assert_eq!(client.list("m/").len(), 1);
    assert_eq!(client.read(&names[0]).expect("it is there").0, [0; 4096]);
    assert!(broker.status().uses.held_bytes.now.get() >= size);
    assert!(client.delete(&[&names[0]])[0].is_ok());
    eventually("nothing is held", || {
        let uses = broker.status().uses;
        (uses.held_bytes.now.get(), uses.held_fds.now.get(), uses.object_names.now.get())
            == (0, 0, 0)
    });
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn group_when_pinned_or_kept_then_all_of_its_members_are() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    client.put_group(&[("a", b"1"), ("b", b"2")], PIN).expect("made");
    for known in client.stat(&["a", "b"]) {
        let pinned = fdbroker_protocol::object::record_flags::PINNED;
        assert_eq!(known.record.flags & pinned, pinned);
        assert_eq!(known.record.ttl_left_ms.get(), u64::MAX);
    }
    assert_eq!(broker.status().uses.permanent_bytes.now.get(), 2, "once for the group");
    assert_eq!(client.touch(&["a"], UNPIN, 0), Ok(vec![Status::OK]));
    assert_eq!(broker.status().uses.permanent_bytes.now.get(), 0);
    assert!(client.delete(&["a", "b"]).iter().all(Status::is_ok));
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn group_when_without_an_object_then_sealed_and_gone() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let memfd = zeros(4096);
    let group = client.create(&memfd, &sized(4096), &[]).expect("begun");
    seal_memory(&memfd);
    client.seal(group).expect("sealed");
    assert_eq!(refused(client.add(group, &[New::named("a", 1)])), ErrorCode::Aborted);
    drop((client, memfd));
    broker.assert_nothing_left();
}
