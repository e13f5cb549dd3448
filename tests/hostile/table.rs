//! The two tables: counts, which are the same on any machine, and times (`--measure`). README.md says how to read them. Must
//! never decide anything.

use crate::measure::{Phase, median};
use crate::play::{Outcome, Plan};
use crate::scenarios::Scenario;
use crate::users::User;

pub fn uid_name(scenario: &Scenario, user: User) -> &'static str {
    match user {
        User::Good => "same",
        _ if scenario.own_users => "many",
        _ => "other",
    }
}

pub fn head(plan: Plan) {
    match plan.is_timed {
        true => println!(
            "{:<20} {:>5} {:>9} {:>11} {:>10} {:>12} {:>6} {:>6} {:>5} {:>9}",
            "scenario",
            "uid",
            "quiet p99",
            "quiet worst",
            "attack p99",
            "attack worst",
            "p99 x",
            "worst x",
            "busy",
            "tries/s"
        ),
        false => println!(
            "{:<20} {:>5} {:>8} {:>8} {:>8} {:>8} {:>9} {:>6} {:>13} {:>8} {:>8} {:>6} {:>5}",
            "scenario",
            "uid",
            "quiet/s",
            "attack/s",
            "tries/s",
            "refusals",
            "evictions",
            "wake",
            "records",
            "peak KiB",
            "mem KiB",
            "errors",
            "leaks"
        ),
    }
}

pub fn line(scenario: &Scenario, user: User, outcome: &Outcome, plan: Plan) {
    let name = uid_name(scenario, user);
    match plan.is_timed {
        true => times(scenario.name, name, outcome, plan),
        false => counts(scenario.name, name, outcome, plan),
    }
}

/// Times of the good client in us, and how often the attack ones are the quiet p99.
fn times(scenario: &str, uid: &str, outcome: &Outcome, plan: Plan) {
    let us = |ns: u64| ns as f64 / 1000.0;
    let p99 = |phases: &[Phase]| us(median(phases.iter().map(|phase| phase.p99_ns)));
    let worst = |phases: &[Phase]| us(median(phases.iter().map(|phase| phase.worst_ns)));
    let (quiet, attack) = (&outcome.quiet, &outcome.attacked);
    let quiet_p99 = p99(quiet).max(0.001);
    println!(
        "{scenario:<20} {uid:>5} {:>9.0} {:>11.0} {:>10.0} {:>12.0} {:>6.2} {:>7.2} {:>4.0}% {:>9.0}",
        p99(quiet),
        worst(quiet),
        p99(attack),
        worst(attack),
        p99(attack) / quiet_p99,
        worst(attack) / quiet_p99,
        outcome.busy * 100.0,
        per_second(outcome.tally.tries, attack, plan),
    );
}

fn counts(scenario: &str, uid: &str, outcome: &Outcome, plan: Plan) {
    let served =
        |phases: &[Phase]| per_second(phases.iter().map(|phase| phase.count).sum(), phases, plan);
    println!(
        "{scenario:<20} {uid:>5} {:>8.0} {:>8.0} {:>8.0} {:>8} {:>9} {:>6} {:>13} {:>+8} {:>+8} {:>6} {:>5}",
        served(&outcome.quiet),
        served(&outcome.attacked),
        per_second(outcome.tally.tries, &outcome.attacked, plan),
        outcome.refusals,
        outcome.evictions,
        outcome.work.longest_wake_us,
        format!("{}/{}", outcome.work.records, outcome.work.most_records),
        outcome.peak_kib,
        outcome.memory_kib,
        outcome.errors.len(),
        outcome.leaks.len(),
    );
}

fn per_second(count: u64, phases: &[Phase], plan: Plan) -> f64 {
    count as f64 / (plan.phase.as_secs_f64() * phases.len() as f64).max(0.001)
}
