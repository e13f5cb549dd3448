//! A program that knows nothing of fdbroker: it gets, passes by value and opens Level Zero IPC handles as any does.
//! `tests/level_zero/layer.sh` runs it with and without the layer. It must never link the library it is tested with.
//!
//! Arguments: a case's name, or the name of a list of cases; each runs in a process of its own under its own switches,
//! then `N passed, N failed`.

#[path = "../../../../apart.rs"]
mod apart;
mod broker;
mod cases;
#[path = "../../../../counters.rs"]
mod counters;
mod exporting;
#[path = "../../fault.rs"]
mod fault;
#[path = "../../gpu.rs"]
#[allow(dead_code)] // the other program uses the rest
mod gpu;
#[path = "../../limits.rs"]
mod limits;
mod opening;
#[path = "../../peer.rs"]
#[allow(dead_code)] // as above
mod peer;
mod sharing;
mod without;

use apart::{end, run_all};
use cases::{CASES, Case, List};
use std::process::ExitCode;

/// Argument with which this program is the second process of a case.
const PEER: &str = "peer";

fn main() -> ExitCode {
    let argument = std::env::args().nth(1).unwrap_or_default();
    if argument == PEER {
        return end(peer::serve());
    }
    if let Some(list) = List::from_name(&argument) {
        return run_all(CASES.iter().filter(|case| case.list == list).map(Case::named));
    }
    match CASES.iter().find(|case| case.name == argument) {
        Some(case) => end(cases::run(case)),
        None => {
            eprintln!("ze-test-unmodified: no case or list `{argument}`; they are:");
            CASES.iter().for_each(|case| eprintln!("  {:?}: {}", case.list, case.name));
            ExitCode::from(2)
        }
    }
}
