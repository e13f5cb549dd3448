//! The columns of jobs. Must never decide how they are printed.

use crate::records;
use crate::table::{Column, Kind, Value};
use fdbroker_protocol::Resource;
use fdbroker_protocol::admin::AccountRecord;
use std::sync::LazyLock;

pub const EXAMPLES: &str = "\
A job is a cgroup that a scheduler made: slurm:ID, flux:ID, pbs:ID, or k8s: and the UID of a pod. A cgroup that no known
scheduler made is unit:NAME, by the nearest service or scope of systemd, else job:KEY. PALS makes no cgroups: its
processes belong to the PBS job, or to unit:palsd.service. Processes whose cgroup the broker cannot read, such as those
of other PID namespaces, belong to no job.

Examples:
  fdbroker jobs --sort FDS:desc
  fdbroker clients --filter 'JOB == slurm:4711'
  fdbroker ls -o +JOB";

/// What matters most.
const FIRST: [&str; 9] = [
    "JOB",
    "USER",
    "FDS",
    "HELD_BYTES",
    "OBJECTS",
    "CONNECTIONS",
    "OWN_FDS",
    "FDS_CAP",
    "LEFT_ALLOCATIONS",
];

pub static COLUMNS: LazyLock<Vec<Column<AccountRecord>>> = LazyLock::new(|| {
    let shown = [&[Resource::Connections], records::SHOWN].concat();
    let resources =
        Column::of_resources(&shown, |it: &AccountRecord, resource| it.uses[resource].now.get());
    let mut all: Vec<Column<AccountRecord>> = vec![
        Column::new(Kind::Text, "JOB", "job", "its name, or its key where it has none", |it| {
            records::job(it.key, &it.name)
        }),
        Column::new(Kind::Number, "UID", "uid", "its user", |it| {
            Value::Number(it.uid.get().into())
        }),
        Column::new(Kind::Text, "USER", "user", "its user's name", |it| {
            records::user(it.uid.get())
        }),
    ];
    let others: [Column<AccountRecord>; 6] = [
        Column::new(
            Kind::Number,
            "OBJECTS",
            "objects",
            "names of objects that it has made; those with keep or pin outlive it: `fdbroker objects --all`",
            |it| Value::Number(it.objects.get().into()),
        ),
        Column::new(Kind::Number, "FDS_PEAK", "fds_peak", "the most fds there were of it", |it| {
            Value::Number(it.uses.fds.peak.get())
        }),
        Column::new(Kind::Number, "FDS_CAP", "fds_cap", "the cap of its fds", |it| {
            it.uses.fds.known_cap().map_or(Value::None("none"), Value::Number)
        }),
        Column::new(
            Kind::Number,
            "LEFT_ALLOCATIONS",
            "left_allocations",
            "kept allocations whose owner is gone: charged to its user alone",
            |it| Value::Number(it.left_allocations.get().into()),
        ),
        records::listener(|it| records::listener_number(it.listener)),
        // As text: JSON readers round numbers beyond 2^53.
        Column::on_request(
            Kind::Text,
            "KEY",
            "key",
            "what tells it from others of its name",
            |it| Value::Text(format!("{:016x}", it.key.get()).into()),
        ),
    ];
    all.extend(resources.chain(others));
    records::in_order(all, &FIRST)
});
