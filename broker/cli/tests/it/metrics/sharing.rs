//! Ranks share memory: what each step of theirs adds to which number, and takes from it again.

use super::rig::{Broker, NO_CREDIT, PAGE, memfd, recallable, soon};
use super::seen::{Scenario, Seen};
use fdbroker_client::{Access, Deposit, MemoryKind};
use std::os::fd::AsFd;

pub static SHARED: Scenario = Scenario::new(shared);

#[test]
fn metrics_when_ranks_share_memory_then_each_number_moves_by_what_they_did() {
    SHARED.seen();
}

/// In the broker's table before anybody comes: places for the fds of one message.
const RESERVE: u64 = 253;
/// Places of a connection there.
const CONNECTION: u64 = 4;

fn shared(seen: &mut Seen) {
    let broker = Broker::start("metrics-shared", &[NO_CREDIT]);
    let nothing = [
        "connections",
        "peak_connections",
        "domains",
        "peak_domains",
        "jobs",
        "fds",
        "peak_fds",
        "held_fds",
        "held_peak_fds",
        "own_fds",
        "own_peak_fds",
        "reserved_peak_places",
        "held_bytes",
        "held_peak_bytes",
        "pinned_bytes",
        "pinned_peak_bytes",
        "open_leases",
        "open_peak_leases",
        "mapped_leases",
        "mapped_peak_leases",
        "allocations",
        "peak_allocations",
        "kept_allocations",
        "kept_peak_allocations",
        "stored_fds",
        "parked_requests",
        "parked_peak_requests",
        "refused_fds",
        "refused_peak_fds",
        "grants_total",
        "deposits_total",
        "evictions_total",
    ];
    let nothing = nothing.map(|name| format!("fdbroker_{name}"));
    let nothing: Vec<(&str, u64)> = nothing.iter().map(|name| (name.as_str(), 0)).collect();
    broker.see(seen, &nothing);
    broker
        .see(seen, &[("fdbroker_table_places", RESERVE), ("fdbroker_table_peak_places", RESERVE)]);

    let owner = broker.client_with(2, |builder| builder);
    let connected = [
        ("fdbroker_connections", 1),
        ("fdbroker_peak_connections", 1),
        ("fdbroker_domains", 1),
        ("fdbroker_peak_domains", 1),
        ("fdbroker_jobs", 1),
        ("fdbroker_own_fds", 2),
        ("fdbroker_own_peak_fds", 2),
        ("fdbroker_fds", 0),
        ("fdbroker_peak_fds", 0),
        ("fdbroker_held_bytes", 0),
        ("fdbroker_open_leases", 0),
        ("fdbroker_mapped_leases", 0),
        ("fdbroker_allocations", 0),
        ("fdbroker_table_places", RESERVE + CONNECTION),
        ("fdbroker_table_peak_places", RESERVE + CONNECTION),
    ];
    broker.see_with_accounts(seen, &connected);
    let consumer = broker.client();
    let sizes = [1, 2, 4];
    let handles = sizes.map(|pages| {
        let registered = owner.register(&recallable(pages), memfd(pages).as_fd(), soon());
        registered.expect("registered").handle
    });
    let registered = [
        ("fdbroker_connections", 2),
        ("fdbroker_domains", 1),
        ("fdbroker_jobs", 1),
        ("fdbroker_own_fds", 3),
        ("fdbroker_deposits_total", 3),
        ("fdbroker_allocations", 3),
        ("fdbroker_peak_allocations", 3),
        ("fdbroker_reserved_peak_places", 1),
        ("fdbroker_held_fds", 3),
        ("fdbroker_held_peak_fds", 3),
        ("fdbroker_stored_fds", 3),
        ("fdbroker_held_bytes", 7 * PAGE),
        ("fdbroker_held_peak_bytes", 7 * PAGE),
        ("fdbroker_fds", 3),
        ("fdbroker_table_places", RESERVE + 2 * CONNECTION + 3),
        ("fdbroker_table_peak_places", RESERVE + 2 * CONNECTION + 3),
    ];
    broker.see_with_accounts(seen, &registered);

    let grants = handles.map(|handle| consumer.acquire(&handle, soon()).expect("a grant"));
    let granted = [
        ("fdbroker_grants_total", 3),
        ("fdbroker_grant_latency_seconds_count", 3),
        ("fdbroker_recall_time_seconds_count", 0),
        ("fdbroker_open_leases", 3),
        ("fdbroker_open_peak_leases", 3),
        ("fdbroker_mapped_leases", 0),
        ("fdbroker_fds", 3 + 3),
        ("fdbroker_peak_fds", 3 + 3),
    ];
    broker.see_with_accounts(seen, &granted);
    let [one, two, open] = grants;
    let imports = [one, two].map(|grant| grant.import(Access::Read, 0).expect("an import"));
    consumer.flush(soon()).expect("told");
    let imported = [
        ("fdbroker_open_leases", 1),
        ("fdbroker_open_peak_leases", 3),
        ("fdbroker_mapped_leases", 2),
        ("fdbroker_mapped_peak_leases", 2),
        ("fdbroker_fds", 3 + 1),
    ];
    broker.see_with_accounts(seen, &imported);

    broker.run(&["evict", "--all"]);
    let evicted = [
        ("fdbroker_evictions_total", 3),
        ("fdbroker_stored_fds", 0),
        ("fdbroker_closing_fds", 0),
        ("fdbroker_held_fds", 0),
        ("fdbroker_held_peak_fds", 3),
        ("fdbroker_held_bytes", 0),
        ("fdbroker_held_peak_bytes", 7 * PAGE),
        ("fdbroker_allocations", 3),
        ("fdbroker_fds", 1),
        ("fdbroker_peak_fds", 3 + 3),
        ("fdbroker_table_places", RESERVE + 2 * CONNECTION),
        ("fdbroker_table_peak_places", RESERVE + 2 * CONNECTION + 3),
    ];
    broker.see_with_accounts(seen, &evicted);

    // What has ended stays pinned by who has it.
    owner.end();
    let ended = [
        ("fdbroker_connections", 1),
        ("fdbroker_own_fds", 1),
        ("fdbroker_own_peak_fds", 3),
        ("fdbroker_pinned_bytes", 7 * PAGE),
        ("fdbroker_pinned_peak_bytes", 7 * PAGE),
        ("fdbroker_allocations", 3),
    ];
    broker.see(seen, &ended);
    drop((open, imports));
    let returned = [
        ("fdbroker_open_leases", 0),
        ("fdbroker_mapped_leases", 0),
        ("fdbroker_pinned_bytes", 0),
        ("fdbroker_pinned_peak_bytes", 7 * PAGE),
        ("fdbroker_allocations", 0),
        ("fdbroker_peak_allocations", 3),
        ("fdbroker_fds", 0),
    ];
    broker.see_with_accounts(seen, &returned);

    let kept = Deposit::new(MemoryKind::Memfd, PAGE).keep(true);
    let kept = consumer.register(&kept, memfd(1).as_fd(), soon()).expect("registered");
    let one = [("fdbroker_kept_allocations", 1), ("fdbroker_kept_peak_allocations", 1)];
    broker.see_with_accounts(seen, &one);
    consumer.unregister(&kept).expect("its own");
    let none = [("fdbroker_kept_allocations", 0), ("fdbroker_kept_peak_allocations", 1)];
    broker.see_with_accounts(seen, &none);
    consumer.end();
    let gone = [
        ("fdbroker_connections", 0),
        ("fdbroker_domains", 0),
        ("fdbroker_jobs", 0),
        ("fdbroker_fds", 0),
        ("fdbroker_own_fds", 0),
        ("fdbroker_table_places", RESERVE),
    ];
    broker.see(seen, &gone);
}

#[test]
fn metrics_when_a_job_has_a_series_then_jobs_clients_and_ls_know_it_by_the_same_name() {
    let broker = Broker::start("metrics-job", &["caps.job.fds=50"]);
    let client = broker.client();
    client.register(&recallable(1), memfd(1).as_fd(), soon()).expect("registered");
    let jobs = broker.ask(&["jobs", "--json"]);
    let [job] = &jobs["jobs"].as_array().expect("a list")[..] else { panic!("{jobs}") };
    assert_eq!((&job["connections"], &job["allocations"]), (&1.into(), &1.into()));
    assert_eq!(job["fds_cap"], 50);
    let (name, uid) = (job["job"].as_str().expect("a name"), &job["uid"]);
    let series = format!("fdbroker_job_allocations{{job_name=\"{name}\",uid=\"{uid}\"}}");
    assert_eq!(broker.page().get(&series), 1.0);
    let filter = format!("JOB == '{name}'");
    for list in ["clients", "ls"] {
        let of_it = broker.ask(&[list, "--json", "--filter", &filter]);
        let of_others = broker.ask(&[list, "--json", "--filter", "JOB == slurm:0"]);
        let count = |answer: &serde_json::Value| {
            let lists = answer.as_object().expect("an object").values();
            lists.filter_map(|list| list.as_array()).map(Vec::len).sum::<usize>()
        };
        assert_eq!((count(&of_it), count(&of_others)), (1, 0), "{list}");
    }
}
