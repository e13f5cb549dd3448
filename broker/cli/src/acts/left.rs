//! Sums of what each process holds, for acts that cannot take it away. Must never have more than
//! one entry per client.

use crate::error::Result;
use crate::output::{Column, Columns, Output, Side};
use crate::records::{NOBODYS_UID, client_name, nonzero};
use fdbroker_protocol::admin::{AllocationRecord, LeaseRecord};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Holding {
    /// `None`: the owner of held fds is gone.
    pub pid: Option<u32>,
    /// `None`: no owner is known.
    pub uid: Option<u32>,
    /// The name that the process gave itself.
    pub name: String,
    /// Fds of its allocations in the broker.
    pub held_fds: u64,
    pub open_leases: u64,
    pub mapped_leases: u64,
}

/// The holdings of all processes.
#[derive(Debug, Default)]
pub struct Left(BTreeMap<(Option<u32>, Option<u32>, String), Holding>);

impl Left {
    const COLUMNS: &'static [Column] = &[
        Column("PID", Side::Right),
        Column("NAME", Side::Left),
        Column("UID", Side::Right),
        Column("HELD_FDS", Side::Right),
        Column("OPEN_LEASES", Side::Right),
        Column("MAPPED_LEASES", Side::Right),
    ];

    fn of(&mut self, pid: Option<u32>, uid: Option<u32>, name: String) -> &mut Holding {
        let new = Holding { pid, uid, name: name.clone(), ..Holding::default() };
        self.0.entry((pid, uid, name)).or_insert(new)
    }

    /// Counts a lease for its holder.
    pub fn add_lease(&mut self, record: &LeaseRecord) {
        let (pid, uid) = (record.pid.get(), record.uid.get());
        let holding = self.of(Some(pid), Some(uid), client_name(&record.name));
        match record.state.get() {
            1 => holding.open_leases += 1,
            _ => holding.mapped_leases += 1,
        }
    }

    /// Counts an allocation whose fd the broker holds, for its owner.
    pub fn add_held(&mut self, record: &AllocationRecord) {
        let (pid, uid, name) = owner(record);
        self.of(pid, uid, name).held_fds += 1;
    }

    /// Number of processes.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// All holdings, sorted by pid.
    pub fn into_sorted(self) -> Vec<Holding> {
        self.0.into_values().collect()
    }

    pub fn write(&self, out: &mut Output) -> Result<()> {
        let text = |number: Option<u32>, none: &str| {
            number.map_or_else(|| none.to_owned(), |number| number.to_string())
        };
        let row = |holding: &Holding| {
            vec![
                text(holding.pid, "gone"),
                holding.name.clone(),
                text(holding.uid, "-"),
                holding.held_fds.to_string(),
                holding.open_leases.to_string(),
                holding.mapped_leases.to_string(),
            ]
        };
        Columns::new(Self::COLUMNS, true).write(self.0.values().map(row).collect(), out)
    }
}

/// Pid, uid and name of an allocation's owner, as far as they are known.
pub fn owner(record: &AllocationRecord) -> (Option<u32>, Option<u32>, String) {
    let pid = nonzero(record.owner_pid).filter(|_| record.owner_gone == 0);
    let uid = Some(record.owner_uid.get()).filter(|uid| *uid != NOBODYS_UID);
    (pid, uid, client_name(&record.owner_name))
}
