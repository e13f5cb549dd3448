//! Tests the library's level_zero backend with the real daemon, a real loader, the test driver and
//! separate processes. Must never pass a case that it did not run: a function that a loader lacks
//! has cases of its own.
//!
//! Without arguments it runs all cases, each in a process of its own, and prints `N passed, N
//! failed`. FDBROKER names the command `fdbroker`, ZE_ENABLE_ALT_DRIVERS the driver;
//! tests/level_zero/run.sh sets both.

#[path = "../../apart.rs"]
mod apart;
mod cases;
#[path = "../../counters.rs"]
mod counters;
#[path = "../../client/src/fault.rs"]
#[allow(dead_code)] // ze-test-client uses the rest
mod fault;
#[path = "../../client/src/gpu.rs"]
#[allow(dead_code)] // ze-test-client uses the rest
mod gpu;
#[path = "../../../common/here.rs"]
#[allow(dead_code)] // it has no other reason
mod here;
mod limits;
mod node;
mod peer;
mod rank;

use apart::{end, run_all};
use cases::{CASES, Case};
use std::process::ExitCode;

/// The argument that makes this program another process of a case.
const PEER: &str = "peer";

/// The argument that makes this program tell which GPUs it sees.
const GPUS: &str = "gpus";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        None => run_all(CASES.iter().map(Case::named)),
        Some(PEER) => end(peer::serve()),
        Some(GPUS) => end(cases::tell_gpus(&arguments[1..])),
        Some(name) => match CASES.iter().find(|case| case.name == name) {
            Some(case) => end(cases::run(case)),
            None => {
                eprintln!("ze-test-library: no case {name}; they are:");
                CASES.iter().for_each(|case| eprintln!("  {}", case.name));
                ExitCode::from(2)
            }
        },
    }
}
