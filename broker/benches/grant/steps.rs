//! The longest step of the core in each of its worlds at the bounds (broker/core/tests/bounds.rs),
//! whole, in a release build. Must never assert a time.

use std::collections::BTreeMap;
use std::process::Command;

/// Each world is run so often. The shortest of its longest steps counts: the others were
/// interrupted.
const RUNS: usize = 5;

/// Prints the longest step of each world, the longest first.
pub fn print_longest() {
    let mut longest: BTreeMap<String, u64> = BTreeMap::new();
    for _ in 0..RUNS {
        for (world, ns) in run() {
            let entry = longest.entry(world).or_insert(ns);
            *entry = ns.min(*entry);
        }
    }
    let mut sorted: Vec<(u64, String)> = longest.into_iter().map(|(it, ns)| (ns, it)).collect();
    sorted.sort_unstable_by(|one, other| other.cmp(one));
    println!("\n{:>9}  longest step of the core, us", "");
    for (ns, world) in sorted {
        println!("{:>9.1}  {world}", ns as f64 / 1000.0);
    }
}

fn run() -> Vec<(String, u64)> {
    let arguments = ["test", "--release", "--quiet", "-p", "fdbroker-core", "--test", "bounds"];
    let out = Command::new(env!("CARGO"))
        .args(arguments)
        .args(["--", "--nocapture", "--test-threads=1"])
        .env("BOUNDS_DIVISOR", "1")
        .output()
        .expect("cargo runs");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    let worlds = text.lines().filter_map(|line| {
        let (world, time) = line.split_once("longest step of ")?.1.split_once(": ")?;
        Some((world.to_owned(), time.strip_suffix(" ns")?.parse().ok()?))
    });
    worlds.collect()
}
