//! `fdbroker limits`: the caps of every scope, and changing one at run time. Must never change anything before all that
//! was asked for is understood.

mod args;

pub use args::Args;

use crate::admin::Admin;
use crate::error::{Error, Result};
use crate::output::{Column, Columns, Output, Side};
use crate::records;
use args::{Action, SetArgs};
use fdbroker_protocol::admin::Limits;
use fdbroker_protocol::{NO_CAP, Resource, Scope};
use serde::Serialize;
use std::collections::BTreeMap;
use std::str::FromStr;

/// What the output says of a change, because nobody would look for it in the help.
const UNTIL: &str = "in force until the broker restarts or reads its configuration again (SIGHUP, `systemctl reload`); \
to keep it, write it there: [caps.SCOPE]";

/// One cap of one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Whose.
    pub scope: Scope,
    /// Of what.
    pub resource: Resource,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.scope, self.resource)
    }
}

impl Limit {
    /// As the broker has it; [`u64::MAX`] = none.
    fn of(self, limits: &Limits) -> u64 {
        limits[self.scope][self.resource].get()
    }

    /// For people.
    fn show(self, cap: u64) -> String {
        match cap {
            NO_CAP => "none".into(),
            cap => records::amount(self.resource, cap),
        }
    }
}

/// `SCOPE.RESOURCE=VALUE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Which cap.
    pub limit: Limit,
    /// [`u64::MAX`] = none.
    pub value: u64,
}

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let form = "write SCOPE.RESOURCE=VALUE, such as node.fds=4096";
        let (name, value) = text.split_once('=').ok_or(form)?;
        let (scope, resource) = name.split_once('.').ok_or(form)?;
        let names = |names: Vec<&str>| names.join(", ");
        let scope = Scope::from_name(scope).ok_or_else(|| {
            format!(
                "no scope `{scope}`; use {}",
                names(Scope::WIDEST_FIRST.map(Scope::name).into())
            )
        })?;
        let is_capped = |it: &Resource| it.is_capped_in(scope);
        let resource = Resource::from_name(resource).filter(is_capped).ok_or_else(|| {
            let capped = Resource::ALL.iter().filter(|it| is_capped(it)).map(|it| it.name());
            format!("`{resource}` has no cap of a {scope}; use {}", names(capped.collect()))
        })?;
        let limit = Limit { scope, resource };
        Ok(Assignment { limit, value: parse_value(value)? })
    }
}

/// A number, with a unit of 1000s (K M G T) or 1024s (Ki Mi Gi Ti), a B after it or not; or `none`.
fn parse_value(text: &str) -> std::result::Result<u64, String> {
    let form =
        || format!("`{text}` is no value; use digits and K, M, G, T, Ki, Mi, Gi or Ti, or none");
    if text == "none" {
        return Ok(NO_CAP);
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = unit.strip_suffix('B').unwrap_or(unit);
    let factor: u64 = match unit {
        "" => 1,
        "K" | "k" => 1000,
        "M" => 1000_u64.pow(2),
        "G" => 1000_u64.pow(3),
        "T" => 1000_u64.pow(4),
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return Err(form()),
    };
    let number: u64 = digits.parse().map_err(|_| form())?;
    // The largest number means none.
    number.checked_mul(factor).filter(|value| *value != NO_CAP).ok_or_else(form)
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
    }
}

/// Prints the caps in force.
fn show(json: bool) -> Result<()> {
    let limits = Admin::from_env()?.limits()?;
    let mut out = Output::stdout();
    if json {
        let of = |scope: Scope| {
            let capped = Resource::ALL.iter().filter(|it| it.is_capped_in(scope));
            let cap = |cap: u64| Some(cap).filter(|cap| *cap != NO_CAP);
            capped.map(|it| (it.name(), cap(limits[scope][*it].get()))).collect::<BTreeMap<_, _>>()
        };
        let scopes: BTreeMap<_, _> = Scope::ALL.iter().map(|it| (it.name(), of(*it))).collect();
        out.json(&scopes)?;
        out.text("\n")?;
    } else {
        let row = |resource: Resource| {
            let cap = |scope| {
                let limit = Limit { scope, resource };
                if resource.is_capped_in(scope) {
                    limit.show(limit.of(&limits))
                } else {
                    "-".into()
                }
            };
            let name = resource.name().to_owned();
            std::iter::once(name).chain(Scope::WIDEST_FIRST.map(cap)).collect()
        };
        Columns::new(COLUMNS, true).write(Resource::capped().map(row).collect(), &mut out)?;
    }
    out.finish()
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

/// Two values of one cap: one of them is meant for another.
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

/// Changes caps, one after the other; with `dry_run` it only says what would change.
fn set(args: &SetArgs, json: bool) -> Result<()> {
    let SetArgs { assignments, dry_run, .. } = args;
    let dry_run = *dry_run;
    require_different(assignments)?;
    let mut admin = Admin::from_env()?;
    let limits = admin.limits()?;
    let mut out = Output::stdout();
    let mut changes = Vec::new();
    for Assignment { limit, value } in assignments {
        let former = match dry_run {
            true => limit.of(&limits),
            false => admin.set_limit(limit.scope, limit.resource, *value)?,
        };
        if !json {
            out.text(&format!("{limit} {} -> {}\n", limit.show(former), limit.show(*value)))?;
        }
        let known = |cap: u64| Some(cap).filter(|cap| *cap != NO_CAP);
        let (limit, former, value) = (limit.to_string(), known(former), known(*value));
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
    fn assignment_when_well_formed_then_level_resource_and_value() {
        let table = [
            ("node.fds=4096", Scope::Node, Resource::Fds, 4096),
            ("domain.held_bytes=8Gi", Scope::Domain, Resource::HeldBytes, 8 << 30),
            ("domain.held_bytes=8GiB", Scope::Domain, Resource::HeldBytes, 8 << 30),
            ("job.open_leases=2K", Scope::Job, Resource::OpenLeases, 2000),
            ("client.kept_allocations=none", Scope::Client, Resource::KeptAllocations, NO_CAP),
            ("client.allocations=0", Scope::Client, Resource::Allocations, 0),
        ];
        for (text, scope, resource, value) in table {
            let expected = Assignment { limit: Limit { scope, resource }, value };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

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

    #[test]
    fn assignment_when_broken_then_the_message_says_what_would_do() {
        let table = [
            ("fds=1", "SCOPE.RESOURCE=VALUE"),
            ("node.fds", "SCOPE.RESOURCE=VALUE"),
            ("host.fds=1", "node, domain, job, client"),
            ("node.own_fds=1", "held_fds"),
            ("node.fds=", "digits"),
            ("node.fds=-1", "digits"),
            ("node.fds=1X", "digits"),
            ("node.fds=Ki", "digits"),
            ("node.fds=18446744073709551615", "digits"),
            ("node.fds=99999999T", "digits"),
        ];
        for (text, remedy) in table {
            let error = text.parse::<Assignment>().expect_err(text);
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }
}
