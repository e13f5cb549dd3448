//! The broker's records as programs (JSON) and people (rows) see them. Names are the protocol's; numbers
//! in JSON are exact. Must never decide what is shown, only how.

use crate::output::{Column, Side, human_size, human_time};
use fdbroker_protocol::admin::{AllocationRecord, AllocationState, LeaseRecord, NodeStatus, Use};
use fdbroker_protocol::{AllocationId, MemoryKind, Share};
use serde::Serialize;

/// The owner's uid in the record of an allocation that no owner has named yet; no process has it.
const NOBODYS_UID: u32 = u32::MAX;

/// Use of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UseView {
    /// In use now.
    pub now: u64,
    /// Most ever in use.
    pub peak: u64,
    /// The cap; `None` = none.
    pub cap: Option<u64>,
}

impl From<&Use> for UseView {
    fn from(item: &Use) -> Self {
        let cap = Some(item.cap.get()).filter(|cap| *cap != u64::MAX);
        UseView { now: item.now.get(), peak: item.peak.get(), cap }
    }
}

/// The node at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // the protocol's names: see `NodeStatus`
pub struct StatusView {
    pub pid: u32,
    pub draining: bool,
    pub uptime_ms: u64,
    pub node: String,
    pub incarnation: String,
    pub clients: u32,
    pub domains: u32,
    pub parked: u32,
    pub fds: UseView,
    pub held_fds: UseView,
    pub open_leases: UseView,
    pub own_fds: UseView,
    pub held_bytes: UseView,
    pub mapped_leases: UseView,
    pub allocations: UseView,
    pub pinned_bytes: UseView,
    pub table_fds: UseView,
    pub held_now: u64,
    pub closing_now: u64,
    pub registrations: u64,
    pub grants: u64,
    pub recalls: u64,
    pub recalls_silent: u64,
    pub evictions: u64,
    pub parkings: u64,
    pub refusals: u64,
}

impl From<&NodeStatus> for StatusView {
    fn from(status: &NodeStatus) -> Self {
        StatusView {
            pid: status.pid.get(),
            draining: status.draining.get() != 0,
            uptime_ms: status.uptime_ms.get(),
            // As text: JSON readers round numbers beyond 2^53.
            node: format!("{:016x}", status.node.get()),
            incarnation: format!("{:016x}", status.incarnation.get()),
            clients: status.clients.get(),
            domains: status.domains.get(),
            parked: status.parked.get(),
            fds: UseView::from(&status.fds),
            held_fds: UseView::from(&status.held_fds),
            open_leases: UseView::from(&status.open_leases),
            own_fds: UseView::from(&status.own_fds),
            held_bytes: UseView::from(&status.held_bytes),
            mapped_leases: UseView::from(&status.mapped_leases),
            allocations: UseView::from(&status.allocations),
            pinned_bytes: UseView::from(&status.pinned_bytes),
            table_fds: UseView::from(&status.table_fds),
            held_now: status.held_now.get(),
            closing_now: status.closing_now.get(),
            registrations: status.registrations.get(),
            grants: status.grants.get(),
            recalls: status.recalls.get(),
            recalls_silent: status.recalls_silent.get(),
            evictions: status.evictions.get(),
            parkings: status.parkings.get(),
            refusals: status.refusals.get(),
        }
    }
}

/// One allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // the protocol's names: see `AllocationRecord`
pub struct AllocationView {
    pub allocation: String,
    pub state: &'static str,
    pub kind: &'static str,
    pub share: &'static str,
    pub size_bytes: u64,
    pub fd_offset: u64,
    pub owner_pid: Option<u32>,
    pub owner_uid: Option<u32>,
    pub owner_name: String,
    pub owner_allocation_id: u64,
    pub base: u64,
    pub device: u32,
    pub open_leases: u32,
    pub mapped_leases: u32,
    pub waiters: u32,
    pub inode: Option<u64>,
}

impl From<&AllocationRecord> for AllocationView {
    fn from(record: &AllocationRecord) -> Self {
        AllocationView {
            allocation: id(record.slot.get(), record.generation.get()),
            state: AllocationState::from_number(record.state.get())
                .map_or("unknown", AllocationState::name),
            kind: MemoryKind::from_number(record.kind).map_or("unknown", MemoryKind::name),
            share: Share::from_number(record.share).map_or("unknown", Share::name),
            size_bytes: record.size_bytes.get(),
            fd_offset: record.fd_offset.get(),
            owner_pid: nonzero(record.owner_pid.get()).filter(|_| record.owner_gone == 0),
            // Of before a crash of the broker, and not named again yet.
            owner_uid: Some(record.owner_uid.get()).filter(|uid| *uid != NOBODYS_UID),
            owner_name: name(&record.owner_name),
            owner_allocation_id: record.owner_allocation_id.get(),
            base: record.base.get(),
            device: record.device.get(),
            open_leases: record.open_leases.get(),
            mapped_leases: record.mapped_leases.get(),
            waiters: record.waiters.get(),
            inode: Some(record.inode.get()).filter(|inode| *inode != 0),
        }
    }
}

impl AllocationView {
    /// Columns of `ls`.
    pub const COLUMNS: &'static [Column] = &[
        Column("ALLOCATION", Side::Left),
        Column("STATE", Side::Left),
        Column("KIND", Side::Left),
        Column("SIZE", Side::Right),
        Column("OWNER", Side::Right),
        Column("NAME", Side::Left),
        Column("UID", Side::Right),
        Column("OPEN", Side::Right),
        Column("MAPPED", Side::Right),
        Column("WAITING", Side::Right),
        Column("INODE", Side::Right),
    ];

    /// The row under them.
    pub fn row(&self) -> Vec<String> {
        vec![
            self.allocation.clone(),
            self.state.into(),
            self.kind.into(),
            human_size(self.size_bytes),
            optional(self.owner_pid, if self.owner_uid.is_some() { "gone" } else { "-" }),
            self.owner_name.clone(),
            optional(self.owner_uid, "-"),
            self.open_leases.to_string(),
            self.mapped_leases.to_string(),
            self.waiters.to_string(),
            optional(self.inode, "-"),
        ]
    }
}

/// One lease: who holds what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // the protocol's names: see `LeaseRecord`
pub struct LeaseView {
    pub pid: u32,
    pub uid: u32,
    pub name: String,
    pub client: u32,
    pub allocation: String,
    pub state: &'static str,
    pub ended: bool,
    pub size_bytes: u64,
    pub owner_pid: Option<u32>,
    pub age_ms: u64,
    pub lease: String,
}

impl From<&LeaseRecord> for LeaseView {
    fn from(record: &LeaseRecord) -> Self {
        LeaseView {
            pid: record.pid.get(),
            uid: record.uid.get(),
            name: name(&record.name),
            client: record.client.get(),
            allocation: id(record.slot.get(), record.generation.get()),
            state: match record.state.get() {
                1 => "open",
                2 => "mapped",
                _ => "unknown",
            },
            ended: record.ended.get() != 0,
            size_bytes: record.size_bytes.get(),
            owner_pid: nonzero(record.owner_pid.get()),
            age_ms: record.age_ms.get(),
            lease: format!("{:x}", record.lease.get()),
        }
    }
}

impl LeaseView {
    /// Columns of `holders`.
    pub const COLUMNS: &'static [Column] = &[
        Column("HOLDER", Side::Right),
        Column("NAME", Side::Left),
        Column("UID", Side::Right),
        Column("ALLOCATION", Side::Left),
        Column("LEASE", Side::Left),
        Column("SIZE", Side::Right),
        Column("OWNER", Side::Right),
        Column("AGE", Side::Right),
    ];

    /// The row under them.
    pub fn row(&self) -> Vec<String> {
        vec![
            self.pid.to_string(),
            self.name.clone(),
            self.uid.to_string(),
            self.allocation.clone(),
            if self.ended { format!("{}, ended", self.state) } else { self.state.into() },
            human_size(self.size_bytes),
            optional(self.owner_pid, "gone"),
            human_time(self.age_ms),
        ]
    }
}

fn id(slot: u32, generation: u32) -> String {
    AllocationId { slot, generation }.to_string()
}

fn nonzero(pid: u32) -> Option<u32> {
    Some(pid).filter(|pid| *pid != 0)
}

fn optional(value: Option<impl ToString>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), |value| value.to_string())
}

/// The same, for events.
pub fn client_name(bytes: &[u8]) -> String {
    name(bytes)
}

/// A client's name as it may be shown: it chose it, so control characters must not reach a terminal.
fn name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end])
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn name_when_it_holds_escape_sequences_then_they_are_shown_as_question_marks() {
        assert_eq!(name(b"a\x1b[2Jb\0xx"), "a?[2Jb");
        assert_eq!(name(b"sixteen_bytes_xx"), "sixteen_bytes_xx");
    }

    #[test]
    fn allocation_when_nobody_has_named_it_again_then_no_uid() {
        let mut record = AllocationRecord::new_zeroed();
        record.state = (AllocationState::Reserved as u32).into();
        record.owner_uid = NOBODYS_UID.into();
        record.owner_gone = 1;
        let view = AllocationView::from(&record);
        assert_eq!((view.state, view.owner_uid), ("reserved", None));
        assert_eq!(view.row()[4..7], ["-", "", "-"]);
        record.owner_uid = 0.into();
        let row = AllocationView::from(&record).row();
        assert_eq!(row[4..7], ["gone", "", "0"]);
    }

    #[test]
    fn use_view_when_no_cap_then_null() {
        let view = UseView::from(&Use { cap: u64::MAX.into(), ..Use::default() });
        let json = serde_json::to_string(&view).expect("plain data");
        assert_eq!(json, r#"{"now":0,"peak":0,"cap":null}"#);
    }
}
