//! A program that knows nothing of fdbroker. It gets Level Zero IPC handles, passes them by value
//! and opens them. `tests/level_zero/layer.sh` runs it with and without the layer. Must never link
//! fdbroker's library.
//!
//! The argument names a case or a list of cases. Each case of a list runs in a process of its own;
//! the last line is `N passed, N failed`.

#[path = "../../../../apart.rs"]
mod apart;
mod broker;
mod cases;
#[path = "../../../../counters.rs"]
mod counters;
#[path = "../../events.rs"]
mod events;
mod exporting;
#[path = "../../fault.rs"]
mod fault;
#[path = "../../gpu.rs"]
#[allow(dead_code)] // ze-test-client uses the rest
mod gpu;
mod mapped;
mod measure;
mod opening;
#[path = "../../order.rs"]
mod order;
#[path = "../../peer.rs"]
#[allow(dead_code)] // ze-test-client uses the rest
mod peer;
mod sent;
mod shapes;
mod sharing;
mod virtual_fds;
#[path = "../../virtual_memory.rs"]
mod virtual_memory;
mod ways;
mod without;

use apart::{end, run_all};
use cases::{CASES, Case, List};
use std::process::ExitCode;

/// The argument that makes this program the second process of a case.
const PEER: &str = "peer";

fn main() -> ExitCode {
    let argument = std::env::args().nth(1).unwrap_or_default();
    if argument == PEER {
        return end(peer::serve());
    }
    if argument == "measure" {
        return end(measure::run());
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
