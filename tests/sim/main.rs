//! The seeded simulator of the core: random clients, deaths, silences and refusals in virtual time.
//! After every step the core is compared with a naive model. The seed alone decides a run: must
//! never read a clock but to print its speed.

mod action;
mod acts;
mod agents;
mod ahead;
mod args;
mod caps;
mod checks;
mod credits;
mod declares;
mod demands;
mod effects;
mod evictions;
mod faults;
mod feed;
mod files;
mod finish;
mod grants;
mod jobs;
mod judge;
mod lives;
mod model;
mod narrow;
mod objects;
mod quotas;
mod recalls;
mod reclaims;
mod report;
mod rest;
mod returns;
mod rig;
mod rng;
mod runner;
mod scenarios;
mod sending;
mod setups;
mod shares;
mod soak;
mod step;
mod sums;
mod tally;
mod took;
mod traces;
mod turns;
mod waits;
mod watch;
mod world;

use args::Args;
use report::{Stats, Violation};
use std::process::ExitCode;

/// A whole run of so many steps must have seen every fault and checked every promise.
const STEPS_THAT_SEE_ALL: u64 = 200_000;

fn main() -> ExitCode {
    let args = match args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(message) => {
            eprintln!("sim: {message}\n{}", args::HELP);
            return ExitCode::from(2);
        }
    };
    if args.help {
        println!("{}", args::HELP);
        return ExitCode::SUCCESS;
    }
    if args.list {
        scenarios::ALL.iter().for_each(|(name, _)| println!("{name}: test"));
        runner::all_configs().for_each(|name| println!("--config {name}"));
        return ExitCode::SUCCESS;
    }
    runner::quiet_panics();
    if args.soak {
        return soak::soak(&args);
    }
    let began = std::time::Instant::now();
    let mut outcomes = runner::run_scenarios(&args);
    let scenarios = outcomes.len();
    let stop = args.fail_fast && outcomes.iter().any(Result::is_err);
    let runs = if stop { Vec::new() } else { runner::planned(&args) };
    outcomes.extend(runner::run_all(&runs, &args));
    let parts = outcomes.len();
    let mut total = Stats::default();
    let mut violations: Vec<Violation> = Vec::new();
    for outcome in outcomes {
        match outcome {
            Ok(stats) => total.add(&stats),
            Err(violation) => violations.push(*violation),
        }
    }
    for violation in &violations {
        println!("{violation}");
    }
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    let mut seeds: Vec<u64> = runs.iter().map(|run| run.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    println!("sim: seeds {seeds:?}, scenarios {scenarios}, runs {}", runs.len());
    report::print(&total, violations.len(), seconds);
    conclude(&args, &total, parts, violations.len())
}

/// Prints the last lines; the exit code.
fn conclude(args: &Args, total: &Stats, parts: usize, violations: usize) -> ExitCode {
    let missing = if args.is_whole() && total.steps >= STEPS_THAT_SEE_ALL {
        report::missing(total)
    } else {
        Vec::new()
    };
    for what in &missing {
        println!("sim: this run shows nothing about `{what}`: it never happened");
    }
    println!("{} passed, {} failed", parts - violations, violations + missing.len());
    if violations + missing.len() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
