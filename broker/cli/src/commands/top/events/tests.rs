//! The list of events: what shares a line, and what a pause holds back.

use super::*;
use crate::events::stream::Broker;
use crate::events::view::tests::{grant, of_client, record};
use std::time::Duration;

fn lines(events: &Events) -> Vec<String> {
    events.shown().map(Event::line).collect()
}

fn told(records: &[EventRecord]) -> Events {
    let mut events = Events::default();
    events.tell(&Told::Events(records.to_vec()), false);
    events
}

#[test]
fn tell_when_events_come_then_newest_first_with_their_own_times() {
    let mut refusal = of_client(EventKind::Refusal);
    refusal.unix_us = 1_000_000.into();
    let events = told(&[refusal, grant(), record(EventKind::Drain)]);
    let expected = [
        "23:59:58.007Z  drain",
        "23:59:58.007Z  grant      pid 77 app  12.3  64 KiB",
        "00:00:01.000Z  refusal    pid 77 app",
    ];
    assert_eq!(lines(&events), expected);
    assert_eq!(events.shown().map(Event::is_bad).collect::<Vec<_>>(), [false, false, true]);
}

#[test]
fn tell_when_many_differ_in_their_allocation_alone_then_one_line_with_the_latest_time() {
    let mut other = grant();
    other.slot = 13.into();
    other.unix_us = 2_000_000.into();
    let events = told(&[grant(), other, other]);
    assert_eq!(lines(&events), ["00:00:02.000Z  grant      pid 77 app  3 times  192 KiB"]);
}

#[test]
fn tell_when_of_another_client_kind_or_of_no_memory_then_a_line_each() {
    let mut other = grant();
    other.client = 4.into();
    let mut evict = grant();
    evict.kind = (EventKind::Evict as u32).into();
    let gone = of_client(EventKind::Gone);
    let drain = record(EventKind::Drain);
    assert_eq!(lines(&told(&[grant(), other, evict, gone, gone, drain, drain])).len(), 7);
}

#[test]
fn tell_when_events_were_lost_or_there_are_none_then_it_says_so() {
    let mut lost = record(EventKind::Lost);
    lost.lost = 4711.into();
    let mut events = told(&[lost]);
    let error = Error::Refused(fdbroker_protocol::ErrorCode::Again);
    events.tell(&Told::Lost { unix_us: 0, error }, false);
    let broker = Broker { pid: 78, incarnation: 1 };
    let gap = Duration::from_millis(200);
    events.tell(&Told::Back(Back { unix_us: 0, gap, broker, is_continued: Some(true) }), false);
    let lines = lines(&events);
    assert!(lines[0].contains("watching broker 78, which continues"), "{lines:#?}");
    assert!(lines[1].starts_with("00:00:00.000Z  no events: the broker refused"), "{lines:#?}");
    assert!(lines[2].ends_with("4,711 events: this reader is too slow"), "{lines:#?}");
    assert_eq!(events.shown().map(Event::is_bad).collect::<Vec<_>>(), [false, true, true]);
}

#[test]
fn tell_when_paused_then_shown_once_it_goes_on() {
    let mut events = told(&[grant()]);
    events.tell(&Told::Events(vec![of_client(EventKind::Gone), grant(), grant()]), true);
    assert_eq!(lines(&events).len(), 1);
    events.go_on();
    let lines = lines(&events);
    assert!(lines[0].contains("2 times") && lines[1].contains("gone"), "{lines:#?}");
    assert_eq!(lines.len(), 3);
}

#[test]
fn tell_when_very_many_come_then_bounded() {
    let many = [grant(), of_client(EventKind::Gone)].repeat(1000);
    let mut events = told(&many);
    events.tell(&Told::Events(many), true);
    events.go_on();
    assert_eq!(events.shown().count(), EVENTS_KEPT);
    assert!(events.shown().next().is_some_and(|it| it.line().contains("gone")));
}
