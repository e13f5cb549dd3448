//! Watches: each change of a name with the prefix is told once, over a takeover, too; and their
//! number is bounded.

use crate::support::broker::Broker;
use crate::support::objects::{Group, News, SIZE, code, memory, new};
use crate::support::raw::Raw;
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
    let second = maker.put_bytes("a/1", &[2; 16], object_flags::REPLACE);
    assert_eq!(maker.delete(&["a/1", "b/1"]), [Status::OK; 2]);
    let group = maker.create(&memory(&[0; SIZE]), &Group::default(), &[new("a/2")]);
    assert_eq!(maker.abort(group.expect("begun")), Status::OK);
    assert_eq!(
        watcher.news(4),
        [
            told(ObjectEvent::Sealed, first, "a/1"),
            told(ObjectEvent::Replaced, second, "a/1"),
            told(ObjectEvent::Deleted, second, "a/1"),
            told(ObjectEvent::Aborted, 0, "a/2"),
        ]
    );
    assert_eq!(watcher.watch("a/", object_flags::UNWATCH), Status::OK);
    assert_eq!(code(&watcher.watch("a/", object_flags::UNWATCH)), ErrorCode::NotFound);
    maker.put_bytes("a/3", &[1; 16], 0);
    assert_eq!(watcher.watch("c", 0), Status::OK);
    let last = maker.put_bytes("c", &[1; 16], 0);
    assert_eq!(watcher.next_news(), [told(ObjectEvent::Sealed, last, "c")], "and nothing of a/");
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
        [
            told(ObjectEvent::Deleted, version, "a"),
            told(ObjectEvent::Deleted, version, "b"),
            told(ObjectEvent::Aborted, 0, "made"),
        ]
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
    assert_eq!(
        watcher.news(2),
        [told(ObjectEvent::Sealed, before, "a1"), told(ObjectEvent::Sealed, after, "a2"),]
    );
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
    assert_eq!((code(&status), status.value.get()), (ErrorCode::TooLong, most));
    assert_eq!(watcher.watch("prefix 0", 0), Status::OK, "it watches that already");
    drop(watcher);
    broker.assert_nothing_left();
}
