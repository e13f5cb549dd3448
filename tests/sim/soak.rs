//! Runs random seeds until a signal stops it. Prints a line a minute, and each violation at once
//! with the command that replays it. Must never end by itself.

use crate::args::Args;
use crate::report::{self, Stats};
use crate::rng::Rng;
use crate::runner::{self, Run, STEPS_PER_WORLD};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between two lines.
const LINE_EVERY: Duration = Duration::from_secs(60);
/// Steps of one run: several worlds, yet few enough to end soon after a signal.
const STEPS: u64 = 2 * STEPS_PER_WORLD;

#[derive(Debug, Default)]
struct Totals {
    stats: Stats,
    runs: u64,
    violations: usize,
}

/// Runs until SIGINT or SIGTERM; then prints the totals. 1 if a promise was broken.
pub fn soak(args: &Args) -> ExitCode {
    let signals = match stop_signals() {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("sim: cannot wait for signals: {error}; run without --soak");
            return ExitCode::FAILURE;
        }
    };
    let first = args.seed.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("sim: soak from seed {first}; Ctrl-C ends it");
    let (began, count, stop) = (Instant::now(), AtomicU64::new(0), AtomicBool::new(false));
    let totals = Mutex::new(Totals::default());
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            soak_one(args, first, count.fetch_add(1, Ordering::Relaxed), &totals);
        }
    };
    std::thread::scope(|scope| {
        (0..runner::threads(args)).for_each(|_| drop(scope.spawn(work)));
        let mut next_line = LINE_EVERY;
        while !stopped(&signals, next_line.saturating_sub(began.elapsed())) {
            line(&totals, began.elapsed());
            next_line += LINE_EVERY;
        }
        stop.store(true, Ordering::Relaxed);
    });
    let totals = totals.into_inner().unwrap_or_default();
    println!("sim: soak of {} runs from seed {first}", totals.runs);
    report::print(&totals.stats, totals.violations, began.elapsed().as_secs_f64().max(1e-9));
    println!("{} passed, {} failed", totals.runs - totals.violations as u64, totals.violations);
    if totals.violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Blocks the signals that end the soak. Call it before other threads start: they inherit the mask.
fn stop_signals() -> nix::Result<SignalFd> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGINT);
    set.add(Signal::SIGTERM);
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)
}

/// Waits for a signal for at most `wait`; whether one came.
fn stopped(signals: &SignalFd, wait: Duration) -> bool {
    let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    let wait = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
    poll(&mut fds, wait).is_ok_and(|ready| ready > 0)
}

fn soak_one(args: &Args, first: u64, number: u64, totals: &Mutex<Totals>) {
    let configs = runner::configs(args);
    let config = configs[(number % configs.len() as u64) as usize];
    // Short enough to type.
    let seed = Rng::new(first.wrapping_add(number)).next() >> 32;
    let outcome = runner::run(&Run { config, seed, steps: STEPS }, false);
    let Ok(mut totals) = totals.lock() else { return };
    totals.runs += 1;
    match outcome {
        Ok(stats) => totals.stats.add(&stats),
        Err(violation) => {
            totals.violations += 1;
            println!("{violation}");
        }
    }
}

fn line(totals: &Mutex<Totals>, elapsed: Duration) {
    let Ok(totals) = totals.lock() else { return };
    let steps = totals.stats.steps;
    println!(
        "sim: {} min, {} runs, {steps} steps, {:.0} steps/s, violations {}",
        elapsed.as_secs() / 60,
        totals.runs,
        steps as f64 / elapsed.as_secs_f64(),
        totals.violations
    );
}
