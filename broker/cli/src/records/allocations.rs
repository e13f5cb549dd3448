//! The columns of allocations. Must never decide how they are printed.

use crate::records::{self, NOBODYS_UID};
use crate::table::{Column, Kind, Value};
use fdbroker_protocol::admin::{AllocationRecord, AllocationState, NO_OWN_FD};
use fdbroker_protocol::message::register_flags;
use fdbroker_protocol::{MemoryKind, Share};

pub const EXAMPLES: &str = "\
Examples:
  fdbroker ls --sort SIZE:desc                     the largest first
  fdbroker ls --filter 'OWNER == none or SIZE >= 1GiB'
  fdbroker ls -o +BASE,SHARE --filter 'STATE == ended and MAPPED_LEASES > 0'
  fdbroker ls --json -o owner_pid,size_bytes | jq '.allocations[]'";

pub const COLUMNS: &[Column<AllocationRecord>] = &[
    Column::new(Kind::Allocation, "ALLOCATION", "allocation", "its id", |it| {
        records::id(it.slot, it.generation)
    }),
    Column::new(Kind::Size, "SIZE", "size_bytes", "its size", |it| {
        Value::Size(it.facts.size_bytes.get())
    }),
    Column::new(
        Kind::Word(AllocationState::NAMES),
        "STATE",
        "state",
        "where its fd is: held, resident, evicted, recalling, ended or reserved",
        |it| {
            let state = AllocationState::from_number(it.state.get());
            Value::word(state.map_or("unknown", AllocationState::name))
        },
    ),
    Column::new(Kind::Number, "OWNER", "owner_pid", "pid of its owner, none once gone", owner),
    Column::new(Kind::Text, "NAME", "owner_name", "its owner's name for itself", |it| {
        records::name(&it.owner_name)
    }),
    Column::new(Kind::Text, "USER", "owner_user", "name of that user", |it| {
        uid(it).map_or(Value::None("-"), records::user)
    }),
    Column::new(
        Kind::Text,
        "OBJECT",
        "object",
        "name of the object whose memory it is, of several the first; `fdbroker objects --all` has all",
        |it| match it.object.get() {
            Some(name) => Value::Text(String::from_utf8_lossy(name).into_owned().into()),
            None => Value::None("-"),
        },
    ),
    Column::new(
        Kind::Number,
        "OPEN_LEASES",
        "open_leases",
        "leases whose holder has the fd open",
        |it| Value::Number(it.open_leases.get().into()),
    ),
    Column::new(
        Kind::Number,
        "MAPPED_LEASES",
        "mapped_leases",
        "leases whose holder has imported it and closed the fd",
        |it| Value::Number(it.mapped_leases.get().into()),
    ),
    Column::new(
        Kind::Time,
        "AGE",
        "age_seconds",
        "time since it was registered or, after a crash of the broker, named again",
        |it| Value::Time(it.age_ms.get()),
    ),
    Column::new(
        Kind::Time,
        "LAST_USED",
        "last_used_seconds",
        "time since it was granted last, or else registered",
        |it| Value::Time(it.unused_ms.get()),
    ),
    Column::new(Kind::Word(MemoryKind::NAMES), "KIND", "kind", "kind of memory", |it| {
        Value::word(MemoryKind::from_number(it.facts.kind).map_or("unknown", MemoryKind::name))
    }),
    Column::new(Kind::Number, "WAITERS", "waiters", "requests that wait for it", |it| {
        Value::Number(it.waiters.get().into())
    }),
    Column::new(
        Kind::Number,
        "UID",
        "owner_uid",
        "user of its owner, none before it is named again after a crash of the broker",
        |it| Value::number_or(uid(it), "-"),
    ),
    Column::new(
        Kind::Number,
        "VIRTUAL_FD",
        "virtual_fd",
        "the fd number by which its owner passes it, under a layer (run --level-zero, run --cuda)",
        |it| match it.virtual_fd.get() {
            0 => Value::None("-"),
            fd => Value::Number(fd.into()),
        },
    ),
    Column::new(
        Kind::Number,
        "INODE",
        "inode",
        "inode of the fd held, or of the last one that was",
        |it| match it.inode.get() {
            0 => Value::None("-"),
            inode => Value::Number(inode),
        },
    ),
    Column::on_request(
        Kind::Number,
        "FD",
        "fd",
        "the broker's fd of it, as in /proc/PID/fd and lsof; none while it holds none",
        |it| match it.fd.get() {
            NO_OWN_FD => Value::None("-"),
            fd => Value::Number(fd.into()),
        },
    ),
    Column::on_request(
        Kind::Text,
        "JOB",
        "owner_job",
        "job of its owner, or that has left it",
        |it| records::job(it.job, &it.job_name),
    ),
    Column::on_request(
        Kind::Word(Share::NAMES),
        "SHARE",
        "share",
        "who may have it: uid, gid or any",
        |it| Value::word(Share::from_number(it.share).map_or("unknown", Share::name)),
    ),
    Column::on_request(
        Kind::Flag,
        "RECALLABLE",
        "recallable",
        "its owner can give its fd again, so that it may be evicted",
        |it| Value::Flag(it.flags & register_flags::RECALLABLE != 0),
    ),
    Column::on_request(Kind::Flag, "KEEP", "keep", "it outlives its owner", |it| {
        Value::Flag(it.flags & register_flags::KEEP != 0)
    }),
    Column::on_request(
        Kind::Number,
        "ID",
        "owner_allocation_id",
        "its owner's number for it",
        |it| Value::Number(it.facts.owner_allocation_id.get()),
    ),
    Column::on_request(Kind::Number, "BASE", "base", "its address in the owner", |it| {
        Value::Number(it.base.get())
    }),
    Column::on_request(Kind::Size, "OFFSET", "fd_offset", "where in the fd it begins", |it| {
        Value::Size(it.facts.fd_offset.get())
    }),
    Column::on_request(
        Kind::Number,
        "DEVICE",
        "device",
        "the owner's own number of the device",
        |it| Value::Number(it.facts.device.get().into()),
    ),
    Column::on_request(
        Kind::Text,
        "GPU",
        "gpu",
        "the GPU that it is on, by UUID, as its owner claims",
        |it| match it.facts.gpu.get() {
            gpu if gpu.is_none() => Value::None("-"),
            gpu => Value::Text(gpu.to_string().into()),
        },
    ),
];

fn owner(record: &AllocationRecord) -> Value {
    let pid = records::nonzero(record.owner_pid).filter(|_| record.owner_gone == 0);
    // No owner has declared it since a crash.
    Value::number_or(pid, if uid(record).is_some() { "gone" } else { "-" })
}

fn uid(record: &AllocationRecord) -> Option<u32> {
    Some(record.owner_uid.get()).filter(|uid| *uid != NOBODYS_UID)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn allocation_when_nobody_has_named_it_again_then_no_owner_and_no_uid() {
        let mut record = AllocationRecord::new_zeroed();
        record.state = (AllocationState::Reserved as u32).into();
        record.owner_uid = NOBODYS_UID.into();
        record.owner_gone = 1;
        assert_eq!((owner(&record), uid(&record)), (Value::None("-"), None));
        record.owner_uid = 0.into();
        assert_eq!((owner(&record), uid(&record)), (Value::None("gone"), Some(0)));
    }
}
