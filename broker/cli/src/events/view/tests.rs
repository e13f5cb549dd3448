//! Made-up events as text and JSON. Other tests borrow the records.

use super::*;
use zerocopy::FromZeros;

/// An event of the node, shortly before midnight.
pub fn record(kind: EventKind) -> EventRecord {
    let mut record = EventRecord::new_zeroed();
    record.kind = (kind as u32).into();
    record.unix_us = (((23 * 60 + 59) * 60 + 58) * 1_000_000 + 7_000).into();
    (record.client, record.slot, record.uid) = (u32::MAX.into(), u32::MAX.into(), u32::MAX.into());
    record
}

/// An event of process 77.
pub fn of_client(kind: EventKind) -> EventRecord {
    let mut record = record(kind);
    (record.client, record.pid, record.uid) = (3.into(), 77.into(), 1000.into());
    record.name[..3].copy_from_slice(b"app");
    record
}

/// A grant of 64 KiB to it.
pub fn grant() -> EventRecord {
    let mut record = of_client(EventKind::Grant);
    (record.slot, record.generation) = (12.into(), 3.into());
    record.size_bytes = 65536.into();
    record
}

#[test]
fn line_when_a_grant_then_time_what_who_id_and_size() {
    assert_eq!(line(&grant()), "23:59:58.007Z  grant      pid 77 app  12.3  64 KiB");
}

#[test]
fn line_when_of_many_then_how_many_and_the_bytes_of_all() {
    let many = line_of_many(&grant(), 1200, 1200 << 16);
    assert_eq!(many, "23:59:58.007Z  grant      pid 77 app  1,200 times  75 MiB");
}

#[test]
fn line_when_of_the_node_then_no_blanks_at_its_end() {
    assert_eq!(line(&record(EventKind::Drain)), "23:59:58.007Z  drain");
}

#[test]
fn line_when_refused_then_the_cap_and_its_largest_holder() {
    let mut record = of_client(EventKind::Refusal);
    record.status = Status::no_quota(Resource::Fds, Scope::Node, 64, 99).into();
    let line = line(&record);
    assert!(line.contains("the node cap fds = 64 is full, most of it held by pid 99"), "{line}");
    let json = serde_json::to_value(EventView::new(&record)).expect("plain data");
    assert_eq!((&json["cap"], &json["scope"]), (&64.into(), &"node".into()));
    assert_eq!(json["time_seconds"], 86_398.007);
}

#[test]
fn line_when_a_connection_is_refused_then_its_process_and_user_and_no_client() {
    let mut record = record(EventKind::Refusal);
    (record.pid, record.uid) = (77.into(), 1000.into());
    record.status = Status::no_quota(Resource::Connections, Scope::Node, 4, 0).into();
    let line = line(&record);
    assert!(line.contains("refusal    pid 77 of uid 1000  NO_QUOTA: the node cap conn"), "{line}");
    let json = serde_json::to_value(EventView::new(&record)).expect("plain data");
    assert_eq!((&json["pid"], &json["uid"]), (&77.into(), &1000.into()));
    assert!(json["client"].is_null() && json["name"].is_null(), "{json}");
}

#[test]
fn line_when_events_were_lost_then_how_many() {
    let mut record = record(EventKind::Lost);
    record.lost = 1234.into();
    let line = line(&record);
    assert_eq!(line, "23:59:58.007Z  lost       1,234 events: this reader is too slow");
}

#[test]
fn date_when_of_leap_years_and_ends_of_months_then_as_the_calendar_has_it() {
    for (day, expected) in [
        (0, (1970, 1, 1)),
        (58, (1970, 2, 28)),
        (59, (1970, 3, 1)),
        (10_956, (1999, 12, 31)),
        (11_016, (2000, 2, 29)),
        (20_781, (2026, 11, 24)),
        (47_541, (2100, 3, 1)),
    ] {
        assert_eq!(super::date(day), expected, "day {day}");
    }
}
