//! The seeded simulator of the core: random clients, deaths, silences and refusals in virtual time, judged
//! against a naive model after every step. A run is decided by its seed alone: must never read a clock for
//! anything but the figure of its own speed.

mod action;
mod agents;
mod checks;
mod effects;
mod judge;
mod model;
mod quotas;
mod report;
mod rig;
mod rng;
mod scenarios;
mod setups;
mod took;
mod turns;
mod world;

use report::{Stats, Trace, TraceMode, Violation};
use rng::{Rng, mix};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use world::World;

/// Seeds that run when none is asked for.
const SEEDS: [u64; 4] = [1, 2, 3, 4];
/// Steps of a whole run when none are asked for: fewer without optimisation.
const STEPS: u64 = if cfg!(debug_assertions) { 60_000 } else { 1_200_000 };
/// Steps before a world is given up for a new one of the same seed: old worlds see other things than young ones.
const STEPS_PER_WORLD: u64 = 12_000;

const HELP: &str = "\
usage: cargo test --release -p fdbroker-core --test sim [-- OPTIONS] [NAME]

NAME           run only the scenarios whose name contains it
--seed N       one seed instead of the fixed list
--steps N      steps in all (default 1,200,000; 60,000 without --release)
--config NAME  one configuration instead of all
--trace        print every input and effect
--list         names of scenarios and configurations";

#[derive(Debug, Default)]
struct Args {
    seed: Option<u64>,
    steps: Option<u64>,
    config: Option<String>,
    name: Option<String>,
    trace: bool,
    list: bool,
}

fn main() -> ExitCode {
    let args = match parse_args(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(message) => {
            eprintln!("sim: {message}\n{HELP}");
            return ExitCode::from(2);
        }
    };
    if args.list {
        scenarios::ALL.iter().for_each(|(name, _)| println!("{name}: test"));
        setups::NAMES.iter().for_each(|name| println!("--config {name}"));
        return ExitCode::SUCCESS;
    }
    quiet_panics();
    let began = std::time::Instant::now();
    let mut total = Stats::default();
    let mut violations = Vec::new();
    let scenarios = run_scenarios(&args, &mut total, &mut violations);
    let worlds = if args.name.is_none() { planned(&args) } else { Vec::new() };
    for (config, seed, steps) in &worlds {
        match run_seed(config, *seed, *steps, args.trace) {
            Ok(stats) => total.add(&stats),
            Err(violation) => violations.push(*violation),
        }
    }
    for violation in &violations {
        println!("{violation}");
    }
    let seeds = worlds.len();
    let rate = total.steps as f64 / began.elapsed().as_secs_f64().max(1e-9);
    println!(
        "sim: scenarios {scenarios}, runs {seeds}, {total}, steps/s {rate:.0}, violations {}",
        violations.len()
    );
    println!("{} passed, {} failed", scenarios + seeds - violations.len(), violations.len());
    if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse_args(mut given: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args::default();
    while let Some(arg) = given.next() {
        let mut number = || -> Result<u64, String> {
            let value = given.next().ok_or_else(|| format!("{arg} needs a number"))?;
            value.replace('_', "").parse().map_err(|_| format!("{arg} {value}: not a number"))
        };
        match arg.as_str() {
            "--seed" => args.seed = Some(number()?),
            "--steps" => args.steps = Some(number()?),
            "--config" => {
                let name = given.next().unwrap_or_default();
                if !setups::NAMES.contains(&name.as_str()) {
                    return Err(format!("no configuration `{name}`: {}", setups::NAMES.join(", ")));
                }
                args.config = Some(name);
            }
            "--trace" => args.trace = true,
            "--list" => args.list = true,
            // What cargo and its runners pass to every test program.
            "--nocapture" | "--quiet" | "-q" | "--exact" | "--show-output" => {}
            "--test-threads" | "--format" | "--color" => drop(given.next()),
            name if !name.starts_with('-') => args.name = Some(name.to_owned()),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(args)
}

/// Configuration, seed and steps of every run.
fn planned(args: &Args) -> Vec<(String, u64, u64)> {
    let configs = match &args.config {
        Some(name) => vec![name.clone()],
        None => setups::NAMES.map(str::to_owned).to_vec(),
    };
    let seeds = args.seed.map_or(SEEDS.to_vec(), |seed| vec![seed]);
    let runs = (configs.len() * seeds.len()) as u64;
    let steps = args.steps.unwrap_or(STEPS).div_ceil(runs);
    let all = configs.iter().flat_map(|config| seeds.iter().map(move |seed| (config, *seed)));
    all.map(|(config, seed)| (config.clone(), seed, steps)).collect()
}

/// Runs the scenarios that are asked for; how many.
fn run_scenarios(args: &Args, total: &mut Stats, violations: &mut Vec<Violation>) -> usize {
    if args.config.is_some() || args.seed.is_some() && args.name.is_none() {
        return 0;
    }
    let wanted = args.name.as_deref().unwrap_or("");
    let chosen = scenarios::ALL.iter().filter(|(name, _)| name.contains(wanted));
    let mut count = 0;
    for (name, scenario) in chosen {
        count += 1;
        let mode = if args.trace { TraceMode::Print } else { TraceMode::Ring };
        match attempt(|| rig::rig(mode), scenario) {
            (rig, Ok(())) => total.add(&rig.world.stats),
            (rig, Err(message)) => violations.push(Violation {
                place: format!("in scenario {name}"),
                message,
                replay: format!(
                    "cargo test --release -p fdbroker-core --test sim -- {name} --trace"
                ),
                trace: rig.world.trace.lines(),
            }),
        }
    }
    count
}

/// Runs one configuration and seed, and again with a trace when it breaks a promise.
fn run_seed(config: &str, seed: u64, steps: u64, trace: bool) -> Result<Stats, Box<Violation>> {
    let mode = if trace { TraceMode::Print } else { TraceMode::Off };
    let mut done = Stats::default();
    let mut life = 0;
    while done.steps < steps {
        let quota = STEPS_PER_WORLD.min(steps - done.steps);
        let live = |mode| {
            let mut rng = Rng::new(mix(seed, life, config));
            let setup = setups::named(config, &mut rng).expect("the name was checked");
            let quota = if config == "large" { steps } else { quota };
            attempt(|| World::new(setup, rng.next(), Trace::new(mode)), |world| world.run(quota))
        };
        let (world, outcome) = live(mode);
        if let Err(message) = outcome {
            let at = done.steps + world.stats.steps;
            let (again, _) = if trace { live(TraceMode::Off) } else { live(TraceMode::Ring) };
            return Err(Box::new(Violation {
                place: format!("in configuration {config}, seed {seed}, step {at}"),
                message,
                replay: format!(
                    "cargo test --release -p fdbroker-core --test sim -- \
                     --config {config} --seed {seed} --steps {steps} --trace"
                ),
                trace: again.trace.lines(),
            }));
        }
        done.add(&world.stats);
        life += 1;
    }
    Ok(done)
}

/// Runs something on a new thing; a panic of the core is a broken promise too.
fn attempt<T>(
    make: impl FnOnce() -> T,
    run: impl FnOnce(&mut T) -> model::Check,
) -> (T, model::Check) {
    let mut thing = make();
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut thing)));
    let outcome = outcome.unwrap_or_else(|_| Err(format!("panic: {}", last_panic())));
    (thing, outcome)
}

static LAST_PANIC: Mutex<Option<Arc<str>>> = Mutex::new(None);

/// Panics are told with their violation, not when they happen.
fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| {
        if let Ok(mut last) = LAST_PANIC.lock() {
            *last = Some(info.to_string().into());
        }
    }));
}

fn last_panic() -> Arc<str> {
    let last = LAST_PANIC.lock().ok().and_then(|mut last| last.take());
    last.unwrap_or_else(|| "of unknown cause".into())
}
