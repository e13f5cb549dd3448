//! Runs worlds and scenarios, several at a time. Configuration and seed alone decide a run,
//! whatever its thread. Must never let one run see another.

use crate::args::Args;
use crate::report::{Stats, Trace, TraceMode, Violation};
use crate::rng::{Rng, mix};
use crate::world::World;
use crate::{model, objects, rig, scenarios, setups};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Seeds that run when none is asked for.
pub const SEEDS: [u64; 4] = [1, 2, 3, 4];
/// Steps of a whole run when none are asked for: seconds, for `cargo test`. `run.sh` asks for more.
const STEPS: u64 = 200_000;
/// Steps of one world; then a new one of the same seed begins. Young worlds show other things than
/// old ones.
pub const STEPS_PER_WORLD: u64 = 12_000;

/// The counts of a run, or the promise that it broke.
pub type Outcome = Result<Stats, Box<Violation>>;

/// One configuration with one seed.
#[derive(Clone, Debug)]
pub struct Run {
    pub config: &'static str,
    pub seed: u64,
    pub steps: u64,
}

/// The runs that the arguments ask for.
pub fn planned(args: &Args) -> Vec<Run> {
    if args.name.is_some() {
        return Vec::new();
    }
    let configs = configs(args);
    let seeds = args.seed.map_or(SEEDS.to_vec(), |seed| vec![seed]);
    let steps = args.steps.unwrap_or(STEPS).div_ceil((configs.len() * seeds.len()) as u64);
    let runs = configs.iter().flat_map(|config| seeds.iter().map(move |seed| (config, *seed)));
    runs.map(|(config, seed)| Run { config, seed, steps }).collect()
}

/// The configurations that the arguments ask for.
pub fn configs(args: &Args) -> Vec<&'static str> {
    let wanted = |name: &&str| args.config.as_ref().is_none_or(|config| config == name);
    all_configs().filter(wanted).collect()
}

/// The names of all configurations.
pub fn all_configs() -> impl Iterator<Item = &'static str> {
    setups::names().chain([objects::CONFIG])
}

/// Worlds that run at a time.
pub fn threads(args: &Args) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let asked = args.threads.map_or(cores, |threads| threads.max(1) as usize);
    if args.trace { 1 } else { asked }
}

/// Runs all of them, several at a time; their outcomes in order. With `--fail-fast` none begins
/// after a broken promise.
pub fn run_all(runs: &[Run], args: &Args) -> Vec<Outcome> {
    let failed = AtomicBool::new(false);
    let outcomes: Vec<Mutex<Option<Outcome>>> = runs.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        // The last runs of the list take longest: they go first.
        while let Some(at) = runs.len().checked_sub(1 + next.fetch_add(1, Ordering::Relaxed)) {
            if args.fail_fast && failed.load(Ordering::Relaxed) {
                return;
            }
            let outcome = run(&runs[at], args.trace);
            failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
            *outcomes[at].lock().expect("nobody panics with it") = Some(outcome);
        }
    };
    std::thread::scope(|scope| (0..threads(args)).for_each(|_| drop(scope.spawn(work))));
    outcomes.into_iter().filter_map(|one| one.into_inner().ok().flatten()).collect()
}

/// Runs one configuration and seed, and again with a trace when it breaks a promise.
pub fn run(run: &Run, trace: bool) -> Outcome {
    let Run { config, seed, steps } = *run;
    if config == objects::CONFIG {
        return run_objects(seed, steps, trace);
    }
    let mode = if trace { TraceMode::Print } else { TraceMode::Off };
    let mut done = Stats::default();
    let mut life = 0;
    while done.steps < steps {
        let left = steps - done.steps;
        let quota = if config == "large" { left } else { STEPS_PER_WORLD.min(left) };
        let live = |mode| {
            let mut rng = Rng::new(mix(seed, life, config));
            let setup = setups::named(config, &mut rng).expect("the name is of the list");
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
                    "tests/sim/run.sh --config {config} --seed {seed} --steps {steps} --trace"
                ),
                trace: again.trace.lines(),
            }));
        }
        done.add(&world.total());
        life += 1;
    }
    Ok(done)
}

/// Runs worlds of objects with one seed, and one of them again with a trace when it breaks a
/// promise.
fn run_objects(seed: u64, steps: u64, trace: bool) -> Outcome {
    let mode = if trace { TraceMode::Print } else { TraceMode::Off };
    let (mut done, mut life) = (Stats::default(), 0);
    while done.steps < steps {
        let (world_seed, quota) = (mix(seed, life, objects::CONFIG), steps - done.steps);
        let live = |mode| {
            attempt(
                || objects::world(world_seed, Trace::new(mode)),
                |world| objects::run(world, quota),
            )
        };
        let (world, outcome) = live(mode);
        if let Err(message) = outcome {
            let at = done.steps + world.stats.steps;
            let (again, _) = if trace { live(TraceMode::Off) } else { live(TraceMode::Ring) };
            let config = objects::CONFIG;
            return Err(Box::new(Violation {
                place: format!("in configuration {config}, seed {seed}, step {at}"),
                message,
                replay: format!(
                    "tests/sim/run.sh --config {config} --seed {seed} --steps {steps} --trace"
                ),
                trace: again.trace.lines(),
            }));
        }
        done.add(&objects::total(&world));
        life += 1;
    }
    Ok(done)
}

/// Runs the scenarios that the arguments ask for.
pub fn run_scenarios(args: &Args) -> Vec<Outcome> {
    if args.config.is_some() || args.seed.is_some() && args.name.is_none() {
        return Vec::new();
    }
    let wanted = args.name.as_deref().unwrap_or("");
    let is_left_out = |name: &str| args.without.iter().any(|out| name.contains(out.as_str()));
    let chosen =
        scenarios::ALL.iter().filter(|(name, _)| name.contains(wanted) && !is_left_out(name));
    let mode = if args.trace { TraceMode::Print } else { TraceMode::Ring };
    let tell = |(name, scenario): &(&str, _)| match attempt(|| rig::rig(mode), scenario) {
        (rig, Ok(())) => Ok(rig.world.total()),
        (rig, Err(message)) => Err(Box::new(Violation {
            place: format!("in scenario {name}"),
            message,
            replay: format!("tests/sim/run.sh {name} --trace"),
            trace: rig.world.trace.lines(),
        })),
    };
    let mut outcomes = Vec::new();
    for outcome in chosen.map(tell) {
        outcomes.push(outcome);
        if args.fail_fast && outcomes.last().is_some_and(Result::is_err) {
            break;
        }
    }
    outcomes
}

/// Makes a world and runs it; a panic of the core counts as a broken promise.
fn attempt<T>(
    make: impl FnOnce() -> T,
    run: impl FnOnce(&mut T) -> model::Check,
) -> (T, model::Check) {
    let mut thing = make();
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut thing)));
    let outcome = outcome.unwrap_or_else(|_| Err(format!("panic: {}", last_panic())));
    (thing, outcome)
}

thread_local! {
    /// The text of the last panic on this thread, which runs one world at a time.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps panics quiet when they happen: the text of the violation has them.
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| {
        let said = info.to_string().replace('\n', " ");
        LAST_PANIC.with(|last| *last.borrow_mut() = Some(said));
    }));
}

fn last_panic() -> String {
    let last = LAST_PANIC.with(|last| last.borrow_mut().take());
    last.unwrap_or_else(|| "of unknown cause".to_owned())
}
