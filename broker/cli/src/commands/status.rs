//! `fdbroker status`: prints the status of the node. Must never ask the broker more than one
//! question.

use crate::admin::viewing;
use crate::error::Result;
use crate::output::{Column, Columns, Output, Side, counted, human_time};
use crate::records::{self, StatusView, UseView};
use fdbroker_protocol::Resource;

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
    Column("WHAT", Side::Left),
];

pub fn run(args: Args) -> Result<()> {
    let status = StatusView::from(&viewing::connect()?.status()?);
    let mut out = Output::stdout();
    if args.json {
        out.json_line(&status)?
    } else {
        print(&status, &mut out)?
    }
    out.finish()
}

fn print(status: &StatusView, out: &mut Output) -> Result<()> {
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
    out.text(&format!("broker pid {pid}, up {up}: {}\n\n", parts.join(", ")))?;
    if status.draining {
        out.text("draining: nothing new is taken, and what can be is given up; `fdbroker drain --undo` ends it\n\n")?;
    }
    let warnings = [status.config_warning().map(String::from), status.sockets_warning()];
    warnings.into_iter().flatten().try_for_each(|it| out.text(&format!("{it}\n\n")))?;
    let rows = status.uses.iter().filter(|(_, item)| item.is_counted);
    let rows = rows.map(|(resource, item)| row(resource, item));
    Columns::new(COLUMNS, true).write(rows.collect(), out)?;
    match &status.counters {
        Some(counters) => {
            out.text(&format!("\nsince start: {}\n", records::counted_since_start(counters)))
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
