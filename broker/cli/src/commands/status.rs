//! `fdbroker status`: prints the status of the node. Must never ask the broker more than one
//! question.

use crate::admin::viewing;
use crate::error::Result;
use crate::output::{Column, Columns, Output, Side, counted, human_time, wrapped};
use crate::records::{self, StatusView, UseView};
use crate::rooms::of_started;
use fdbroker_protocol::Resource;
use serde::Serialize;

/// Show the node at a glance: counts, peaks and caps
///
/// NOW is what there is: fds that are open, leases that were granted. RESERVED is what is kept for
/// fds and leases to come. A cap bounds both together. PEAK is the most that there was, without
/// what is reserved.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}

const COLUMNS: &[Column] = &[
    Column("RESOURCE", Side::Left),
    Column("NOW", Side::Right),
    Column("RESERVED", Side::Right),
    Column("PEAK", Side::Right),
    Column("CAP", Side::Right),
    Column("WHAT", Side::LeftOrCut),
];

#[derive(Serialize)]
struct View {
    #[serde(flatten)]
    status: StatusView,
    /// Of a broker that programs have started by themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<Started>,
}

#[derive(Serialize)]
struct Started {
    /// What it ends with at the latest.
    cgroup: Option<String>,
}

pub fn run(args: Args) -> Result<()> {
    let mut admin = viewing::connect()?;
    let status = StatusView::from(&admin.status()?);
    let started = of_started(admin.path()).map(|_| Started { cgroup: cgroup_of(status.pid) });
    let view = View { status, started };
    let mut out = Output::stdout();
    if args.json {
        out.json_line(&view)?
    } else {
        print(&view, &mut out)?
    }
    out.finish()
}

/// The cgroup of a process, of the unified hierarchy where there is one.
fn cgroup_of(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let unified = text.lines().find_map(|line| line.strip_prefix("0::"));
    unified.or_else(|| text.lines().next()).map(str::to_owned)
}

fn print(View { status, started }: &View, out: &mut Output) -> Result<()> {
    let counted_of = |resource: Resource, what: &str| {
        let item = &status.uses[resource];
        item.is_counted.then(|| counted(item.now, what))
    };
    let parts = [
        counted_of(Resource::Connections, "connection"),
        counted_of(Resource::Domains, "domain"),
        status.gauges.jobs.map(|jobs| counted(jobs, "job")),
        counted_of(Resource::ParkedRequests, "parked request"),
        status.gauges.users_away.filter(|away| *away > 0).map(|it| counted(it, "user away")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let (pid, up) = (status.pid, human_time(status.uptime_ms));
    out.text(&wrapped(&format!("broker pid {pid}, up {up}: {}", parts.join(", "))))?;
    out.text("\n\n")?;
    if let Some(Started { cgroup }) = started {
        let cgroup = cgroup.as_deref().map(|it| format!(", and with the cgroup {it}"));
        let cgroup = cgroup.unwrap_or_default();
        out.text(&format!(
            "started by a program: it ends some seconds after its last client and what is kept{cgroup}; `fdbroker stop` ends it\n\n"
        ))?;
    }
    if status.draining {
        out.text("draining: nothing new is taken, and what can be is given up; `fdbroker drain --undo` ends it\n\n")?;
    }
    let warnings = [status.config_warning().map(String::from), status.sockets_warning()];
    warnings.into_iter().flatten().try_for_each(|it| out.text(&format!("{it}\n\n")))?;
    let rows = status.uses.iter().filter(|(_, item)| item.is_counted);
    let rows = rows.map(|(resource, item)| row(resource, item));
    Columns::new(COLUMNS, true).within_the_terminal(true).write(rows.collect(), out)?;
    match &status.counters {
        Some(counters) => {
            let since = format!("since start: {}", records::counted_since_start(counters));
            out.text(&format!("\n{}\n", wrapped(&since)))
        }
        None => Ok(()),
    }
}

fn row(resource: Resource, item: &UseView) -> Vec<String> {
    let show = |number| records::amount(resource, number);
    let reserved = match resource.reserved_by() {
        [] => "-".into(),
        _ => show(item.reserved),
    };
    let cap = item.cap.map_or_else(|| "none".into(), show);
    let (name, what) = (resource.name().into(), resource.help().into());
    vec![name, show(item.now), reserved, show(item.peak), cap, what]
}
