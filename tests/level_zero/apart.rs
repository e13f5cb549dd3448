//! Cases that run apart: each in a process of its own under its own switches, because switches, limits, the loader's and
//! the layer's state are a process's. One file for all programs; it must never pass a case that it has not run.

use crate::fault::Outcome;
use std::process::{Command, ExitCode, Stdio};

/// Variables to set for a case; what is not named is as the environment has it.
pub type Switches = &'static [(&'static str, &'static str)];

pub const LEGACY: Switches = &[("ZE_TEST_DRIVER_HANDLES", "legacy")];
pub const OPAQUE: Switches = &[("ZE_TEST_DRIVER_HANDLES", "opaque")];
pub const LEGACY_POOL: Switches =
    &[("ZE_TEST_DRIVER_HANDLES", "legacy"), ("ZE_TEST_DRIVER_POOL", "yes")];
pub const OPAQUE_POOL: Switches =
    &[("ZE_TEST_DRIVER_HANDLES", "opaque"), ("ZE_TEST_DRIVER_POOL", "yes")];

/// What the parent of a case needs to know.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// `what_when_then`; the program runs it when this is its argument.
    pub name: &'static str,
    pub switches: Switches,
}

/// The exit status of a case's process.
pub fn end(done: Outcome) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("{fault}");
            ExitCode::FAILURE
        }
    }
}

/// Runs cases one after the other; says what came of each, and at the end how many passed and failed.
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
