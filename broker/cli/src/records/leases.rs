//! The columns of leases. Must never decide how they are printed.

use crate::records::{self, NOBODYS_UID};
use crate::table::{Column, Kind, Value};
use fdbroker_protocol::admin::{LeaseRecord, OTHER_OWNER};

/// In place of what identifies another user, to users that see their own part alone.
const ANOTHER: &str = "another";

/// A value of the holder, unless another user is the holder.
fn known(lease: &LeaseRecord, value: u32) -> Option<u32> {
    Some(value).filter(|_| lease.uid.get() != NOBODYS_UID)
}

pub const COLUMNS: &[Column<LeaseRecord>] = &[
    Column::new(Kind::Number, "HOLDER", "pid", "pid of its holder", |it| {
        Value::number_or(known(it, it.pid.get()), ANOTHER)
    }),
    Column::new(Kind::Text, "NAME", "name", "its holder's name for itself", |it| {
        records::name(&it.name)
    }),
    Column::new(Kind::Text, "USER", "user", "name of that user", |it| records::user(it.uid.get())),
    Column::new(Kind::Allocation, "ALLOCATION", "allocation", "what it is a lease of", |it| {
        records::id(it.slot, it.generation)
    }),
    Column::new(Kind::Size, "SIZE", "size_bytes", "size of its allocation", |it| {
        Value::Size(it.size_bytes.get())
    }),
    Column::new(
        Kind::Word(&["open", "mapped"]),
        "STATE",
        "state",
        "open: the holder has the fd; mapped: it has imported it and closed the fd",
        |it| {
            Value::word(match it.state.get() {
                1 => "open",
                2 => "mapped",
                _ => "unknown",
            })
        },
    ),
    Column::new(Kind::Number, "OWNER", "owner_pid", "pid of the owner, none once gone", |it| {
        match it.owner_pid.get() {
            OTHER_OWNER => Value::None(ANOTHER),
            _ => Value::number_or(records::nonzero(it.owner_pid), "gone"),
        }
    }),
    Column::new(Kind::Time, "AGE", "age_seconds", "time since it was granted", |it| {
        Value::Time(it.age_ms.get())
    }),
    Column::new(Kind::Flag, "ENDED", "ended", "its allocation has ended", |it| {
        Value::Flag(it.ended.get() != 0)
    }),
    Column::new(Kind::Number, "UID", "uid", "user of its holder", |it| {
        Value::number_or(known(it, it.uid.get()), ANOTHER)
    }),
    Column::on_request(Kind::Text, "JOB", "job", "job of its holder", |it| {
        records::job(it.job, &it.job_name)
    }),
    Column::on_request(
        Kind::Number,
        "CLIENT",
        "client",
        "number of its holder in the broker",
        |it| Value::number_or(known(it, it.client.get()), ANOTHER),
    ),
    // As text: JSON readers round numbers beyond 2^53.
    Column::on_request(Kind::Text, "LEASE", "lease", "its number, in hex", |it| {
        Value::Text(format!("{:x}", it.lease.get()).into())
    }),
];
