//! The broker's ledger, read page by page, and stored in as few bytes as the comparison needs. Must
//! never judge.

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

/// Identity of a file of memory in /proc. All ranges of one memfd have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemoryKey {
    pub kind: MemoryKind,
    /// Its inode. All CUDA exports have the inode of their device: for them, the broker's lowest fd
    /// of the file.
    pub number: u64,
}

impl MemoryKey {
    /// Its inode, if it identifies the file.
    pub fn inode(self) -> Option<u64> {
        self.kind.has_own_inode().then_some(self.number)
    }
}

/// The files of an allocation: the file that is held or was held last, and former files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Files {
    /// 0 = none.
    pub numbers: [u64; 1 + FORMER_FILES],
    /// For so many ms it has had no other files; [`u64::MAX`]: never.
    pub known_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub state: AllocationState,
    pub kind: MemoryKind,
    /// The broker's fd, while it holds one.
    pub fd: Option<u32>,
    /// Its files; all 0 if unknown, as for evicted CUDA memory.
    pub files: Files,
    /// It outlives its owner.
    pub keep: bool,
    /// It is the memory of named objects, which need no owner.
    pub named: bool,
    /// 0 if the owner is gone, or in a PID namespace that the broker cannot see.
    pub owner_pid: u32,
    pub owner_gone: bool,
    /// The owner's uid; `None` until an owner declares the allocation after a crash.
    pub owner_uid: Option<u32>,
    pub size_bytes: u64,
    /// Number of open and mapped leases.
    pub leases: u32,
    /// The number by which programs under a layer know it.
    pub virtual_fd: Option<u32>,
}

impl Allocation {
    /// Whether an owner has declared it since a crash: before, not even the kind is known.
    pub fn is_named(&self) -> bool {
        self.owner_uid.is_some()
    }

    /// Its files, without those that are unknown.
    pub fn keys(&self) -> impl Iterator<Item = MemoryKey> + use<> {
        let kind = self.kind;
        let known = self.files.numbers.into_iter().filter(|number| *number != 0);
        known.map(move |number| MemoryKey { kind, number })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub allocation: AllocationId,
    /// The holder; 0 if the broker cannot see its pid.
    pub pid: u32,
    pub uid: u32,
    /// The holder has imported the memory and closed the fd.
    pub mapped: bool,
    /// The allocation has ended.
    pub ended: bool,
    /// Time since the grant, in ms.
    pub age_ms: u64,
    /// Size of the allocation in bytes.
    pub size_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// It has not answered a recall in time.
    pub silent: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// It has everything, and not only what is this user's own.
    pub is_whole: bool,
    /// The broker's pid.
    pub broker: u32,
    pub stored_fds: u64,
    /// Fds that it is closing.
    pub closing_fds: u64,
    /// Grants, evictions and deposits since its start: these change while the broker is busy.
    pub done: (u64, u64, u64),
    pub allocations: HashMap<AllocationId, Allocation>,
    /// Leases by number.
    pub leases: BTreeMap<u64, Lease>,
    /// Clients with a pid, by pid.
    pub clients: BTreeMap<u32, Client>,
    /// Number of clients without a pid, in PID namespaces that the broker cannot see.
    pub unseen_clients: u64,
}

impl Ledger {
    pub fn read(admin: &mut Admin) -> Result<Self> {
        let status = admin.status()?;
        let mut ledger = Ledger {
            is_whole: !admin.is_own_part(),
            broker: status.pid.get(),
            stored_fds: status.gauges.stored_fds.get(),
            closing_fds: status.gauges.closing_fds.get(),
            done: (
                status.counters.grants.get(),
                status.counters.evictions.get(),
                status.counters.deposits.get(),
            ),
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
        // Kinds and states of a newer broker cannot be compared.
        let (Some(kind), Some(state)) = (
            MemoryKind::from_number(record.facts.kind),
            AllocationState::from_number(record.state.get()),
        ) else {
            return;
        };
        let fd = Some(record.fd.get()).filter(|fd| *fd != NO_OWN_FD);
        let [newest, older, oldest] = record.former_inodes.map(|inode| inode.get());
        let files = if kind.has_own_inode() {
            Files {
                numbers: [record.inode.get(), newest, older, oldest],
                known_ms: record.files_ms.get(),
            }
        } else {
            Files { numbers: [fd.unwrap_or(0).into(), 0, 0, 0], known_ms: u64::MAX }
        };
        let allocation = Allocation {
            state,
            kind,
            fd,
            files,
            keep: record.flags & register_flags::KEEP != 0,
            named: record.flags & register_flags::NAMED != 0,
            owner_pid: record.owner_pid.get(),
            owner_gone: record.owner_gone != 0,
            owner_uid: Some(record.owner_uid.get()).filter(|uid| *uid != NOBODYS_UID),
            size_bytes: record.facts.size_bytes.get(),
            leases: record.open_leases.get().saturating_add(record.mapped_leases.get()),
            virtual_fd: Some(record.virtual_fd.get()).filter(|fd| *fd != 0),
        };
        self.allocations.insert(id, allocation);
    }

    /// Names CUDA files by the broker's lowest fd of each; `lowest` has it for each fd.
    pub fn name_cuda_files(&mut self, lowest: &HashMap<u64, u64>) {
        for allocation in self.allocations.values_mut() {
            if !allocation.kind.has_own_inode() {
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
        // A process may have several connections.
        let client = self.clients.entry(pid).or_insert(Client { silent });
        client.silent |= silent;
    }
}

fn check_size(count: usize, what: &str) -> Result<()> {
    if count <= MAX_RECORDS {
        Ok(())
    } else {
        Err(Error::Other(format!(
            "the broker has more than {MAX_RECORDS} {what}, which audit does not compare"
        )))
    }
}
