//! The demo end to end with real processes: what it promises, and how it ends when something goes
//! wrong.

use crate::common::{
    Running, TestDir, children, end, fdbroker, is_alive, one_json_line, run, run_script, signal,
    wait_for,
};
use serde_json::Value;

const FIELDS: [&str; 10] = [
    "ranks",
    "buffers",
    "size_bytes",
    "memory",
    "verified_bytes",
    "mismatches",
    "failures",
    "elapsed_s",
    "fds",
    "without_broker",
];

/// Everything that a run without faults promises.
fn check(report: &Value, ranks: u64, buffers: u64, size: u64) {
    assert_eq!(report["ranks"], ranks);
    assert_eq!(report["buffers"], buffers);
    assert_eq!(report["size_bytes"], size);
    assert_eq!(report["mismatches"], 0, "{report}");
    assert_eq!(report["failures"], 0, "{report}");
    assert_eq!(report["verified_bytes"], ranks * (ranks - 1) * buffers * size);
    let fds = &report["fds"];
    let peak = |name: &str| fds[name].as_u64().expect("a number");
    assert!(peak("node_peak") <= peak("cap"), "{report}");
    assert!(peak("node_peak") >= ranks, "each has an arena: {report}");
    assert!(peak("rank_peak") >= 1 && peak("rank_peak") <= peak("node_peak"), "{report}");
    assert!(peak("broker_peak") >= 1 && peak("broker_peak") <= peak("node_peak"), "{report}");
}

#[test]
fn demo_when_small_then_every_promised_field_in_order() {
    let output = run(&[
        "demo",
        "--ranks",
        "2",
        "--buffers",
        "5",
        "--memory",
        "memfd",
        "--max-fds",
        "64",
        "--json",
    ]);
    let (code, stderr) = end(&output);
    assert_eq!(code, Some(0), "{stderr}");
    let report = one_json_line(&output);
    check(&report, 2, 5, 65536);
    assert_eq!(report["memory"], "memfd");
    assert_eq!(report["fds"]["cap"], 64);
    assert_eq!(report["without_broker"], Value::Null);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let places: Vec<_> = FIELDS.map(|name| text.find(&format!("\"{name}\":"))).to_vec();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{text}");
    assert_eq!(report.as_object().map(|fields| fields.len()), Some(FIELDS.len()));
}

#[test]
fn demo_when_far_more_buffers_than_fds_then_complete_under_the_cap() {
    let output = run(&[
        "demo",
        "--ranks",
        "4",
        "--buffers",
        "60",
        "--size",
        "4096",
        "--memory",
        "memfd",
        "--max-fds",
        "40",
        "--json",
    ]);
    let (code, stderr) = end(&output);
    assert_eq!(code, Some(0), "{stderr}");
    check(&one_json_line(&output), 4, 60, 4096);
}

#[test]
fn demo_when_without_broker_then_it_ends_at_the_limit_or_completes() {
    let demo = |max_fds: &str| {
        let output = run(&[
            "demo",
            "--ranks",
            "3",
            "--buffers",
            "40",
            "--size",
            "4096",
            "--memory",
            "memfd",
            "--max-fds",
            max_fds,
            "--without-broker",
            "--json",
        ]);
        let (code, stderr) = end(&output);
        assert_eq!(code, Some(0), "{stderr}");
        let report = one_json_line(&output);
        check(&report, 3, 40, 4096);
        report["without_broker"].clone()
    };
    let needed = 3 * 2 * 40;
    let small = demo("50");
    assert!(small["failed_at"].as_u64().is_some_and(|fds| fds > 0 && fds < needed), "{small}");
    assert!(small["rank_peak"].as_u64().is_some_and(|fds| fds < 50), "{small}");
    let large = demo("400");
    assert_eq!(large["failed_at"], Value::Null, "{large}");
    assert_eq!(large["node_peak"], needed + 3, "all received fds and three arenas: {large}");
}

#[test]
fn demo_when_plain_then_a_table_of_both_ways() {
    let output =
        run(&["demo", "--ranks", "3", "--buffers", "30", "--memory", "memfd", "--max-fds", "40"]);
    let (code, stderr) = end(&output);
    assert_eq!(code, Some(0), "{stderr}");
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    for word in ["WITH FDBROKER", "DIRECTLY", "fds on the node", "0 mismatches", "out of fds"] {
        assert!(stdout.contains(word), "no {word:?} in: {stdout}");
    }
}

#[test]
fn demo_when_inside_run_then_it_uses_that_broker() {
    let output = run_script(
        "$F demo --ranks 2 --buffers 5 --memory memfd --json || exit
        # The broker hears of the ranks' ends by itself.
        until $F status --json | grep -q 'connections.:{.now.:0,'; do sleep 0.01; done
        $F status --json; $F ls --json",
    );
    let (code, stderr) = end(&output);
    assert_eq!(code, Some(0), "{stderr}");
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    check(&lines[0], 2, 5, 65536);
    assert_eq!(lines[1]["deposits"], 10, "the outer broker served: {stdout}");
    assert_eq!(lines[1]["fds"]["now"], 0, "all was given back: {stdout}");
    assert_eq!(lines[2], serde_json::json!({ "scope": "node", "allocations": [] }));
}

/// A demo that holds, once all is open, with its ranks' pids.
fn holding(dir: &TestDir) -> (Running, Vec<u32>) {
    let mut command = fdbroker(&[
        "demo",
        "--ranks",
        "3",
        "--buffers",
        "4",
        "--memory",
        "memfd",
        "--max-fds",
        "64",
        "--hold",
        "100",
        "--json",
    ]);
    command.env("TMPDIR", dir.path());
    let running = Running::start(command);
    let ranks = wait_for("three ranks", || {
        Some(children(running.pid(), "demo-rank")).filter(|ranks| ranks.len() == 3)
    });
    (running, ranks)
}

#[test]
fn demo_when_a_rank_is_killed_then_an_error_and_no_hang() {
    let dir = TestDir::new("demo-killed");
    let (running, ranks) = holding(&dir);
    signal(ranks[1], "KILL");
    let (code, stderr) = end(&running.end());
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains(&format!("(pid {})", ranks[1])), "{stderr}");
    assert!(ranks.iter().all(|pid| !is_alive(*pid)));
    assert!(dir.is_empty());
}

#[test]
fn demo_when_the_broker_is_killed_then_an_error_that_names_it() {
    let dir = TestDir::new("demo-broker-killed");
    let (running, ranks) = holding(&dir);
    let brokers = children(running.pid(), "--private");
    assert_eq!(brokers.len(), 1);
    signal(brokers[0], "KILL");
    let (code, stderr) = end(&running.end());
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("the broker has ended"), "{stderr}");
    assert!(ranks.iter().all(|pid| !is_alive(*pid)));
    assert!(dir.is_empty());
}

#[test]
fn demo_when_interrupted_then_nothing_is_left() {
    let dir = TestDir::new("demo-interrupted");
    let (running, ranks) = holding(&dir);
    let brokers = children(running.pid(), "--private");
    running.signal("INT");
    let (code, stderr) = end(&running.end());
    assert_eq!(code, Some(130), "{stderr}");
    assert!(ranks.iter().chain(&brokers).all(|pid| !is_alive(*pid)));
    assert!(dir.is_empty());
}

#[test]
fn demo_when_killed_while_all_is_stopped_to_be_counted_then_ranks_and_broker_end() {
    let dir = TestDir::new("demo-killed-counting");
    let (running, ranks) = holding(&dir);
    let brokers = children(running.pid(), "--private");
    let all: Vec<_> = ranks.into_iter().chain(brokers).collect();
    // Stopped first, so that it does not let the others go on.
    running.signal("STOP");
    all.iter().for_each(|pid| signal(*pid, "STOP"));
    running.signal("KILL");
    let _ = running.end();
    for pid in all {
        wait_for("end of its processes", || (!is_alive(pid)).then_some(()));
    }
}

#[test]
fn demo_when_killed_then_ranks_and_broker_end() {
    let dir = TestDir::new("demo-parent-killed");
    let (running, ranks) = holding(&dir);
    let brokers = children(running.pid(), "--private");
    running.signal("KILL");
    let _ = running.end();
    for pid in ranks.into_iter().chain(brokers) {
        wait_for("end of its processes", || (!is_alive(pid)).then_some(()));
    }
}
