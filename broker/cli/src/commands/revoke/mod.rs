//! `fdbroker revoke`: ends allocations for everybody, and lists the processes that still hold them.
//! Must never end an allocation without the consent of its user.

mod args;

pub use args::Args;

use crate::acts::left::{Holding, Left};
use crate::acts::{
    Missing, Refused, RefusedList, Tally, Targets, Verb, act_on_each, allocations, id_of,
};
use crate::admin::{Admin, Selection};
use crate::error::{Context, Error, Result};
use crate::output::{Output, human_size};
use crate::subject;
use fdbroker_protocol::AllocationId;
use fdbroker_protocol::admin::{ActOutcome, LeaseRecord};
use serde::Serialize;
use std::collections::HashSet;
use std::io::{IsTerminal, Write};

#[derive(Serialize)]
struct Report {
    /// Objects that outlive the jobs named.
    stay: Vec<Refused>,
    dry_run: bool,
    revoked: u64,
    revoked_bytes: u64,
    ended_already: u64,
    holders: Vec<Holding>,
}

/// The result of one pass over the targets.
struct Pass {
    tally: Tally,
    /// Allocations that have ended in this pass or before it: their leases are listed.
    ids: HashSet<AllocationId>,
    /// Objects that outlive their job.
    stay: Vec<Refused>,
    /// Messages about targets without allocations.
    missing: Missing,
}

/// Revokes. Gives the exit status 4 if a subject has no allocation; the others are revoked.
pub fn run(args: Args) -> Result<u8> {
    let is_asking = !args.yes && !args.dry_run;
    if is_asking && !std::io::stdin().is_terminal() {
        let what = "revoke ends allocations for everybody, and cannot be undone";
        return Err(Error::Usage(format!(
            "{what}; add --yes, or --dry-run to see what it would end"
        )));
    }
    let mut admin = Admin::from_env()?;
    let targets =
        Targets::of(subject::with_jobs(args.subjects.clone(), args.jobs.clone()), &mut admin)?;
    let mut said = Missing::default();
    if is_asking {
        let pass = pass(&mut admin, &targets, true)?;
        pass.missing.say();
        said = pass.missing.clone();
        if !agrees(&pass, holders(&mut admin, &pass.ids)?.count())? {
            return Err(Error::Other("nothing was revoked".into()));
        }
    }
    let pass = pass(&mut admin, &targets, args.dry_run)?;
    let left = holders(&mut admin, &pass.ids)?;
    let missing = pass.missing.clone();
    show(&args, pass, left)?;
    missing.say_beside(&said);
    Ok(missing.exit_status())
}

fn pass(admin: &mut Admin, targets: &Targets, is_dry: bool) -> Result<Pass> {
    let (mut tally, mut ids, mut stay) = (Tally::default(), HashSet::new(), Vec::new());
    let missing = act_on_each(admin, Verb::REVOKE, targets, is_dry, |_, outcome, record| {
        tally.add(outcome, record);
        match outcome {
            ActOutcome::Kept => stay.push(Refused::new(outcome, record)),
            _ => _ = ids.insert(id_of(record)),
        }
        Ok(())
    })?;
    Ok(Pass { tally, ids, stay, missing })
}

/// The processes that have leases of these allocations.
fn holders(admin: &mut Admin, ids: &HashSet<AllocationId>) -> Result<Left> {
    let mut left = Left::default();
    let selection = match ids.iter().next() {
        Some(id) if ids.len() == 1 => Selection::allocation(*id),
        _ => Selection::ALL,
    };
    admin.each_page(selection, |page: &[LeaseRecord]| {
        for lease in page {
            let id = AllocationId { slot: lease.slot.get(), generation: lease.generation.get() };
            if ids.contains(&id) {
                left.add_lease(lease);
            }
        }
        Ok(())
    })?;
    Ok(left)
}

fn agrees(pass: &Pass, holders: usize) -> Result<bool> {
    let count = allocations(pass.tally.of(ActOutcome::Done));
    let size = human_size(pass.tally.done_bytes);
    let question = format!("end {count} ({size}) for everybody, {holders} holders? [y/N] ");
    std::io::stderr().write_all(question.as_bytes()).context(|| "write to the terminal")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context(|| "read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn show(args: &Args, pass: Pass, left: Left) -> Result<()> {
    let (revoked, ended) = (pass.tally.of(ActOutcome::Done), pass.tally.of(ActOutcome::Ended));
    let mut out = Output::stdout();
    if args.json {
        out.json_line(&Report {
            stay: pass.stay,
            dry_run: args.dry_run,
            revoked,
            revoked_bytes: pass.tally.done_bytes,
            ended_already: ended,
            holders: left.into_sorted(),
        })?;
        return out.finish();
    }
    let would = if args.dry_run { "would be " } else { "" };
    let (count, size) = (allocations(revoked), human_size(pass.tally.done_bytes));
    let already = if ended > 0 { format!("; {ended} ended already") } else { String::new() };
    out.text(&format!("{count} ({size}) {would}revoked{already}\n"))?;
    if !pass.stay.is_empty() {
        out.text("named objects outlive their job; these stay (`end_with_job` of the configuration ends them, too):\n\n")?;
        let mut list = RefusedList::new(false);
        pass.stay.iter().try_for_each(|it| list.write(it, &mut out))?;
        out.text("\n")?;
    }
    if pass.ids.is_empty() {
        return out.finish();
    }
    if left.count() == 0 {
        out.text("nobody holds a lease of it\n")?;
    } else {
        out.text("what was handed out cannot be taken back; these hold it until they give it back or end:\n\n")?;
        left.write(&mut out)?;
    }
    out.finish()
}
