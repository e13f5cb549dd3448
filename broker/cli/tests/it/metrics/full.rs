//! Caps that are full: what is refused, and what holders are asked for.

use super::rig::{Broker, NO_CREDIT, memfd, recallable, soon};
use super::seen::{Scenario, Seen};
use crate::common::wait_for;
use fdbroker_client::{ErrorCode, Grant, Notice};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub static REFUSED: Scenario = Scenario::new(refused);
pub static RECLAIMED: Scenario = Scenario::new(reclaimed);

#[test]
fn metrics_when_a_cap_is_full_then_each_request_refused_is_counted() {
    REFUSED.seen();
}

#[test]
fn metrics_when_holders_are_asked_for_leases_then_as_many_are_counted() {
    RECLAIMED.seen();
}

fn refused(seen: &mut Seen) {
    let broker = Broker::start("metrics-refused", &[NO_CREDIT, "caps.client.allocations=1"]);
    broker.see(seen, &[("fdbroker_events", 1), ("fdbroker_tombstones", 0)]);
    let client = broker.client();
    broker.see(seen, &[("fdbroker_events", 2)]);
    let first = client.register(&recallable(1), memfd(1).as_fd(), soon()).expect("registered");
    for refusals in 0..3 {
        let by_cap = r#"fdbroker_cap_refusals_total{scope="client",cap="allocations"}"#;
        broker.see(seen, &[("fdbroker_refusals_total", refusals), (by_cap, refusals)]);
        let error = client.register(&recallable(1), memfd(1).as_fd(), soon()).expect_err("full");
        assert_eq!(error.code, ErrorCode::NoQuota);
    }
    broker.see(seen, &[("fdbroker_allocations", 1), ("fdbroker_refusals_total", 3)]);
    // No memory at all.
    broker.see(seen, &[("fdbroker_refused_peak_fds", 0)]);
    let directory = std::fs::File::open("/").expect("everybody may");
    let error = client.register(&recallable(1), directory.as_fd(), soon()).expect_err("no memory");
    assert_eq!(error.code, ErrorCode::UnsupportedFd);
    broker.see(seen, &[("fdbroker_refused_fds", 0), ("fdbroker_refused_peak_fds", 1)]);
    // Its end is remembered: connected, the deposit, three refusals, the end.
    client.unregister(&first).expect("its own");
    broker.see(seen, &[("fdbroker_tombstones", 1), ("fdbroker_events", 7)]);
}

fn reclaimed(seen: &mut Seen) {
    let broker = Broker::start("metrics-reclaimed", &[NO_CREDIT, "caps.node.open_leases=3"]);
    let held = Arc::new(Mutex::new(Vec::<Grant>::new()));
    let asked = Arc::new(AtomicUsize::new(0));
    let (to_give_back, counted) = (Arc::clone(&held), Arc::clone(&asked));
    let holder = broker.client_with(1, |builder| {
        builder.on_notice(move |notice| {
            // Gives back all that it has.
            if let Notice::Reclaim { leases, .. } = notice {
                counted.fetch_add(leases.len(), Ordering::Relaxed);
                to_give_back.lock().expect("nobody panics with it").clear();
            }
        })
    });
    let registered = holder.register(&recallable(1), memfd(1).as_fd(), soon());
    let handle = registered.expect("registered").handle;
    let grants = (0..3).map(|_| holder.acquire(&handle, soon()).expect("a grant")).collect();
    *held.lock().expect("nobody panics with it") = grants;
    let series = "fdbroker_reclaims_total";
    broker.see(seen, &[("fdbroker_open_leases", 3), (series, 0)]);

    let other = broker.client();
    let grant = other.acquire(&handle, soon()).expect("a grant");
    let given_back = [
        ("fdbroker_open_leases", 1),
        ("fdbroker_requests_parked_total", 1),
        ("fdbroker_refusals_total", 0),
    ];
    broker.see(seen, &given_back);
    // All three at once; and again, should this process not have run for as long as the broker
    // waits for an answer.
    let found = wait_for("as many as the holder was asked for", || {
        let found = broker.page().get(series);
        (found == asked.load(Ordering::Relaxed) as f64).then_some(found)
    });
    assert!(found >= 3.0, "{found}");
    seen.note(series, found);
    drop(grant);
}
