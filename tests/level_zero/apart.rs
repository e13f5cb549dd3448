//! Runs each case in a process of its own with its own switches: switches, limits and the state of
//! loader and layer belong to a process. One file for all three programs. Must never pass a case
//! that it has not run.

use crate::fault::Outcome;
use std::process::{Command, ExitCode, Stdio};

/// The variables to set for a case; all others stay as they are.
pub type Switches = &'static [(&'static str, &'static str)];

pub const LEGACY: Switches = &[("ZE_TEST_DRIVER_HANDLES", "legacy")];
pub const OPAQUE: Switches = &[("ZE_TEST_DRIVER_HANDLES", "opaque")];
#[allow(dead_code)] // not all programs use it
pub const ONE_NUMBER: Switches = &[("ZE_TEST_DRIVER_HANDLES", "one-number")];
pub const LEGACY_POOL: Switches =
    &[("ZE_TEST_DRIVER_HANDLES", "legacy"), ("ZE_TEST_DRIVER_POOL", "yes")];
pub const OPAQUE_POOL: Switches =
    &[("ZE_TEST_DRIVER_HANDLES", "opaque"), ("ZE_TEST_DRIVER_POOL", "yes")];

/// A case, for the process that starts it.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// `what_when_then`: the argument that makes the program run this case.
    pub name: &'static str,
    pub switches: Switches,
}

/// The exit status for a case's outcome; prints the fault.
pub fn end(done: Outcome) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("{fault}");
            ExitCode::FAILURE
        }
    }
}

/// Runs cases one after the other; prints the outcome of each, and at the end `N passed, N failed`.
pub fn run_all(cases: impl IntoIterator<Item = Named>) -> ExitCode {
    let (mut passed, mut failed) = (0, 0);
    for case in cases {
        match run_apart(case) {
            Ok(()) => {
                passed += 1;
                println!("ok      {}", case.name);
            }
            Err(fault) => {
                failed += 1;
                println!("FAILED  {}: {fault}", case.name);
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_apart(case: Named) -> Outcome {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(case.name).stdin(Stdio::null()).envs(case.switches.iter().copied());
    match command.status()? {
        status if status.success() => Ok(()),
        status => Err(format!("ended with {status}; its words are above").into()),
    }
}
