//! The columns of clients. Must never decide how they are printed.

use crate::records;
use crate::table::{Column, Kind, Value};
use fdbroker_protocol::Resource;
use fdbroker_protocol::admin::{ClientRecord, NO_AGE};
use std::sync::LazyLock;

pub const EXAMPLES: &str = "\
Examples:
  fdbroker clients --sort FDS:desc                 who uses most fds
  fdbroker clients --filter 'SILENT == yes or PARKED_REQUESTS > 0'";

/// What matters most.
const FIRST: [&str; 10] =
    ["PID", "NAME", "USER", "JOB", "FDS", "HELD_BYTES", "OWN_FDS", "AGE", "COMMAND", "SILENT"];

pub static COLUMNS: LazyLock<Vec<Column<ClientRecord>>> = LazyLock::new(|| {
    let shown = [records::SHOWN, &[Resource::ParkedRequests]].concat();
    let resources =
        Column::of_resources(&shown, |it: &ClientRecord, resource| it.uses[resource].get());
    let mut all: Vec<Column<ClientRecord>> = vec![
        Column::new(Kind::Number, "PID", "pid", "its process", |it| {
            Value::Number(it.pid.get().into())
        }),
        Column::new(Kind::Text, "NAME", "name", "its name for itself", |it| {
            records::name(&it.name)
        }),
        Column::new(
            Kind::Text,
            "COMMAND",
            "command",
            "the name of its process, as in `ps -o comm`; none in another PID namespace",
            |it| match it.command[0] {
                0 => Value::None("-"),
                _ => records::name(&it.command),
            },
        ),
        Column::new(
            Kind::Time,
            "AGE",
            "age_seconds",
            "time since its process was started; none in another PID namespace",
            |it| match it.age_ms.get() {
                NO_AGE => Value::None("-"),
                age_ms => Value::Time(age_ms),
            },
        ),
        Column::new(Kind::Number, "UID", "uid", "its user", |it| {
            Value::Number(it.uid.get().into())
        }),
        Column::new(Kind::Text, "USER", "user", "its user's name", |it| {
            records::user(it.uid.get())
        }),
        Column::new(Kind::Text, "JOB", "job", "its job, as `fdbroker jobs` names it", |it| {
            records::job(it.job, &it.job_name)
        }),
    ];
    let others: [Column<ClientRecord>; 3] = [
        Column::new(Kind::Flag, "SILENT", "silent", "it has not answered a recall in time", |it| {
            Value::Flag(it.silent.get() != 0)
        }),
        Column::on_request(Kind::Number, "CLIENT", "client", "its number in the broker", |it| {
            Value::Number(it.client.get().into())
        }),
        records::listener(|it| records::listener_number(it.listener)),
    ];
    all.extend(resources.chain(others));
    records::in_order(all, &FIRST)
});
