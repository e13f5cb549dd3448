//! The two tables: counts, which are the same on any machine, and times (`--measure`). README.md
//! says how to read them. Must never decide anything.

use crate::measure::{Pair, Phase, Pooled};
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
    if plan.is_timed {
        println!(
            "{:<20} {:>5} {:>9} {:>11} {:>10} {:>12} {:>6} {:>7} {:>9} {:>9} {:>10} {:>5} {:>9}",
            "scenario",
            "uid",
            "quiet p99",
            "quiet worst",
            "attack p99",
            "attack worst",
            "p99 x",
            "worst x",
            "join p99",
            "its quiet",
            "join worst",
            "busy",
            "tries/s"
        )
    } else {
        println!(
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
        )
    }
}

pub fn line(scenario: &Scenario, user: User, outcome: &Outcome, plan: Plan) {
    let name = uid_name(scenario, user);
    if plan.is_timed {
        times(scenario.name, name, outcome, plan)
    } else {
        counts(scenario.name, name, outcome, plan)
    }
}

/// ns in us.
fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// Times of the good client in us, and how often the attack ones are the quiet p99.
fn times(scenario: &str, uid: &str, outcome: &Outcome, plan: Plan) {
    let Outcome { grants, joins, .. } = outcome;
    println!(
        "{scenario:<20} {uid:>5} {:>9.0} {:>11.0} {:>10.0} {:>12.0} {:>6.2} {:>7.1} {:>9.0} {:>9.0} {:>10.0} {:>4.0}% {:>9.0}",
        us(grants.quiet.p99_ns),
        us(grants.quiet.worst_ns),
        us(grants.attack.p99_ns),
        us(grants.attack.worst_ns),
        grants.p99_ratio(),
        grants.worst_ratio(),
        us(joins.attack.p99_ns),
        us(joins.quiet.p99_ns),
        us(joins.attack.worst_ns),
        outcome.busy * 100.0,
        per_second(outcome.tally.tries, &outcome.attacked, plan),
    );
}

/// The same as a line of JSON; times in us. 0 where nothing was measured.
pub fn json(scenario: &Scenario, user: User, outcome: &Outcome, is_passed: bool) -> String {
    let pooled = |it: Pooled| {
        let (p99, worst) = (us(it.p99_ns), us(it.worst_ns));
        format!("{{\"count\":{},\"p99_us\":{p99:.1},\"worst_us\":{worst:.1}}}", it.count)
    };
    let pair = |it: Pair| {
        let (quiet, attack, ratio) = (pooled(it.quiet), pooled(it.attack), it.p99_ratio());
        format!("{{\"quiet\":{quiet},\"attack\":{attack},\"p99_ratio\":{ratio:.2}}}")
    };
    format!(
        "{{\"scenario\":\"{}\",\"uid\":\"{}\",\"acquires\":{},\"joins\":{},\"memory_kib\":{},\"longest_wake_us\":{},\"passed\":{is_passed}}}",
        scenario.name,
        uid_name(scenario, user),
        pair(outcome.grants),
        pair(outcome.joins),
        outcome.memory_kib,
        outcome.work.longest_wake_us,
    )
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
