//! Exercises level-zero-sys and the test driver through whatever loader this process gets: `tests/level_zero/run.sh`.
//! It must never pass a case by not running it: what a loader cannot do is a case of its own.
//!
//! Without arguments: every case, each in a process of its own under its own switches, then `N passed, N failed`.

#[path = "../../apart.rs"]
mod apart;
mod cases;
#[path = "../../counters.rs"]
mod counters;
mod fault;
mod gpu;
mod limits;
mod peer;

use apart::{end, run_all};
use cases::{CASES, Case};
use std::process::ExitCode;

/// Argument with which this program is the second process of a case.
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
