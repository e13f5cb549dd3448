//! `fdbroker limits`: prints caps, or changes some at run time. Must never change a cap before all
//! arguments are understood.

mod args;
mod cap;
mod save;

pub use args::Args;

use crate::admin::{Admin, viewing};
use crate::error::{Error, Result};
use crate::output::{Column, Columns, Output, Side};
use args::{Action, SetArgs};
use cap::{Assignment, Limit, changed};
use fdbroker_protocol::{NO_CAP, Resource, Scope};
use serde::Serialize;
use std::collections::BTreeMap;

/// Printed after a change, since nobody would look for it in the help.
const UNTIL: &str = "in force until the broker restarts or reads its configuration again (SIGHUP, `systemctl reload`); \
to keep it, write it there: `fdbroker limits save`, or [caps.SCOPE]";

/// Printed below a table with such caps.
const MARKED: &str = "\n* set at run time, until the broker restarts or reads its configuration again; \
`fdbroker limits save` writes it there\n";

/// Printed after a cap that the broker has set lower than asked: node.connections, or
/// node.metadata_bytes.
fn bound_of(resource: Resource) -> &'static str {
    match resource {
        Resource::MetadataBytes => " (the broker's table of objects bounds it)",
        _ => " (limits.max_clients of the configuration bounds it)",
    }
}

const COLUMNS: &[Column] = &[
    Column("RESOURCE", Side::Left),
    Column("NODE", Side::Right),
    Column("DOMAIN", Side::Right),
    Column("JOB", Side::Right),
    Column("CLIENT", Side::Right),
];

/// Prints the caps, or changes some.
pub fn run(args: Args) -> Result<()> {
    match args.action {
        None => show(args.json),
        Some(Action::Set(set_args)) => set(&set_args, args.json || set_args.json),
        Some(Action::Save(args)) => save::run(args),
    }
}

/// Prints the caps in force.
fn show(json: bool) -> Result<()> {
    let reply = viewing::connect()?.limits()?;
    let limits = &reply.in_force;
    let changed = changed(&reply);
    let mut out = Output::stdout();
    if json {
        let of = |scope: Scope| {
            let capped = Resource::ALL.iter().filter(|it| it.is_capped_in(scope));
            let cap = |cap: u64| Some(cap).filter(|cap| *cap != NO_CAP);
            capped.map(|it| (it.name(), cap(limits[scope][*it].get()))).collect::<BTreeMap<_, _>>()
        };
        let scopes: BTreeMap<_, _> = Scope::ALL.iter().map(|it| (it.name(), of(*it))).collect();
        let set_at_run_time = changed.iter().map(Limit::to_string).collect();
        out.json(&Shown { scopes, set_at_run_time })?;
        out.text("\n")?;
    } else {
        let row = |resource: Resource| {
            let cap = |scope| {
                let limit = Limit { scope, resource };
                if resource.is_capped_in(scope) {
                    let mark = if changed.contains(&limit) { "*" } else { "" };
                    limit.show(limit.of(limits)) + mark
                } else {
                    "-".into()
                }
            };
            let name = resource.name().to_owned();
            std::iter::once(name).chain(Scope::WIDEST_FIRST.map(cap)).collect()
        };
        Columns::new(COLUMNS, true).write(Resource::capped().map(row).collect(), &mut out)?;
        if !changed.is_empty() {
            out.text(MARKED)?;
        }
    }
    out.finish()
}

/// All caps, by scope and resource.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    scopes: BTreeMap<&'static str, BTreeMap<&'static str, Option<u64>>>,
    set_at_run_time: Vec<String>,
}

#[derive(Serialize)]
struct Change {
    limit: String,
    former: Option<u64>,
    value: Option<u64>,
}

#[derive(Serialize)]
struct Changes {
    changes: Vec<Change>,
    dry_run: bool,
}

/// Refuses two values for one cap: one of them must be a mistake.
fn require_different(assignments: &[Assignment]) -> Result<()> {
    let again = assignments
        .iter()
        .enumerate()
        .find(|(index, it)| assignments[..*index].iter().any(|former| former.limit == it.limit));
    match again {
        None => Ok(()),
        Some((_, it)) => {
            Err(Error::Usage(format!("{} is given more than once; give it one value", it.limit)))
        }
    }
}

/// Changes caps one by one, or with `dry_run` only prints the changes.
fn set(args: &SetArgs, json: bool) -> Result<()> {
    let SetArgs { assignments, dry_run, .. } = args;
    let dry_run = *dry_run;
    require_different(assignments)?;
    let mut admin = Admin::from_env()?;
    let mut out = Output::stdout();
    let mut changes = Vec::new();
    for Assignment { limit, value } in assignments {
        let change = admin.set_limit((limit.scope, limit.resource), *value, dry_run)?;
        let (former, in_force) = (change.former.get(), change.value.get());
        if !json {
            let bound = if in_force == *value { "" } else { bound_of(limit.resource) };
            let (former, in_force) = (limit.show(former), limit.show(in_force));
            out.text(&format!("{limit} {former} -> {in_force}{bound}\n"))?;
        }
        let known = |cap: u64| Some(cap).filter(|cap| *cap != NO_CAP);
        let (limit, former, value) = (limit.to_string(), known(former), known(in_force));
        changes.push(Change { limit, former, value });
    }
    match (json, dry_run) {
        (true, _) => {
            out.json(&Changes { changes, dry_run })?;
            out.text("\n")?;
        }
        (false, true) => out.text("nothing is changed: --dry-run\n")?,
        (false, false) => out.text(&format!("{UNTIL}\n"))?,
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn require_different_when_a_cap_comes_twice_then_usage() {
        let all = |texts: &[&str]| {
            let parse = |text: &&str| text.parse::<Assignment>().expect("well formed");
            require_different(&texts.iter().map(parse).collect::<Vec<_>>())
        };
        assert!(all(&["node.fds=1", "job.fds=1", "node.held_fds=1"]).is_ok());
        let twice = all(&["node.fds=1", "job.fds=1", "node.fds=2"]);
        assert!(matches!(twice, Err(Error::Usage(text)) if text.contains("node.fds")));
    }
}
