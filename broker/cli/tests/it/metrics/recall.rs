//! Fds that the broker asks for again: while it waits, when it gets one, and when the owner does
//! not answer; and how long that took.

use super::rig::{Broker, NO_CREDIT, memfd, recallable, see_one_time, see_within, soon};
use super::seen::{Scenario, Seen};
use fdbroker_client::{ErrorCode, Progress, RecallAnswer};
use std::os::fd::AsFd;
use std::sync::{Mutex, mpsc};
use std::time::Instant;

pub static ANSWERED: Scenario = Scenario::new(answered);
pub static SILENT: Scenario = Scenario::new(silent);

#[test]
fn metrics_when_an_owner_is_asked_for_an_fd_then_the_wait_is_seen_and_its_time_counted() {
    ANSWERED.seen();
}

#[test]
fn metrics_when_an_owner_does_not_answer_a_recall_then_counted() {
    SILENT.seen();
}

const TIMES: [&str; 2] = ["fdbroker_recall_time_seconds", "fdbroker_grant_latency_seconds"];

fn answered(seen: &mut Seen) {
    let broker = Broker::start("metrics-recall", &[NO_CREDIT, "limits.recall_timeout_ms=100000"]);
    let (answer, may_answer) = mpsc::channel::<()>();
    let may_answer = Mutex::new(may_answer);
    let fd = memfd(1);
    let given = fd.try_clone().expect("a duplicate");
    let owner = broker.client_with(2, |builder| {
        builder.on_recall(move |recall| {
            let told = may_answer.lock().expect("one thread").recv();
            told.map_err(|_| ErrorCode::Internal)?;
            let fd = given.try_clone().map_err(|_| ErrorCode::LocalFdLimit)?;
            Ok(RecallAnswer::unchanged(recall, fd))
        })
    });
    let consumer = broker.client();
    let registered = owner.register(&recallable(1), fd.as_fd(), soon());
    let handle = registered.expect("registered").handle;
    broker.run(&["evict", "--all"]);
    let mut before = vec![
        ("fdbroker_held_fds", 0),
        ("fdbroker_stored_fds", 0),
        ("fdbroker_reserved_places", 0),
        ("fdbroker_promised_leases", 0),
        ("fdbroker_promised_peak_leases", 0),
        ("fdbroker_parked_requests", 0),
        ("fdbroker_parked_peak_requests", 0),
        ("fdbroker_parked_items", 0),
        ("fdbroker_parked_peak_items", 0),
        ("fdbroker_requests_parked_total", 0),
        ("fdbroker_recalls_total", 0),
        ("fdbroker_grants_total", 0),
    ];
    let counts = TIMES.map(|family| format!("{family}_count"));
    let sums = TIMES.map(|family| format!("{family}_sum"));
    before.extend(counts.iter().chain(&sums).map(|series| (series.as_str(), 0)));
    let page = broker.see_with_accounts(seen, &before);
    for (series, value) in page.series().filter(|(series, _)| series.contains("_bucket{")) {
        assert_eq!(value, 0.0, "{series}");
        seen.note(series, value);
    }

    let waiting = consumer.acquire_start(&[handle], soon()).expect("started");
    let asked = [
        ("fdbroker_parked_requests", 1),
        ("fdbroker_parked_peak_requests", 1),
        ("fdbroker_parked_items", 1),
        ("fdbroker_parked_peak_items", 1),
        ("fdbroker_requests_parked_total", 1),
        ("fdbroker_recalls_total", 1),
        ("fdbroker_held_fds", 0),
        ("fdbroker_stored_fds", 0),
        ("fdbroker_reserved_places", 1),
        ("fdbroker_promised_leases", 1),
        ("fdbroker_promised_peak_leases", 1),
        ("fdbroker_recall_time_seconds_count", 0),
        ("fdbroker_grant_latency_seconds_count", 0),
    ];
    broker.see_with_accounts(seen, &asked);
    // Both times began before this, and what answers the second of two commands looks at its clock
    // after the first: they are at least as long as the first takes.
    let since = Instant::now();
    broker.page();
    let least = since.elapsed().as_secs_f64();
    broker.page();
    answer.send(()).expect("it waits");
    let granted = [
        ("fdbroker_parked_requests", 0),
        ("fdbroker_requests_parked_total", 1),
        ("fdbroker_recalls_total", 1),
        ("fdbroker_recalls_unanswered_total", 0),
        ("fdbroker_held_fds", 1),
        ("fdbroker_stored_fds", 1),
        ("fdbroker_reserved_places", 0),
        ("fdbroker_promised_leases", 0),
        ("fdbroker_grants_total", 1),
        ("fdbroker_recall_time_seconds_count", 1),
        ("fdbroker_grant_latency_seconds_count", 1),
    ];
    let page = broker.see(seen, &granted);
    let most = broker.start.elapsed().as_secs_f64();
    for (family, sum) in TIMES.iter().zip(&sums) {
        see_within(seen, &page, sum, least, most);
        see_one_time(seen, &page, family);
    }
    assert!(matches!(waiting.test(), Progress::Done(_)));
}

fn silent(seen: &mut Seen) {
    let broker = Broker::start("metrics-silent", &[NO_CREDIT, "limits.recall_timeout_ms=50"]);
    // Serves no recall, since nobody dispatches.
    let owner = broker.client_with(2, |builder| builder.dispatch(true));
    let consumer = broker.client();
    let handles = [1, 2].map(|number| {
        let mut deposit = recallable(1);
        deposit.facts.owner_allocation_id = number;
        owner.register(&deposit, memfd(1).as_fd(), soon()).expect("registered").handle
    });
    broker.run(&["evict", "--all"]);
    let none = ["recalls_total", "recalls_unanswered_total", "silent_owners"];
    let none = none.map(|name| format!("fdbroker_{name}"));
    broker.see(seen, &none.each_ref().map(|name| (name.as_str(), 0)));
    // The second one is not asked for: its owner is known not to answer.
    for handle in &handles {
        let error = consumer.acquire(handle, soon()).expect_err("nobody answers");
        assert_eq!(error.code, ErrorCode::OwnerSilent);
        broker.see(seen, &none.each_ref().map(|name| (name.as_str(), 1)));
    }
}
