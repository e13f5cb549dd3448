//! Caps: as set at run time, as configured, as configured again; and that there is no number of one
//! that is none.

use super::page::Page;
use super::rig::Broker;
use super::seen::{Scenario, Seen};
use crate::common::TestDir;

pub static SET: Scenario = Scenario::new(set);
pub static RELOADED: Scenario = Scenario::new(reloaded);
pub static TABLE: Scenario = Scenario::new(table);

#[test]
fn metrics_when_caps_are_set_at_run_time_then_shown_and_one_taken_away_has_no_number() {
    SET.seen();
}

#[test]
fn metrics_when_caps_of_the_file_change_and_it_is_read_again_then_shown() {
    RELOADED.seen();
}

#[test]
fn metrics_when_the_fd_table_is_larger_then_so_is_its_cap() {
    if !crate::shared::has_fds(2048) {
        return;
    }
    TABLE.seen();
}

/// Names in the configuration, and of the series.
const CAPS: [(&str, &str); 14] = [
    ("fds", "fdbroker_cap_fds"),
    ("held_fds", "fdbroker_held_cap_fds"),
    ("held_bytes", "fdbroker_held_cap_bytes"),
    ("open_leases", "fdbroker_open_cap_leases"),
    ("mapped_leases", "fdbroker_mapped_cap_leases"),
    ("allocations", "fdbroker_cap_allocations"),
    ("connections", "fdbroker_cap_connections"),
    ("kept_allocations", "fdbroker_kept_cap_allocations"),
    ("object_names", "fdbroker_object_cap_names"),
    ("metadata_bytes", "fdbroker_metadata_cap_bytes"),
    ("kept_bytes", "fdbroker_kept_cap_bytes"),
    ("kept_gpu_bytes", "fdbroker_kept_gpu_cap_bytes"),
    ("kept_fds", "fdbroker_kept_cap_fds"),
    ("permanent_bytes", "fdbroker_permanent_cap_bytes"),
];

/// Most clients of the brokers here. The cap of connections is never above that.
const MAX_CLIENTS: u64 = 48;
const MAX_CLIENTS_SET: &str = "limits.max_clients=48";

/// All different, different for another `base`, and below [`MAX_CLIENTS`].
fn values(base: u64) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
    CAPS.into_iter().zip(base..).map(|((key, series), value)| (key, series, value))
}

fn see_values(broker: &Broker, seen: &mut Seen, base: u64) -> Page {
    let rows: Vec<_> = values(base).map(|(_, series, value)| (series, value)).collect();
    broker.see(seen, &rows)
}

fn set_limits(broker: &Broker, limits: &[String]) {
    let limits = limits.iter().map(String::as_str);
    broker.run(&["limits", "set"].into_iter().chain(limits).collect::<Vec<_>>());
}

fn set(seen: &mut Seen) {
    let broker = Broker::start("metrics-caps", &[MAX_CLIENTS_SET]);
    for base in [10, 20] {
        let limits = values(base).map(|(key, _, value)| format!("node.{key}={value}"));
        set_limits(&broker, &limits.collect::<Vec<_>>());
        see_values(&broker, seen, base);
    }
    set_limits(&broker, &CAPS.map(|(key, _)| format!("node.{key}=none")));
    let page = broker.page();
    for (key, series) in CAPS {
        // What has a bound without a cap, too.
        let in_force = match key {
            "connections" => Some(MAX_CLIENTS as f64),
            "metadata_bytes" => Some(((1u64 << 30) - (16 << 20)) as f64),
            _ => None,
        };
        assert_eq!(page.find(series), in_force, "{series}");
        assert!(page.families.contains_key(series), "{series}");
    }
    set_limits(&broker, &[format!("node.connections={}", MAX_CLIENTS + 1)]);
    assert_eq!(broker.page().get("fdbroker_cap_connections"), MAX_CLIENTS as f64);
}

fn reloaded(seen: &mut Seen) {
    let dir = TestDir::new("metrics-reload");
    let file = dir.path().join("fdbrokerd.toml");
    let write = |base| {
        let lines: String =
            values(base).map(|(key, _, value)| format!("{key} = {value}\n")).collect();
        std::fs::write(&file, format!("[caps.node]\n{lines}")).expect("written");
    };
    write(30);
    let file = file.to_str().expect("UTF-8");
    let broker = Broker::start_with(dir, &["--config", file, "--set", MAX_CLIENTS_SET]);
    see_values(&broker, seen, 30);
    write(40);
    broker.running.signal("HUP");
    see_values(&broker, seen, 40);
}

/// What is beside the clients' places in the table is the same in all, but for a place of each
/// client: tables of these sizes have one socket for fds fetched ahead. A domain more than clients
/// may be in use: 64 are of clients that have gone.
fn table(seen: &mut Seen) {
    let start = |table_fds: u64, clients: u64| {
        let table_fds = format!("limits.table_fds={table_fds}");
        let max_clients = format!("limits.max_clients={clients}");
        Broker::start("metrics-table", &[&table_fds, &max_clients])
    };
    let series = "fdbroker_table_cap_places";
    let least = start(1024, 8).page().get(series) as u64;
    assert!((1..1024).contains(&least), "{least}");
    let domains = "fdbroker_cap_domains";
    start(1048, 8).see(seen, &[(series, least + 24), (domains, 8 + 64)]);
    start(1048, 16).see(seen, &[(series, least + 24 - 8), (domains, 16 + 64)]);
}
