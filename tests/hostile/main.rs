//! Hostile clients against the real daemon, each scenario with a well-behaved client measured
//! beside it. README.md says how to read the tables.
//!
//! The daemon runs as an unprivileged user: root is exempt from the limits that matter. When the
//! test runs as root, the daemon, the good client and the attackers are users of their own;
//! otherwise all are one user, and scenarios that need two users are named as not run. Each
//! scenario starts a daemon and a good client (two connections of the real library), and plays
//! rounds: a quiet phase, the attack, and the wait until everything is as before. While another
//! user attacks, a newcomer of the good client's user must get in and be served.
//!
//! What makes the times comparable on two processors that other programs use, too:
//! - The daemon's loop has the first processor for itself; the good client, the attackers and the
//!   daemon's helper threads share the second one. As root the loop and the good client have
//!   real-time priority (SCHED_RR), so that neither the attackers nor other programs delay them;
//!   otherwise the attackers have SCHED_IDLE. The attack then shows in the good client's times only
//!   through the time that it takes the daemon.
//! - The quiet phase is not idle: as many processes as there are attackers make the same kind of
//!   system calls (messages over a socket pair) on the same processor, but to themselves.
//! - Quiet phases and attacks alternate. With --measure each figure is of all rounds together: what
//!   costs much once in a while shows. A scenario that is too slow is measured again, with twice
//!   the rounds, before it counts.
//!
//! A scenario fails when the good client or a newcomer sees an error or wrong bytes; when an
//! attacker gets what it should not have; when the daemon's ledger, fds or memory do not return to
//! where they were; when its log has an error or a panic; and with --measure when the good client's
//! p99 is above 3 times its quiet one. Must never end a process that it did not start, nor leave
//! one behind.

mod attack;
mod attacks;
#[path = "../common/mod.rs"]
mod common;
mod daemon;
mod good;
mod growth;
mod measure;
mod play;
mod run;
mod scenarios;
mod support;
mod table;
mod users;
mod wire;

use std::process::ExitCode;

const HELP: &str = "\
usage: tests/hostile/run.sh [OPTIONS]

--quick          fewer and shorter rounds, for CI
--measure        shows and judges the good client's times; for a machine that does nothing else
--seconds N      seconds of attack, and as many quiet ones, of each scenario, its rounds together (10 with --measure)
--json FILE      writes a JSON line for each scenario, with the times in us
--scenario NAME  only the scenarios whose name contains NAME
--rounds N       rounds of quiet and attack per scenario, after a first one (default 5; 1 with --quick)
--list           names of the scenarios, and what each does
-h, --help       this

As root: the daemon, the good client and the attackers are users of their own. Else they are one user, and what needs
several, or a file server of one's own, is named as not run. At least two processors are needed.";

#[derive(Debug, Default)]
pub(crate) struct Args {
    pub mode: run::Mode,
    list: bool,
    pub scenario: Option<String>,
    pub rounds: Option<usize>,
    pub seconds: Option<u64>,
    pub json: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == support::peer::PART_FLAG) {
        play(&arguments[1..]);
        return ExitCode::SUCCESS;
    }
    match parse(arguments.into_iter()) {
        Ok(Some(args)) if args.list => scenarios::list(),
        Ok(Some(args)) => return run::run(&args),
        Ok(None) => println!("{HELP}"),
        Err(message) => {
            eprintln!("hostile: {message}\n{HELP}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Args>, String> {
    let mut args = Args::default();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--quick" => args.mode = run::Mode::Quick,
            "--measure" => args.mode = run::Mode::Times,
            "--list" => args.list = true,
            "--scenario" => args.scenario = Some(value()?),
            "--rounds" => {
                let rounds = value()?.parse().ok().filter(|rounds| *rounds > 0);
                args.rounds = Some(rounds.ok_or("--rounds needs a number above 0")?);
            }
            "--seconds" => {
                let seconds = value()?.parse().ok().filter(|seconds| (1..=120).contains(seconds));
                args.seconds = Some(seconds.ok_or("--seconds needs a number from 1 to 120")?);
            }
            "--json" => args.json = Some(value()?.into()),
            "-h" | "--help" => return Ok(None),
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(Some(args))
}

/// Plays the part that this process was started for.
fn play(arguments: &[String]) {
    let (part, link) = support::peer::enter(arguments);
    match part.as_str() {
        "good" => good::play(link),
        "attacker" => attack::play(link),
        "hung file server" => support::fuse_server::play(link),
        other => panic!("nobody plays {other}"),
    }
}
