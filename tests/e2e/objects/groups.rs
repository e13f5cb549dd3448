//! The memory of a group, which goes with the last of its names, and what is true of all of them.

use super::maker::{PIN, UNPIN, refused, sized, zeros};
use crate::support::broker::Broker;
use crate::support::objects::{New, seal_memory};
use crate::support::raw::Raw;
use crate::support::wait::eventually;
use fdbroker_protocol::limits::{ENDS_PER_MESSAGE, MAX_GROUP};
use fdbroker_protocol::{ErrorCode, Status};

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
