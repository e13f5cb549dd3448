//! The columns of objects. Must never decide how they are printed.

use crate::records;
use crate::table::{Column, Kind, Value};
use fdbroker_client::ObjectInfo;
use fdbroker_protocol::MemoryKind;
use fdbroker_protocol::admin::OwnedObject;
use fdbroker_protocol::object::ObjectState;
use std::sync::LazyLock;
use std::time::Duration;
use zerocopy::little_endian::U32;

/// What the owner of the objects sees of each.
pub static COLUMNS: LazyLock<Vec<Column<ObjectInfo>>> = LazyLock::new(|| columns().collect());

/// What an administrator sees of each.
pub static OWNED: LazyLock<Vec<Column<Owned>>> = LazyLock::new(|| {
    let whose: [Column<Owned>; 3] = [
        Column::new(Kind::Text, "USER", "user", "name of the user whose it is", |it| {
            records::user(it.uid)
        }),
        Column::new(
            Kind::Text,
            "JOB",
            "job",
            "job that made it, as `fdbroker jobs` names it",
            |it| it.job.clone(),
        ),
        Column::on_request(Kind::Number, "UID", "uid", "user whose it is", |it| {
            Value::Number(it.uid.into())
        }),
    ];
    let listener = records::listener(|it: &Owned| records::listener_number(it.listener));
    let mut all: Vec<_> = columns().collect();
    let rest = all.split_off(1);
    all.into_iter().chain(whose).chain(rest).chain([listener]).collect()
});

/// An object with its owner.
#[derive(Clone, Debug)]
pub struct Owned {
    pub info: ObjectInfo,
    uid: u32,
    job: Value,
    listener: U32,
}

impl Owned {
    /// `None`: it is of a kind or a state that this release does not know.
    pub fn of(record: &OwnedObject) -> Option<Self> {
        let OwnedObject { object, uid, listener, job, job_name, name } = record;
        let info = ObjectInfo::of(object, name.get()?, &[])?;
        let job = records::job(*job, job_name);
        Some(Owned { info, uid: uid.get(), job, listener: *listener })
    }
}

/// A record that says what an object is.
trait Informed {
    fn info(&self) -> &ObjectInfo;
}

impl Informed for ObjectInfo {
    fn info(&self) -> &ObjectInfo {
        self
    }
}

impl Informed for Owned {
    fn info(&self) -> &ObjectInfo {
        &self.info
    }
}

fn columns<R: Informed + 'static>() -> impl Iterator<Item = Column<R>> {
    [
    Column::new(Kind::Text, "NAME", "name", "its name", |it: &R| {
            Value::Text(it.info().name.clone().into())
        }),
    Column::new(Kind::Size, "SIZE", "size_bytes", "its size", |it| Value::Size(it.info().size_bytes)),
    Column::new(
        Kind::Word(ObjectState::NAMES),
        "STATE",
        "state",
        "sealed, or in the making: then nobody can have it yet",
        |it| Value::word(it.info().state.name()),
    ),
    Column::new(
        Kind::Text,
        "FLAGS",
        "flags",
        "kept: outlives its creator; pinned: ends neither by time nor to make room; evictable: may end when bytes are short; cooperative: only its maker's word keeps it from being written (GPU memory)",
        |it| flags(it.info()),
    ),
    Column::new(Kind::Number, "LEASES", "leases", "leases of its group: who reads it", |it| {
        Value::Number(it.info().leases.into())
    }),
    Column::new(
        Kind::Time,
        "TTL",
        "ttl_seconds",
        "left to its group if nobody uses it, none if it does not end by time",
        |it| it.info().ttl_left.map_or(Value::None("-"), time),
    ),
    Column::new(
        Kind::Time,
        "AGE",
        "age_seconds",
        "since it was sealed, or its group was begun",
        |it| time(it.info().age),
    ),
    Column::new(
        Kind::Number,
        "CREATOR",
        "creator_pid",
        "pid of the process that made it, none once gone",
        |it| Value::number_or(Some(it.info().creator_pid).filter(|_| !it.info().creator_gone), "gone"),
    ),
    Column::new(
        Kind::Number,
        "VERSION",
        "version",
        "given when it was sealed, above every version before; a broker that has started anew goes on far above them; none while it is in the making",
        |it| match it.info().version {
            0 => Value::None("-"),
            version => Value::Number(version),
        },
    ),
    Column::new(Kind::Word(MemoryKind::NAMES), "KIND", "kind", "kind of memory", |it| {
        Value::word(it.info().kind.name())
    }),
    Column::new(
        Kind::Allocation,
        "GROUP",
        "group",
        "allocation of its group, as in `ls`, `show` and `holders`: objects of one group are one piece of memory",
        |it| Value::Allocation(it.info().id),
    ),
    Column::on_request(
        Kind::Size,
        "METADATA",
        "metadata_bytes",
        "size of its metadata; `get --meta` prints it",
        |it| Value::Size(it.info().metadata_bytes as u64),
    ),
    Column::on_request(
        Kind::Size,
        "GROUP_SIZE",
        "group_bytes",
        "memory of its group, which goes with the last of its names and of its leases",
        |it| Value::Size(it.info().group_bytes),
    ),
    Column::on_request(
        Kind::Number,
        "GROUP_NAMES",
        "group_names",
        "names that lead to its group",
        |it| Value::Number(it.info().group_names.into()),
    ),
    Column::on_request(
        Kind::Size,
        "OFFSET",
        "offset_bytes",
        "where in the memory of its group it begins",
        |it| Value::Size(it.info().offset),
    ),
]
    .into_iter()
}

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
