//! A program that knows nothing of fdbroker: it gets, passes by value and opens Level Zero IPC handles as any does.
//! `tests/level_zero/layer.sh` runs it with and without the layer. It must never link the library it is tested with.
//!
//! Arguments: a case's name, or the name of a list of cases; each runs in a process of its own under its own switches,
//! then `N passed, N failed`.

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

use cases::{CASES, Case, List};
use std::process::{Command, ExitCode, Stdio};

/// Argument with which this program is the second process of a case.
const PEER: &str = "peer";

fn main() -> ExitCode {
    let argument = std::env::args().nth(1).unwrap_or_default();
    if argument == PEER {
        return end(peer::serve());
    }
    if let Some(list) = List::from_name(&argument) {
        return run_all(list);
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

fn end(done: fault::Outcome) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("{fault}");
            ExitCode::FAILURE
        }
    }
}

fn run_all(list: List) -> ExitCode {
    let cases: Vec<&Case> = CASES.iter().filter(|case| case.list == list).collect();
    let failed = cases.iter().filter(|case| !passes(case)).count();
    println!("{} passed, {failed} failed", cases.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn passes(case: &Case) -> bool {
    let outcome = run_apart(case);
    match &outcome {
        Ok(()) => println!("ok      {}", case.name),
        Err(fault) => println!("FAILED  {}: {fault}", case.name),
    }
    outcome.is_ok()
}

/// A process of its own, because switches, limits and the layer's state are a process's.
fn run_apart(case: &Case) -> fault::Outcome {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(case.name).stdin(Stdio::null());
    for (variable, value) in case.switches {
        command.env(variable, value);
    }
    match command.status()? {
        status if status.success() => Ok(()),
        status => Err(format!("ended with {status}; its words are above").into()),
    }
}
