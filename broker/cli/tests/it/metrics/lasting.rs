//! What goes on while a broker does, and when another one goes on in its place.

use super::page::{Page, name_of};
use super::rig::{Broker, memfd, recallable, see_within, soon};
use super::seen::{Scenario, Seen};
use crate::common::wait_for;
use std::os::fd::AsFd;
use std::time::Instant;

pub static UPTIME: Scenario = Scenario::new(uptime);

#[test]
fn metrics_when_time_goes_by_then_uptime_is_between_what_the_test_measures_around_it() {
    UPTIME.seen();
}

/// What is cut off two readings: less than a millisecond each.
const CUT: f64 = 0.002;

fn uptime(seen: &mut Seen) {
    let series = "fdbroker_uptime_seconds";
    let broker = Broker::start("metrics-uptime", &[]);
    let look = || {
        let asked = Instant::now();
        let page = broker.page();
        (asked, page, Instant::now())
    };
    let (first_asked, first, first_answered) = look();
    let most = (first_answered - broker.start).as_secs_f64();
    see_within(seen, &first, series, 0.0, most);
    let later = || Some(look()).filter(|(_, page, _)| page.get(series) > first.get(series));
    let (asked, page, answered) = wait_for("a later time", later);
    let since = first.get(series);
    let least = since + (asked - first_answered).as_secs_f64() - CUT;
    let most = since + (answered - first_asked).as_secs_f64() + CUT;
    see_within(seen, &page, series, least, most);
}

/// Counters and histograms, whose start the uptime tells.
fn counts(page: &Page) -> Vec<(String, f64)> {
    let suffixes = ["_total", "_bucket", "_count", "_sum"];
    let is_count = |series: &str| suffixes.iter().any(|suffix| name_of(series).ends_with(suffix));
    let counts = page.series().filter(|(series, _)| is_count(series));
    counts.map(|(series, value)| (series.to_owned(), value)).collect()
}

#[test]
fn metrics_when_a_successor_goes_on_then_uptime_and_every_count_do_too() {
    let mut broker = Broker::start("metrics-successor", &[]);
    let client = broker.client();
    let registered = client.register(&recallable(1), memfd(1).as_fd(), soon());
    let handle = registered.expect("registered").handle;
    drop(client.acquire(&handle, soon()).expect("a grant"));
    client.flush(soon()).expect("told");
    let before = broker.page();
    let pid = broker.ask(&["status", "--json"])["pid"].clone();

    broker.hand_over();

    assert_ne!(broker.ask(&["status", "--json"])["pid"], pid);
    let after = broker.page();
    assert_eq!(counts(&after), counts(&before));
    assert!(after.get("fdbroker_uptime_seconds") >= before.get("fdbroker_uptime_seconds"));
    drop(client.acquire(&handle, soon()).expect("a grant"));
    let mut seen = Seen::default();
    let both = [("fdbroker_grants_total", 2), ("fdbroker_grant_latency_seconds_count", 2)];
    broker.see(&mut seen, &both);
}
