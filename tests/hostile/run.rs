//! Runs scenarios and judges them: quiet phases and attacks in turn, the wait until everything is as before, the table. Must
//! never call a scenario passed that did not run.

use crate::attack::Tally;
use crate::attacks::hung::{self, HungServer};
use crate::daemon::{Counts, Daemon};
use crate::measure::{Phase, median};
use crate::scenarios::{ALL, Scenario};
use crate::support::peer::{Peer, Rank, Role};
use crate::users::{User, are_many};
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The highest allowed ratio of the good client's p99 under attack to its quiet p99.
const MOST_RATIO: f64 = 3.0;

/// A p99 that counts as a standstill also where times are not judged, if the quiet one is far below it.
const STANDSTILL: Duration = Duration::from_millis(150);

/// How often a scenario is played, at most, when only its times are wrong; with twice the rounds from the second time on.
const PLAYS: usize = 3;

/// How long the daemon may take to be as before: it waits one second for a hung close, and ten for a hello.
const TIME_TO_SETTLE: Duration = Duration::from_secs(20);

/// Growth of the daemon's own memory that is no leak: its tables, which grow to what the caps allow and stay so.
const MEMORY_SLACK_KIB: i64 = 3 * 1024;

/// How long the daemon may take to give memory back: it does so a second after clients have ended.
const TIME_TO_GIVE_BACK: Duration = Duration::from_secs(6);

/// How long one run is.
#[derive(Clone, Copy)]
struct Plan {
    rounds: usize,
    phase: Duration,
    cpus: [usize; 2],
    /// Whether the times are judged. Not with `quick`, which finds errors and leaks, and may run beside other programs.
    is_timed: bool,
}

/// The result of a scenario.
#[derive(Default)]
struct Outcome {
    quiet: Vec<Phase>,
    attacked: Vec<Phase>,
    /// Share of the time that the daemon was busy under attack.
    busy: f64,
    tally: Tally,
    errors: Vec<String>,
    leaks: Vec<String>,
    memory_kib: i64,
}

impl Outcome {
    fn ratio(&self) -> f64 {
        let p99 = |phases: &[Phase]| median(phases.iter().map(|phase| phase.p99_ns)) as f64;
        p99(&self.attacked) / p99(&self.quiet).max(1.0)
    }

    fn failures(&self, is_timed: bool) -> Vec<String> {
        let mut failures = self.errors.clone();
        failures.extend(self.leaks.iter().cloned());
        let p99_ns = median(self.attacked.iter().map(|phase| phase.p99_ns));
        let stands_still = u128::from(p99_ns) > STANDSTILL.as_nanos() && self.ratio() > 10.0;
        if stands_still || (is_timed && !(self.ratio() <= MOST_RATIO)) {
            failures.push(format!("p99 is {:.1} times the quiet one", self.ratio()));
        }
        failures
    }
}

/// Runs the scenarios that the command line asks for.
pub fn run(quick: bool, only: Option<&str>, rounds: Option<usize>) -> ExitCode {
    let Some(cpus) = two_cpus() else {
        println!(
            "hostile: one processor is not enough: the daemon needs its own; run it where `nproc` says 2"
        );
        return ExitCode::from(77);
    };
    let rounds = rounds.unwrap_or(if quick { 3 } else { 5 });
    let phase = Duration::from_millis(if quick { 150 } else { 300 });
    let plan = Plan { rounds, phase, cpus, is_timed: !quick };
    let (mut passed, mut failed, mut not_run) = (0, 0, Vec::new());
    println!(
        "{:<26} {:>5} {:>10} {:>10} {:>6} {:>5} {:>10} {:>6} {:>8} {:>6}",
        "scenario",
        "uid",
        "quiet p99",
        "attack p99",
        "ratio",
        "busy",
        "tries/s",
        "errors",
        "mem KiB",
        "leaks"
    );
    let wanted = ALL.iter().filter(|it| only.is_none_or(|name| it.name.contains(name)));
    for (scenario, user) in wanted.flat_map(|it| it.users.iter().map(move |user| (it, *user))) {
        if let Some(why) = scenario.why_not(user) {
            not_run.push(format!("{} ({}): {why}", scenario.name, uid_name(user)));
            continue;
        }
        let mut outcome = play(scenario, user, plan);
        // Other programs use the processors, too: only times that are too long again and again count.
        for _ in 1..PLAYS {
            if outcome.failures(false).is_empty() && !outcome.failures(plan.is_timed).is_empty() {
                outcome = play(scenario, user, Plan { rounds: plan.rounds * 2, ..plan });
            }
        }
        print(scenario, user, &outcome, plan);
        let failures = outcome.failures(plan.is_timed);
        match failures.is_empty() {
            true => passed += 1,
            false => failed += 1,
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

fn uid_name(user: User) -> &'static str {
    match user {
        User::Good => "same",
        _ => "other",
    }
}

fn print(scenario: &Scenario, user: User, outcome: &Outcome, plan: Plan) {
    let us = |phases: &[Phase]| median(phases.iter().map(|phase| phase.p99_ns)) as f64 / 1000.0;
    let attacked = plan.phase.as_secs_f64() * outcome.attacked.len() as f64;
    println!(
        "{:<26} {:>5} {:>7.0} us {:>7.0} us {:>6.2} {:>4.0}% {:>10.0} {:>6} {:>+8} {:>6}",
        scenario.name,
        uid_name(user),
        us(&outcome.quiet),
        us(&outcome.attacked),
        outcome.ratio(),
        outcome.busy * 100.0,
        outcome.tally.tries as f64 / attacked.max(0.001),
        outcome.errors.len(),
        outcome.memory_kib,
        outcome.leaks.len(),
    );
}

/// Two processors that this process may use.
fn two_cpus() -> Option<[usize; 2]> {
    let set = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let mut cpus = (0..nix::sched::CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false));
    Some([cpus.next()?, cpus.next()?])
}

/// One scenario from the start of the daemon to its end.
fn play(scenario: &Scenario, user: User, plan: Plan) -> Outcome {
    let mut outcome = Outcome::default();
    let daemon = Daemon::start(scenario.daemon, plan.cpus);
    if let Err(error) = rounds(scenario, user, plan, &daemon, &mut outcome) {
        outcome.errors.push(error);
    }
    let _ = settle(&daemon, |counts| counts.uses.connections == 0);
    outcome.errors.extend(daemon.end());
    outcome
}

fn rounds(
    scenario: &Scenario,
    user: User,
    plan: Plan,
    daemon: &Daemon,
    outcome: &mut Outcome,
) -> Result<(), String> {
    let role = Role { part: "good", user: User::Good, cpu: plan.cpus[1], rank: Rank::Measured };
    let mut good = Peer::start(role);
    expect_ok(good.ask(&daemon.socket().display().to_string())?)?;
    expect_ok(good.ask("touch")?)?;
    let victims = good.ask("handles")?;
    good.ask("measure 50")?;
    expect_ok(good.ask("touch")?)?;
    let before = settled_counts(daemon);
    let memory_before = daemon.memory_kib();
    let mut busy = Duration::ZERO;
    for round in 0..=plan.rounds {
        // The first round warms up: it is not measured, but everything must be as before after it.
        let is_measured = round > 0;
        let phase = if is_measured { plan.phase } else { plan.phase / 2 };
        let gang =
            |name, hung: &str| gang(name, scenario, user, plan, daemon, &victims, round, hung);
        let (quiet, _) = measure(phase, &mut good, gang("", "")?, None)?;
        let hung = match scenario.needs_hung_file {
            true => Some(HungServer::start(daemon.dir(), plan.cpus[1])?),
            false => None,
        };
        let path = hung.as_ref().map(|server| format!("{} {}", server.path, user.uid()));
        let attackers = gang(scenario.name, &path.unwrap_or_default())?;
        daemon.place(plan.cpus);
        let busy_before = daemon.busy();
        let (attacked, tally) = measure(phase, &mut good, attackers, hung)?;
        busy += daemon.busy().saturating_sub(busy_before);
        if user != User::Good {
            expect_ok(good.ask("join")?).map_err(|error| format!("a newcomer: {error}"))?;
        }
        note_errors(&[&quiet, &attacked], outcome);
        expect_ok(good.ask("touch")?)?;
        if let Err(counts) = settle(daemon, |counts| *counts == before) {
            outcome.leaks.push(difference(&before, &counts));
            return Ok(());
        }
        if is_measured {
            outcome.quiet.push(quiet);
            outcome.attacked.push(attacked);
            outcome.tally.tries += tally.tries;
        }
        outcome.tally.gained += tally.gained;
    }
    outcome.busy = busy.as_secs_f64() / (plan.phase.as_secs_f64() * (plan.rounds as f64 + 0.5));
    let until = Instant::now() + TIME_TO_GIVE_BACK;
    loop {
        outcome.memory_kib = daemon.memory_kib() - memory_before;
        if outcome.memory_kib <= MEMORY_SLACK_KIB {
            break;
        }
        if Instant::now() > until {
            outcome
                .leaks
                .push(format!("memory: {memory_before} KiB, and now {} more", outcome.memory_kib));
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if outcome.tally.gained > 0 {
        outcome.errors.push(format!("the attacker gained {} things", outcome.tally.gained));
    }
    if outcome.tally.tries == 0 {
        outcome.errors.push("the attacker did nothing".into());
    }
    Ok(())
}

/// Has the good client measure, then ends the attackers: first the hung server, because its clients cannot end while a close
/// of theirs hangs.
fn measure(
    time: Duration,
    good: &mut Peer,
    attackers: Vec<Peer>,
    hung: Option<HungServer>,
) -> Result<(Phase, Tally), String> {
    let line = good.ask(&format!("measure {}", time.as_millis()))?;
    let phase = Phase::parse(&line).ok_or(line)?;
    drop(hung);
    let mut tally = Tally::default();
    for attacker in attackers {
        let last = attacker.end()?;
        let one = Tally::parse(&last).ok_or(last)?;
        tally.tries += one.tries;
        tally.gained += one.gained;
    }
    Ok((phase, tally))
}

/// Starts the attackers, or with no name as many harmless processes, and waits until they are under way.
#[allow(clippy::too_many_arguments)] // what an attacker is told
fn gang(
    name: &str,
    scenario: &Scenario,
    user: User,
    plan: Plan,
    daemon: &Daemon,
    victims: &str,
    round: usize,
    hung: &str,
) -> Result<Vec<Peer>, String> {
    // Root opens the file that only root may open; the attack then becomes the user itself.
    let user = if hung.is_empty() { user } else { User::Root };
    let role = Role { part: "attacker", user, cpu: plan.cpus[1], rank: Rank::Behind };
    let mut peers: Vec<Peer> = (0..scenario.attackers).map(|_| Peer::start(role)).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        peer.say(name);
        peer.say(&daemon.socket().display().to_string());
        peer.say(&(round * 100 + number).to_string());
        peer.say(hung);
        peer.say(victims);
    }
    for peer in &mut peers {
        let line = peer.hear()?;
        if line != "under way" {
            return Err(format!("the attacker of {name:?} said {line:?}"));
        }
    }
    Ok(peers)
}

fn expect_ok(answer: String) -> Result<(), String> {
    if answer == "OK" { Ok(()) } else { Err(format!("the good client: {answer}")) }
}

fn note_errors(phases: &[&Phase], outcome: &mut Outcome) {
    for phase in phases {
        if phase.errors > 0 {
            let Phase { errors, texts, .. } = phase;
            outcome.errors.push(format!("{errors} errors of the good client: {texts}"));
        }
        if phase.count == 0 {
            outcome.errors.push("the good client was not served at all".into());
        }
    }
}

/// Waits until the counts are as wanted; returns the counts if they do not get there.
fn settle(daemon: &Daemon, is_good: impl Fn(&Counts) -> bool) -> Result<(), Box<Counts>> {
    let until = Instant::now() + TIME_TO_SETTLE;
    loop {
        let counts = daemon.counts();
        if is_good(&counts) {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(Box::new(counts));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The counts, read until two readings agree.
fn settled_counts(daemon: &Daemon) -> Counts {
    let mut last = daemon.counts();
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(5));
        let now = daemon.counts();
        if now == last {
            break;
        }
        last = now;
    }
    last
}

fn difference(before: &Counts, after: &Counts) -> String {
    let (before, after) = (format!("{before:?}"), format!("{after:?}"));
    let fields = before.split(", ").zip(after.split(", ")).filter(|(one, other)| one != other);
    let fields: Vec<String> = fields.map(|(one, other)| format!("{one} became {other}")).collect();
    format!("not as before: {}", fields.join(", "))
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
