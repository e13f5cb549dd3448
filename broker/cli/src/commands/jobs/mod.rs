//! `fdbroker jobs`: the jobs that use the broker, and what each is charged for. Must never decide how a list is printed:
//! [`crate::table`] does.

mod args;

pub use args::Args;

use crate::admin::{Admin, Selection};
use crate::error::Result;
use crate::records;
use crate::table::{Column, Kind, List, Value};
use fdbroker_protocol::admin::AccountRecord;

/// On the wire: no cap.
const NO_CAP: u64 = u64::MAX;

/// Columns of jobs.
pub const COLUMNS: &[Column<AccountRecord>] = &[
    Column::new(Kind::Text, "JOB", "job", "its name, or its key where it has none", |it| {
        records::job(it.key, &it.name)
    }),
    Column::new(Kind::Number, "UID", "uid", "its user", |it| Value::Number(it.uid.get().into())),
    Column::new(Kind::Number, "CLIENTS", "clients", "its connections", |it| {
        Value::Number(it.clients.get().into())
    }),
    Column::new(Kind::Number, "FDS", "fds", "all fds charged to it", |it| {
        Value::Number(it.fds.now.get())
    }),
    Column::new(Kind::Number, "PEAK", "fds_peak", "the most there were of them", |it| {
        Value::Number(it.fds.peak.get())
    }),
    Column::new(Kind::Number, "CAP", "fds_cap", "their cap", |it| match it.fds.cap.get() {
        NO_CAP => Value::None("none"),
        cap => Value::Number(cap),
    }),
    Column::new(
        Kind::Number,
        "HELD",
        "held_fds",
        "fds of its allocations in the broker, those closing and promised included",
        |it| Value::Number(it.held_fds.now.get()),
    ),
    Column::new(Kind::Size, "BYTES", "held_bytes", "its allocations held in the broker", |it| {
        Value::Size(it.held_bytes.now.get())
    }),
    Column::new(Kind::Number, "OPEN", "open_leases", "its leases with the fd open", |it| {
        Value::Number(it.open_leases.now.get())
    }),
    Column::new(Kind::Number, "MAPPED", "mapped_leases", "its leases with the fd closed", |it| {
        Value::Number(it.mapped_leases.now.get())
    }),
    Column::new(Kind::Number, "ALLOCATIONS", "allocations", "its allocations", |it| {
        Value::Number(it.allocations.now.get())
    }),
    Column::on_request(
        Kind::Number,
        "KEPT",
        "kept_allocations",
        "those that outlive their owner",
        |it| Value::Number(it.kept_allocations.now.get()),
    ),
    Column::new(
        Kind::Number,
        "LEFT",
        "left_allocations",
        "kept ones whose owner is gone: charged to its user alone",
        |it| Value::Number(it.left_allocations.get().into()),
    ),
    Column::on_request(
        Kind::Number,
        "LISTENER",
        "listener",
        "number of the socket it came by",
        |it| Value::Number(it.listener.get().into()),
    ),
    // As text: JSON readers round numbers beyond 2^53.
    Column::on_request(Kind::Text, "KEY", "key", "what tells it from others of its name", |it| {
        Value::Text(format!("{:016x}", it.key.get()).into())
    }),
];

/// Prints the jobs of the broker that the environment names.
pub fn run(args: &Args) -> Result<()> {
    match List::new("jobs", COLUMNS, &args.list)? {
        Some(list) => list.run(&mut Admin::from_env()?, Selection::ALL),
        None => Ok(()),
    }
}
