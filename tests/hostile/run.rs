//! Runs the scenarios that are asked for, and judges them. Must never call a scenario passed that
//! did not run.

use crate::attacks::hung;
use crate::daemon::DAEMON_FDS;
use crate::measure::Pair;
use crate::play::{Outcome, Plan, play};
use crate::scenarios::{ALL, Scenario};
use crate::users::{User, are_many};
use crate::{Args, table};
use nix::sched::sched_getaffinity;
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::Pid;
use std::fs::File;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// The highest allowed ratio of the good client's p99 under attack to its quiet p99.
const MOST_RATIO: f64 = 3.0;

/// A p99 that counts as a standstill also where times are not judged, if the quiet one is far below
/// it.
const STANDSTILL: Duration = Duration::from_millis(150);

/// How often a scenario is played, at most, when only its times are wrong; with more rounds from
/// the second time on.
const PLAYS: usize = 3;

/// How thorough a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Short, for continuous integration.
    Quick,
    #[default]
    Counts,
    /// Judges the good client's times.
    Times,
}

impl Mode {
    fn plan(self, args: &Args, cpus: [usize; 2]) -> Plan {
        let (usual, phase_ms) = match self {
            Mode::Quick => (1, 150),
            Mode::Counts => (5, 300),
            Mode::Times => (5, 2000),
        };
        let rounds = args.rounds.unwrap_or(usual);
        let phase = match args.seconds {
            Some(seconds) => Duration::from_secs(seconds) / u32::try_from(rounds).unwrap_or(1),
            None => Duration::from_millis(phase_ms),
        };
        Plan { rounds, phase, cpus, is_timed: self == Mode::Times }
    }
}

/// Says which time is too long, if any. Other programs use the processors, too: it counts only when
/// it is wrong again and again.
fn slowness(outcome: &Outcome, scenario: &Scenario, is_timed: bool) -> Option<String> {
    if outcome.tally.tries == 0 {
        return Some("the attackers did nothing".into());
    }
    let (ratio, p99_ns) = (outcome.ratio(), outcome.attack_p99_ns());
    if u128::from(p99_ns) > STANDSTILL.as_nanos() && ratio > 10.0 {
        return Some(format!("a standstill: p99 is {ratio:.1} times the quiet one"));
    }
    let mut judged = vec![("acquires", outcome.grants)];
    judged.extend(scenario.is_join_judged.then_some(("newcomers", outcome.joins)));
    let is_slow = |pair: &Pair| is_timed && !scenario.is_crowded && pair.p99_ratio() > MOST_RATIO;
    let (what, pair) = judged.into_iter().find(|(_, pair)| is_slow(pair))?;
    Some(format!("{what}: p99 is {:.1} times the quiet one", pair.p99_ratio()))
}

/// Runs the scenarios that the command line asks for.
pub fn run(args: &Args) -> ExitCode {
    let Some(cpus) = two_cpus() else {
        println!(
            "hostile: one processor is not enough: the daemon needs its own; run it where `nproc` says 2"
        );
        return ExitCode::from(77);
    };
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("it is a known limit");
    if hard < DAEMON_FDS {
        println!("needs a hard limit of {DAEMON_FDS} fds; it is {hard} (ulimit -Hn)");
        return ExitCode::from(77);
    }
    let plan = args.mode.plan(args, cpus);
    let mut json = args.json.as_ref().map(|path| File::create(path).expect("a file for --json"));
    let (mut passed, mut failed, mut not_run) = (0, 0, Vec::new());
    table::head(plan);
    let is_wanted = |name: &str| args.scenario.as_deref().is_none_or(|part| name.contains(part));
    let wanted = ALL.iter().filter(|it| is_wanted(it.name));
    for (scenario, user) in wanted.flat_map(|it| it.users.iter().map(move |user| (it, *user))) {
        if let Some(why) = scenario.why_not(user) {
            let uid = table::uid_name(scenario, user);
            not_run.push(format!("{} ({uid}): {why}", scenario.name));
            continue;
        }
        let mut outcome = play(scenario, user, plan);
        let mut slow = slowness(&outcome, scenario, plan.is_timed);
        for _ in 1..PLAYS {
            if outcome.wrong().is_empty() && slow.is_some() {
                outcome = play(scenario, user, Plan { rounds: plan.rounds * 2 + 1, ..plan });
                slow = slowness(&outcome, scenario, plan.is_timed);
            }
        }
        table::line(scenario, user, &outcome, plan);
        let mut failures = outcome.wrong();
        failures.extend(slow);
        if let Some(file) = &mut json {
            let line = table::json(scenario, user, &outcome, failures.is_empty());
            writeln!(file, "{line}").expect("write the file of --json");
        }
        if failures.is_empty() {
            passed += 1
        } else {
            failed += 1
        }
        for failure in failures {
            println!("  FAILED: {failure}");
        }
    }
    for line in &not_run {
        println!("not run: {line}");
    }
    if passed + failed == 0 && not_run.is_empty() {
        println!("hostile: no scenario has such a name (--list shows them)");
        return ExitCode::from(2);
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Two processors that this process may use.
fn two_cpus() -> Option<[usize; 2]> {
    let set = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let mut cpus = (0..nix::sched::CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false));
    Some([cpus.next()?, cpus.next()?])
}

impl Scenario {
    /// Why it cannot run here, if so.
    fn why_not(&self, user: User) -> Option<&'static str> {
        if !are_many() && user != User::Good {
            return Some("it needs another user; run it as root");
        }
        if self.needs_hung_file {
            return hung::why_not();
        }
        None
    }
}
