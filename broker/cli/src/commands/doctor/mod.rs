//! `fdbroker doctor`: finds out why memory cannot be shared on this node, with or without a broker.
//! Must never change anything on the node, nor wait without a bound for a driver or a service.

mod broker;
mod check;
mod devices;
mod hung;
mod kernel;
mod layers;
mod limits;
mod namespaces;
pub mod probe;
mod program;
mod service;

use crate::error::{Result, exit};
use crate::output::{Output, colour_wanted};
use check::{Check, Verdict};
use serde::Serialize;
use std::io::IsTerminal;

const HELP: &str = "\
Checks the broker that the environment names (and shares a page with it), limits of fds and mappings, what the kernel offers
and allows (pidfds, SO_PASSRIGHTS, Yama, seccomp), namespaces, device files, the Level Zero and CUDA drivers, the layers for
programs that know nothing of fdbroker, and the systemd service. Drivers and layers are loaded by processes of their own,
since a driver may hang. Changes nothing.

ok    nothing to do
warn  sharing works, but something is missing or will soon run out
fail  sharing does not work for this user on this node

Examples:
  fdbroker doctor
  fdbroker run -- fdbroker doctor                    would a job's own broker work here?
  fdbroker doctor --json | jq '.checks[] | select(.verdict != \"ok\")'

Exit status 5: at least one check fails, or no broker serves this user.";

/// Find out why memory cannot be shared on this node, and what to do; works without a broker too
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}

/// The report in JSON: counts, then all checks.
#[derive(Serialize)]
struct Report {
    ok: usize,
    warn: usize,
    fail: usize,
    checks: Vec<Check>,
}

/// Runs and prints all checks; gives the exit status 5 if one fails, or if there is no broker to
/// share memory by.
pub fn run(args: Args) -> Result<u8> {
    let mut checks = Vec::new();
    checks.extend(broker::checks());
    checks.extend(hung::checks());
    checks.extend(limits::checks());
    checks.extend(kernel::checks());
    checks.extend(namespaces::checks());
    checks.extend(devices::checks());
    checks.extend(layers::checks());
    checks.extend(service::checks());
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    let (ok, warn, fail) = (count(Verdict::Ok), count(Verdict::Warn), count(Verdict::Fail));
    let is_served = broker::is_served(&checks);
    let report = Report { ok, warn, fail, checks };
    let mut out = Output::stdout();
    if args.json {
        out.json_line(&report)?
    } else {
        print(&report, is_served, &mut out)?
    }
    out.finish()?;
    Ok(if report.fail > 0 || !is_served { exit::FINDINGS } else { exit::OK })
}

fn print(report: &Report, is_served: bool, out: &mut Output) -> Result<()> {
    let is_coloured = colour_wanted(std::io::stdout().is_terminal());
    let width = |text: fn(&Check) -> &str| {
        report.checks.iter().map(|check| text(check).len()).max().unwrap_or_default()
    };
    let (areas, names) = (width(|check| check.area), width(|check| check.name));
    for Check { area, name, verdict, found, .. } in &report.checks {
        let word = verdict.word();
        let (on, off) = if is_coloured { (verdict.colour(), "\x1b[0m") } else { ("", "") };
        out.text(&format!("{on}{word:<4}{off}  {area:<areas$}  {name:<names$}  {found}\n"))?;
    }
    let mut is_first = true;
    for Check { area, name, remedy, .. } in &report.checks {
        let Some(remedy) = remedy else { continue };
        if std::mem::take(&mut is_first) {
            out.text("\n")?;
            out.heading("What to do:")?;
        }
        out.text(&format!("  {area}, {name}: {remedy}\n"))?;
    }
    let unserved = if is_served { "" } else { "; no broker serves this user" };
    out.text(&format!("\n{} ok, {} warn, {} fail{unserved}\n", report.ok, report.warn, report.fail))
}
