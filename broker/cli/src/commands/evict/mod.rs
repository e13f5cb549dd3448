//! `fdbroker evict`: has the broker close fds that it can get again. Must never hide an fd that it
//! could not close.

mod args;

pub use args::Args;

use crate::acts::{Refused, RefusedList, Tally, Targets, Verb, act_on_each, allocations};
use crate::admin::Admin;
use crate::error::{Result, exit};
use crate::output::{Output, human_size};
use crate::subject;
use fdbroker_protocol::admin::ActOutcome;
use serde::Serialize;

#[derive(Serialize)]
struct Summary {
    dry_run: bool,
    evicted: u64,
    evicted_bytes: u64,
    evicted_already: u64,
}

/// Evicts. Gives the exit status 1 if an allocation that was named by itself stays, 4 if a subject
/// has no allocation.
pub fn run(args: Args) -> Result<u8> {
    let mut admin = Admin::from_env()?;
    let mut out = Output::stdout();
    let (mut tally, mut list) = (Tally::default(), RefusedList::new(args.json));
    let mut status = exit::OK;
    let targets = Targets::of(subject::with_jobs(args.subjects, args.jobs), &mut admin)?;
    let (verb, is_dry) = (Verb::EVICT, args.dry_run);
    let missing = act_on_each(&mut admin, verb, &targets, is_dry, |target, outcome, record| {
        tally.add(outcome, record);
        // The broker has no fd of these allocations.
        let has_none =
            matches!(outcome, ActOutcome::Evicted | ActOutcome::Ended | ActOutcome::Reserved);
        if outcome == ActOutcome::Done || has_none {
            return Ok(());
        }
        if target.is_one {
            status = exit::ERROR;
        }
        list.write(&Refused::new(outcome, record), &mut out)
    })?;
    let evicted = tally.of(ActOutcome::Done);
    if args.json {
        let summary = Summary {
            dry_run: args.dry_run,
            evicted,
            evicted_bytes: tally.done_bytes,
            evicted_already: tally.of(ActOutcome::Evicted),
        };
        list.end_json(&mut out)?;
        out.text(",\"summary\":")?;
        out.json(&summary)?;
        out.text("}\n")?;
    } else {
        let blank = if list.is_empty() { "" } else { "\n" };
        let would = if args.dry_run { "would be " } else { "" };
        let (count, size) = (allocations(evicted), human_size(tally.done_bytes));
        let others = match tally.others() {
            others if others.is_empty() => others,
            others => format!("; {others}"),
        };
        out.text(&format!("{blank}{count} ({size}) {would}evicted{others}\n"))?;
    }
    out.finish()?;
    missing.say();
    Ok(status.max(missing.exit_status()))
}
