//! Whether the broker does its work: drained, answering its clients, another process; and how old
//! leases are. Must never assert an age but by what the test has measured.

use super::page::Page;
use super::rig::{Broker, memfd, recallable, see_within, soon};
use super::seen::{Scenario, Seen};
use crate::common::end;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

pub static STATE: Scenario = Scenario::new(state);

#[test]
fn metrics_when_the_broker_is_drained_full_or_not_reached_then_seen() {
    STATE.seen();
}

/// What is told when this is the clients' socket.
fn page(broker: &Broker, socket: &Path, more: &[&str]) -> Page {
    let mut command = broker.command(&["metrics"]);
    let output = command.args(more).env("FDBROKER_SOCKET", socket).output().expect("it starts");
    assert_eq!(end(&output).0, Some(0), "{}", end(&output).1);
    Page::read(&String::from_utf8(output.stdout).expect("UTF-8"))
}

fn state(seen: &mut Seen) {
    let mut broker = Broker::start("metrics-state", &["caps.node.connections=4"]);
    let socket = broker.dir.path().join("fdbroker/broker.sock");
    let mut see = |page: &Page, series: &str, value: f64| {
        assert_eq!(page.get(series), value, "{series}");
        seen.note(series, value);
    };
    let share = r#"fdbroker_cap_used_ratio{cap="connections"}"#;
    let oldest = |state| format!(r#"fdbroker_oldest_lease_seconds{{state="{state}"}}"#);
    let before = page(&broker, &socket, &[]);
    see(&before, "fdbroker_serves_clients", 1.0);
    see(&page(&broker, Path::new("/nowhere/broker.sock"), &[]), "fdbroker_serves_clients", 0.0);
    see(&before, "fdbroker_draining", 0.0);
    see(&before, share, 0.0);
    see(&before, &oldest("open"), 0.0);
    let pid = |broker: &Broker| broker.ask(&["status", "--json"])["pid"].as_f64().expect("a pid");
    see(&before, "fdbroker_pid", pid(&broker));

    let client = broker.client();
    let registered = client.register(&recallable(1), memfd(1).as_fd(), soon());
    let asked = Instant::now();
    let grant = client.acquire(&registered.expect("registered").handle, soon()).expect("a grant");
    let granted = Instant::now();
    let leased = broker.page();
    see(&leased, share, 0.25);
    see(&leased, &oldest("mapped"), 0.0);
    let most = asked.elapsed().as_secs_f64();
    std::thread::sleep(std::time::Duration::from_millis(2));
    see_within(seen, &leased, &oldest("open"), 0.0, most);
    let least = granted.elapsed().as_secs_f64() - 0.001;
    let later = broker.page();
    see_within(seen, &later, &oldest("open"), least, asked.elapsed().as_secs_f64());
    let jobs = |page: &Page| page.series().any(|(series, _)| series.starts_with("fdbroker_job_"));
    broker.run(&["limits", "set", "node.connections=1"]);
    let full = page(&broker, &socket, &[]);
    assert_eq!(full.get("fdbroker_serves_clients"), 1.0, "it does, though nobody finds room");
    assert_eq!(full.get("fdbroker_refusals_total"), 0.0, "whoever looks is not counted as refused");
    assert!(jobs(&later) && !jobs(&page(&broker, &socket, &["--without-jobs"])));
    drop(grant);

    // The owner has what cannot be had again: it is not empty at once.
    broker.command(&["drain", "--wait", "0"]).output().expect("it starts");
    broker.see(seen, &[("fdbroker_draining", 1)]);
    broker.hand_over();
    let value = pid(&broker);
    let after = broker.page();
    assert_eq!(after.get("fdbroker_pid"), value);
    seen.note("fdbroker_pid", value);
}
