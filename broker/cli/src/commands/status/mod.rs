//! `fdbroker status`: the node at a glance. Must never ask for more than one answer.

mod args;

pub use args::Args;

use crate::admin::Admin;
use crate::error::Result;
use crate::output::{Column, Columns, Output, Side, commas, counted, human_size, human_time};
use crate::records::{StatusView, UseView};

const COLUMNS: &[Column] = &[
    Column("RESOURCE", Side::Left),
    Column("NOW", Side::Right),
    Column("PEAK", Side::Right),
    Column("CAP", Side::Right),
    Column("WHAT", Side::Left),
];

/// Prints the status of the broker that the environment names.
pub fn run(args: Args) -> Result<()> {
    let status = StatusView::from(&Admin::from_env()?.status()?);
    let mut out = Output::stdout();
    match args.json {
        true => {
            out.json(&status)?;
            out.text("\n")?;
        }
        false => print(&status, &mut out)?,
    }
    out.finish()
}

fn print(status: &StatusView, out: &mut Output) -> Result<()> {
    out.text(&format!(
        "broker pid {}, up {}: {}, {}, {}, {} waiting\n\n",
        status.pid,
        human_time(status.uptime_ms),
        counted(status.clients.into(), "client"),
        counted(status.domains.into(), "user"),
        counted(status.jobs.into(), "job"),
        counted(status.parked.into(), "request"),
    ))?;
    if status.draining {
        out.text("draining: nothing new is taken, and what can be is given up; `fdbroker drain --undo` ends it\n\n")?;
    }
    let rows = vec![
        row("fds", &status.fds, commas, "all fds of shared memory on the node"),
        row("held_fds", &status.held_fds, commas, "in the broker, or promised a place there"),
        row("open_leases", &status.open_leases, commas, "duplicates that clients have open"),
        row("own_fds", &status.own_fds, commas, "that clients keep for their own memory"),
        row("allocations", &status.allocations, commas, "registered, or ended and still leased"),
        row("kept_allocations", &status.kept_allocations, commas, "that outlive their owner"),
        row("mapped_leases", &status.mapped_leases, commas, "memory imported, no fd kept"),
        row("held_bytes", &status.held_bytes, human_size, "memory whose fd the broker holds"),
        row(
            "pinned_bytes",
            &status.pinned_bytes,
            human_size,
            "ended memory that leases still pin, charged to each holder",
        ),
        row("table_fds", &status.table_fds, commas, "the broker's own fd table"),
    ];
    Columns::new(COLUMNS, true).write(rows, out)?;
    out.text(&format!(
        "\nsince start: {} registrations, {} grants, {} evictions, {} recalls ({} unanswered), {} waits, {} refusals, {} leases asked for\n",
        commas(status.registrations),
        commas(status.grants),
        commas(status.evictions),
        commas(status.recalls),
        commas(status.recalls_silent),
        commas(status.parkings),
        commas(status.refusals),
        commas(status.reclaims),
    ))
}

fn row(name: &str, item: &UseView, show: fn(u64) -> String, what: &str) -> Vec<String> {
    let cap = item.cap.map_or_else(|| "none".into(), show);
    vec![name.into(), show(item.now), show(item.peak), cap, what.into()]
}
