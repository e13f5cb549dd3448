//! Watches: each change of a name with the prefix is told once, over a takeover, too; their number
//! is bounded; and who does not read is told how many events it has lost, and holds nobody up.

use super::maker::{EVICTABLE, KEEP, REPLACE, refused, zeros};
use crate::support::broker::{Broker, Setup};
use crate::support::objects::{Group, New, News, SIZE, code, flags, memory, new, seal_memory};
use crate::support::raw::Raw;
use crate::support::wait::eventually;
use fdbroker_protocol::object::ObjectEvent::{Aborted, Deleted, Lost, Replaced, Sealed};
use fdbroker_protocol::object::{ObjectEvent, object_flags};
use fdbroker_protocol::{ErrorCode, Status};

fn told(event: ObjectEvent, version: u64, name: &str) -> News {
    (event, version, name.to_owned())
}

#[test]
fn watch_when_names_change_then_those_with_the_prefix_are_told_in_order() {
    let broker = Broker::start();
    let (mut maker, mut watcher) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    maker.put_bytes("a/before", &[0; 16], 0);
    assert_eq!(watcher.watch("a/", 0), Status::OK);
    let first = maker.put_bytes("a/1", &[1; 16], 0);
    maker.put_bytes("b/1", &[1; 16], 0);
    let second = maker.put_bytes("a/1", &[2; 16], REPLACE);
    assert_eq!(maker.delete(&["a/1", "b/1"]), [Status::OK; 2]);
    let group = maker.create(&memory(&[0; SIZE]), &Group::default(), &[new("a/2")]);
    assert_eq!(maker.abort(group.expect("begun")), Status::OK);
    assert_eq!(
        watcher.news(4),
        [
            told(Sealed, first, "a/1"),
            told(Replaced, second, "a/1"),
            told(Deleted, second, "a/1"),
            told(Aborted, 0, "a/2"),
        ]
    );
    assert_eq!(watcher.watch("a/", object_flags::UNWATCH), Status::OK);
    assert_eq!(code(&watcher.watch("a/", object_flags::UNWATCH)), ErrorCode::NotFound);
    maker.put_bytes("a/3", &[1; 16], 0);
    assert_eq!(watcher.watch("c", 0), Status::OK);
    let last = maker.put_bytes("c", &[1; 16], 0);
    assert_eq!(watcher.next_news(), [told(Sealed, last, "c")], "and nothing of a/");
    drop((maker, watcher));
    broker.assert_nothing_left();
}

#[test]
fn watch_when_a_creator_dies_then_its_objects_are_told_as_gone() {
    let broker = Broker::start();
    let (mut maker, mut watcher) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    let version = maker.put(&memory(&[0; SIZE]), &Group::default(), &[new("a"), new("b")]);
    maker.create(&memory(&[0; SIZE]), &Group::default(), &[new("made")]).expect("begun");
    assert_eq!(watcher.watch("", 0), Status::OK);
    drop(maker);
    let mut news = watcher.news(3);
    news.sort_by(|one, other| one.2.cmp(&other.2));
    assert_eq!(
        news,
        [told(Deleted, version, "a"), told(Deleted, version, "b"), told(Aborted, 0, "made"),]
    );
    drop(watcher);
    broker.assert_nothing_left();
}

#[test]
fn watch_when_another_broker_takes_over_then_it_goes_on_and_nothing_is_missed() {
    let mut broker = Broker::start();
    let (mut maker, mut watcher) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    assert_eq!(watcher.watch("a", 0), Status::OK);
    let before = maker.put_bytes("a1", &[0; 16], 0);
    broker.take_over();
    let after = maker.put_bytes("a2", &[0; 16], 0);
    assert_eq!(watcher.news(2), [told(Sealed, before, "a1"), told(Sealed, after, "a2"),]);
    drop((maker, watcher));
    broker.assert_nothing_left();
}

#[test]
fn watch_when_too_many_then_too_long_says_how_many_there_may_be() {
    let broker = Broker::start();
    let mut watcher = Raw::connect(&broker.socket());
    let mut most = 0u64;
    let status = loop {
        match watcher.watch(&format!("prefix {most}"), 0) {
            Status::OK => most += 1,
            status => break status,
        }
    };
    assert_eq!((code(&status), status.value), (ErrorCode::TooLong, most));
    assert_eq!(watcher.watch("prefix 0", 0), Status::OK, "it watches that already");
    drop(watcher);
    broker.assert_nothing_left();
}

#[test]
fn watch_when_the_watcher_does_not_read_then_it_is_told_how_many_were_lost_and_others_are_served() {
    let broker = Broker::start();
    let mut watcher = Raw::connect(&broker.socket());
    assert_eq!(watcher.watch("", 0), Status::OK);
    let mut reader = Raw::connect(&broker.socket());
    assert_eq!(reader.watch("", 0), Status::OK);
    let mut client = Raw::connect(&broker.socket());
    let names: Vec<String> = (0..50).map(|at| format!("{at:02}{}", "n".repeat(200))).collect();
    let group: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b"x"[..])).collect();
    let (mut made, mut seen) = (0_u64, 0_u64);
    // Far more than sockets hold. The other watcher reads, and gets all of it.
    for _ in 0..200 {
        client.put_group(&group, 0).expect("a client is served whoever watches");
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(client.delete(&names).iter().all(Status::is_ok));
        made += 2 * names.len() as u64;
        while seen < made {
            let events = reader.next_news();
            assert!(events.iter().all(|it| it.0 != Lost), "it reads");
            seen += events.len() as u64;
        }
    }
    let (mut got, mut lost) = (0_u64, 0_u64);
    while got + lost < made {
        for (event, version, name) in watcher.next_news() {
            match event {
                Lost => {
                    assert_eq!(name, "");
                    lost += version;
                }
                _ => got += 1,
            }
        }
    }
    assert!(lost > 0, "it has not read, and so lost some");
    assert_eq!(got + lost, made, "what was lost is counted");
    assert_eq!(watcher.stat(&["x"]).len(), 1, "it is served further");
}

#[test]
fn watch_when_kept_for_a_short_time_then_it_ends_with_that_time_and_use_counts_anew() {
    let broker = Setup::new().config("[limits]\nobject_ttl_ms = 600000").start();
    let mut watcher = Raw::connect(&broker.socket());
    assert_eq!(watcher.watch("", 0), Status::OK);
    let mut maker = Raw::connect(&broker.socket());
    let memfd = zeros(1);
    let new = [New::named("short", 1)];
    let group = maker
        .create(&memfd, &Group { size: 1, ttl_ms: 100, ..flags(KEEP | EVICTABLE) }, &new)
        .expect("begun");
    seal_memory(&memfd);
    maker.seal(group).expect("sealed");
    drop(memfd);
    watcher.events_until(Deleted, "short");
    assert_eq!(refused(watcher.get(&["short"])), ErrorCode::NotFound);
    eventually("nothing is kept", || broker.status().uses.kept_bytes.now.get() == 0);
    maker.put_bytes("long", b"x", KEEP);
    let left = maker.stat(&["long"])[0].record.ttl_left_ms.get();
    assert!((60_001..=600_000).contains(&left), "{left}: as long as the broker allows objects");
    assert_eq!(maker.touch(&["long"], KEEP, 5_000_000), Ok(vec![Status::OK]));
    assert!(maker.stat(&["long"])[0].record.ttl_left_ms.get() <= 600_000, "and no longer");
    assert!(maker.delete(&["long"])[0].is_ok());
    drop((maker, watcher));
    broker.assert_nothing_left();
}
