//! The columns of objects. Must never decide how they are printed.

use crate::table::{Column, Kind, Value};
use fdbroker_client::ObjectInfo;
use fdbroker_protocol::MemoryKind;
use fdbroker_protocol::object::ObjectState;
use std::time::Duration;

pub const COLUMNS: &[Column<ObjectInfo>] = &[
    Column::new(Kind::Text, "NAME", "name", "its name", |it| Value::Text(it.name.clone().into())),
    Column::new(
        Kind::Number,
        "VERSION",
        "version",
        "given when it was sealed, above every version before; a broker that has started anew goes on far above them; none while it is in the making",
        |it| match it.version {
            0 => Value::None("-"),
            version => Value::Number(version),
        },
    ),
    Column::new(Kind::Size, "SIZE", "size_bytes", "its size", |it| Value::Size(it.size_bytes)),
    Column::new(
        Kind::Word(ObjectState::NAMES),
        "STATE",
        "state",
        "sealed, or in the making: then nobody can have it yet",
        |it| Value::word(it.state.name()),
    ),
    Column::new(Kind::Word(MemoryKind::NAMES), "KIND", "kind", "kind of memory", |it| {
        Value::word(it.kind.name())
    }),
    Column::new(
        Kind::Allocation,
        "GROUP",
        "group",
        "allocation of its group, as in `ls`, `show` and `holders`: objects of one group are one piece of memory",
        |it| Value::Allocation(it.id),
    ),
    Column::new(
        Kind::Time,
        "AGE",
        "age_seconds",
        "since it was sealed, or its group was begun",
        |it| time(it.age),
    ),
    Column::new(
        Kind::Time,
        "TTL",
        "ttl_seconds",
        "left to its group if nobody uses it, none if it does not end by time",
        |it| it.ttl_left.map_or(Value::None("-"), time),
    ),
    Column::new(Kind::Number, "LEASES", "leases", "leases of its group: who reads it", |it| {
        Value::Number(it.leases.into())
    }),
    Column::new(
        Kind::Text,
        "FLAGS",
        "flags",
        "kept: outlives its creator; pinned: ends neither by time nor to make room; evictable: may end when bytes are short; cooperative: only its maker's word keeps it from being written (GPU memory)",
        flags,
    ),
    Column::new(
        Kind::Number,
        "CREATOR",
        "creator_pid",
        "pid of the process that made it, none once gone",
        |it| Value::number_or(Some(it.creator_pid).filter(|_| !it.creator_gone), "gone"),
    ),
    Column::on_request(
        Kind::Size,
        "METADATA",
        "metadata_bytes",
        "size of its metadata; `get --meta` prints it",
        |it| Value::Size(it.metadata_bytes as u64),
    ),
    Column::on_request(
        Kind::Size,
        "GROUP_SIZE",
        "group_bytes",
        "memory of its group, which goes with the last of its names and of its leases",
        |it| Value::Size(it.group_bytes),
    ),
    Column::on_request(
        Kind::Number,
        "GROUP_NAMES",
        "group_names",
        "names that lead to its group",
        |it| Value::Number(it.group_names.into()),
    ),
    Column::on_request(
        Kind::Size,
        "OFFSET",
        "offset_bytes",
        "where in the memory of its group it begins",
        |it| Value::Size(it.offset),
    ),
];

fn time(time: Duration) -> Value {
    Value::Time(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

fn flags(info: &ObjectInfo) -> Value {
    let all = [
        (info.kept, "kept"),
        (info.pinned, "pinned"),
        (info.evictable, "evictable"),
        (info.cooperative, "cooperative"),
    ];
    let set: Vec<&str> = all.into_iter().filter(|(is_set, _)| *is_set).map(|it| it.1).collect();
    if set.is_empty() { Value::None("-") } else { Value::Text(set.join(",").into()) }
}
