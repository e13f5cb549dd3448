//! Tests level-zero-sys and the test driver with the loader that this process finds;
//! `tests/level_zero/run.sh` starts it. Must never pass a case that it did not run: a function that
//! a loader lacks has cases of its own.
//!
//! Without arguments it runs all cases, each in a process of its own, and prints `N passed, N
//! failed`.

#[path = "../../apart.rs"]
mod apart;
mod cases;
#[path = "../../counters.rs"]
mod counters;
#[allow(dead_code)] // ze-test-unmodified uses the rest
mod events;
mod fault;
mod gpu;
#[path = "../../../common/here.rs"]
#[allow(dead_code)] // it has no other reason
mod here;
mod order;
mod peer;
mod virtual_memory;

use apart::{end, run_all};
use cases::{CASES, Case};
use std::process::ExitCode;

/// The argument that makes this program the second process of a case.
const PEER: &str = "peer";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        None => run_all(CASES.iter().map(Case::named)),
        Some(PEER) => end(peer::serve()),
        Some(name) => match CASES.iter().find(|case| case.name == name) {
            Some(case) => end(cases::run(case)),
            None => {
                eprintln!("ze-test-client: no case {name}; they are:");
                CASES.iter().for_each(|case| eprintln!("  {}", case.name));
                ExitCode::from(2)
            }
        },
    }
}
