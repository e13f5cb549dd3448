//! What the broker says: its ledger, read page by page and kept in as few bytes as the comparison needs.
//! Must never judge.

use super::limits::MAX_RECORDS;
use crate::admin::{Admin, Selection};
use crate::error::{Error, Result};
use crate::records::NOBODYS_UID;
use fdbroker_protocol::admin::{
    AllocationRecord, AllocationState, ClientRecord, LeaseRecord, NO_OWN_FD,
};
use fdbroker_protocol::limits::FORMER_FILES;
use fdbroker_protocol::message::register_flags;
use fdbroker_protocol::{AllocationId, MemoryKind};
use std::collections::{BTreeMap, HashMap};

/// What tells one file of memory from others in /proc. Ranges of one memfd share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemoryKey {
    /// What it is.
    pub kind: MemoryKind,
    /// Its inode. CUDA exports all have that of their device: of these the broker's fd, the lowest of duplicates.
    pub number: u64,
}

impl MemoryKey {
    /// Its inode, if that tells it.
    pub fn inode(self) -> Option<u64> {
        (self.kind != MemoryKind::CudaVmm).then_some(self.number)
    }
}

/// The files of one allocation: the one that is held, or was the last to be, and those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Files {
    /// 0 = none: no inode is, and no fd of the broker's.
    pub numbers: [u64; 1 + FORMER_FILES],
    /// For how long it has had no others, in ms; [`u64::MAX`]: ever since.
    pub known_ms: u64,
}

/// One allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Where its fd is.
    pub state: AllocationState,
    /// What it is.
    pub kind: MemoryKind,
    /// The broker's fd of it, while it holds one.
    pub fd: Option<u32>,
    /// By which it is told in /proc; none when they are not known, as those of evicted CUDA memory.
    pub files: Files,
    /// It outlives its owner.
    pub keep: bool,
    /// 0 when gone, or when the broker cannot see it (another PID namespace).
    pub owner_pid: u32,
    /// The owner is gone.
    pub owner_gone: bool,
    /// Its uid, `None` of what nobody has named again after a crash.
    pub owner_uid: Option<u32>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Leases of it, open and mapped.
    pub leases: u32,
}

impl Allocation {
    /// Whether it is known what it is: of what nobody has named again after a crash, not even the kind.
    pub fn is_named(&self) -> bool {
        self.owner_uid.is_some()
    }

    /// Its files.
    pub fn keys(&self) -> impl Iterator<Item = MemoryKey> + use<> {
        let kind = self.kind;
        let known = self.files.numbers.into_iter().filter(|number| *number != 0);
        known.map(move |number| MemoryKey { kind, number })
    }
}

/// One lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Of what.
    pub allocation: AllocationId,
    /// Whose; 0 when the broker cannot see it.
    pub pid: u32,
    /// Of which user.
    pub uid: u32,
    /// Imported, and the fd closed.
    pub mapped: bool,
    /// The allocation has ended.
    pub ended: bool,
    /// For how long, in ms.
    pub age_ms: u64,
    /// Size of the allocation in bytes.
    pub size_bytes: u64,
}

/// One client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// It misses a recall.
    pub silent: bool,
}

/// The broker's ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// The broker's pid.
    pub broker: u32,
    /// Fds that it holds.
    pub held_now: u64,
    /// Fds that it is closing.
    pub closing_now: u64,
    /// What it has done since it started: grants, and evictions.
    pub done: (u64, u64),
    /// Allocations.
    pub allocations: HashMap<AllocationId, Allocation>,
    /// Leases by number.
    pub leases: BTreeMap<u64, Lease>,
    /// Clients by pid; those that the broker cannot see have none.
    pub clients: BTreeMap<u32, Client>,
    /// Clients without a pid: they are in another PID namespace.
    pub unseen_clients: u64,
}

impl Ledger {
    /// Reads all of it.
    pub fn read(admin: &mut Admin) -> Result<Self> {
        let status = admin.status()?;
        let mut ledger = Ledger {
            broker: status.pid.get(),
            held_now: status.held_now.get(),
            closing_now: status.closing_now.get(),
            done: (status.grants.get(), status.evictions.get()),
            ..Ledger::default()
        };
        admin.each_page(Selection::ALL, |page: &[AllocationRecord]| {
            page.iter().for_each(|record| ledger.add_allocation(record));
            check_size(ledger.allocations.len(), "allocations")
        })?;
        admin.each_page(Selection::ALL, |page: &[LeaseRecord]| {
            page.iter().for_each(|record| ledger.add_lease(record));
            check_size(ledger.leases.len(), "leases")
        })?;
        admin.each_page(Selection::ALL, |page: &[ClientRecord]| {
            page.iter().for_each(|record| ledger.add_client(record));
            Ok(())
        })?;
        Ok(ledger)
    }

    fn add_allocation(&mut self, record: &AllocationRecord) {
        let id = AllocationId { slot: record.slot.get(), generation: record.generation.get() };
        // A newer broker's kinds and states: nothing that this release can compare.
        let (Some(kind), Some(state)) = (
            MemoryKind::from_number(record.kind),
            AllocationState::from_number(record.state.get()),
        ) else {
            return;
        };
        let fd = Some(record.fd.get()).filter(|fd| *fd != NO_OWN_FD);
        let [newest, older, oldest] = record.former_inodes.map(|inode| inode.get());
        let files = match kind {
            // Their inode is that of the device.
            MemoryKind::CudaVmm => {
                Files { numbers: [fd.unwrap_or(0).into(), 0, 0, 0], known_ms: u64::MAX }
            }
            _ => Files {
                numbers: [record.inode.get(), newest, older, oldest],
                known_ms: record.files_ms.get(),
            },
        };
        let allocation = Allocation {
            state,
            kind,
            fd,
            files,
            keep: record.flags & register_flags::KEEP != 0,
            owner_pid: if record.owner_gone == 0 { record.owner_pid.get() } else { 0 },
            owner_gone: record.owner_gone != 0,
            owner_uid: Some(record.owner_uid.get()).filter(|uid| *uid != NOBODYS_UID),
            size_bytes: record.size_bytes.get(),
            leases: record.open_leases.get().saturating_add(record.mapped_leases.get()),
        };
        self.allocations.insert(id, allocation);
    }

    /// Names CUDA files by the lowest of the broker's fds of them; `lowest` by fd.
    pub fn name_cuda_files(&mut self, lowest: &HashMap<u64, u64>) {
        for allocation in self.allocations.values_mut() {
            if allocation.kind == MemoryKind::CudaVmm {
                let number = &mut allocation.files.numbers[0];
                *number = lowest.get(number).copied().unwrap_or(*number);
            }
        }
    }

    fn add_lease(&mut self, record: &LeaseRecord) {
        let allocation =
            AllocationId { slot: record.slot.get(), generation: record.generation.get() };
        let lease = Lease {
            allocation,
            pid: record.pid.get(),
            uid: record.uid.get(),
            mapped: record.state.get() == 2,
            ended: record.ended.get() != 0,
            age_ms: record.age_ms.get(),
            size_bytes: record.size_bytes.get(),
        };
        self.leases.insert(record.lease.get(), lease);
    }

    fn add_client(&mut self, record: &ClientRecord) {
        let pid = record.pid.get();
        if pid == 0 {
            self.unseen_clients += 1;
            return;
        }
        let silent = record.silent.get() != 0;
        // A process may be a client several times over.
        let client = self.clients.entry(pid).or_insert(Client { silent });
        client.silent |= silent;
    }
}

fn check_size(count: usize, what: &str) -> Result<()> {
    match count <= MAX_RECORDS {
        true => Ok(()),
        false => Err(Error::Other(format!(
            "the broker has more than {MAX_RECORDS} {what}, which audit does not compare"
        ))),
    }
}
