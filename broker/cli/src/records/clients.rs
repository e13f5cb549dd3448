//! The columns of clients. Must never decide how they are printed.

use crate::records;
use crate::table::{Column, Kind, Value};
use fdbroker_protocol::admin::ClientRecord;

/// Columns of clients.
pub const COLUMNS: &[Column<ClientRecord>] = &[
    Column::new(Kind::Number, "PID", "pid", "its process", |it| Value::Number(it.pid.get().into())),
    Column::new(Kind::Text, "NAME", "name", "its name for itself", |it| records::name(&it.name)),
    Column::new(Kind::Number, "UID", "uid", "its user", |it| Value::Number(it.uid.get().into())),
    Column::new(Kind::Text, "JOB", "job", "its job, as `fdbroker jobs` names it", |it| {
        records::job(it.job, &it.job_name)
    }),
    Column::new(Kind::Number, "ALLOCATIONS", "allocations", "its allocations", |it| {
        Value::Number(it.allocations.get())
    }),
    Column::new(Kind::Number, "FDS", "fds", "all fds charged to it", |it| {
        Value::Number(it.fds.get())
    }),
    Column::new(
        Kind::Number,
        "HELD",
        "held_fds",
        "fds of its allocations in the broker, those closing and promised included",
        |it| Value::Number(it.held_fds.get()),
    ),
    Column::new(Kind::Size, "BYTES", "held_bytes", "its allocations held in the broker", |it| {
        Value::Size(it.held_bytes.get())
    }),
    Column::new(Kind::Number, "OPEN", "open_leases", "its leases with the fd open", |it| {
        Value::Number(it.open_leases.get())
    }),
    Column::new(Kind::Number, "MAPPED", "mapped_leases", "its leases with the fd closed", |it| {
        Value::Number(it.mapped_leases.get())
    }),
    Column::new(Kind::Number, "WAITING", "parked", "its requests that wait", |it| {
        Value::Number(it.parked.get().into())
    }),
    Column::new(Kind::Flag, "SILENT", "silent", "it has not answered a recall in time", |it| {
        Value::Flag(it.silent.get() != 0)
    }),
    Column::on_request(Kind::Number, "CLIENT", "client", "its number in the broker", |it| {
        Value::Number(it.client.get().into())
    }),
    Column::on_request(
        Kind::Number,
        "LISTENER",
        "listener",
        "number of the socket it came by",
        |it| Value::Number(it.listener.get().into()),
    ),
];
