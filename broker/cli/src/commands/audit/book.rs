//! One look: the ledger before and after /proc was read, with sums by memory and by holder. A fact
//! of one of the two ledgers may hold, a fact of both is sure. Must never judge, nor count a fact
//! of one ledger as sure.

use super::ledger::{Allocation, Lease, Ledger, MemoryKey};
use super::process::{MemoryFd, Process, Scan};
use super::same_memory::SameMemory;
use super::tombstones::Tombstones;
use fdbroker_protocol::{AllocationId, MemoryKind};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Everything that was read in one look.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The ledger before /proc was read.
    pub before: Ledger,
    /// The ledger after /proc was read.
    pub after: Ledger,
    pub scan: Scan,
    /// What the broker remembers of ended allocations, read after /proc.
    pub tombstones: Tombstones,
    /// The other end of each Unix socket of this network namespace by inode; `None` if it is
    /// closed.
    pub peers: HashMap<u64, Option<u64>>,
}

/// A memory that can be recognised in /proc, or all memory of a kind that cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Of {
    /// One of its files, the same throughout a look.
    Known(MemoryKey),
    /// None of its files is known.
    Unknown(MemoryKind),
}

impl Of {
    pub fn kind(self) -> MemoryKind {
        match self {
            Of::Known(key) => key.kind,
            Of::Unknown(kind) => kind,
        }
    }
}

/// One memory: the allocations that share a file, in either ledger.
#[derive(Clone, Debug)]
pub struct Memory {
    pub first: AllocationId,
    pub size_bytes: u64,
    /// Its owners' pids.
    pub owners: BTreeSet<u32>,
    /// At least one allocation in it outlives its owner.
    pub keep: bool,
    /// Fds of it that the broker may hold, and fds that it holds for sure.
    pub records: (u64, u64),
}

/// The leases of one holder.
#[derive(Clone, Debug, Default)]
pub struct Holder<'a> {
    /// Number of open leases that it may have.
    pub open: BTreeMap<Of, u64>,
    /// Number of leases of any state that it may have.
    pub any: BTreeMap<Of, u64>,
    /// Open leases that it has for sure.
    pub sure_open: BTreeMap<Of, Vec<(u64, &'a Lease)>>,
    /// Mapped leases that it has for sure.
    pub sure_mapped: BTreeMap<Of, Vec<(u64, &'a Lease)>>,
}

/// Sums over one look.
#[derive(Debug)]
pub struct Book<'a> {
    pub look: &'a Look,
    /// Memories, by the file that stands for each.
    pub memories: BTreeMap<MemoryKey, Memory>,
    /// Holders by pid.
    pub holders: BTreeMap<u32, Holder<'a>>,
    /// References to the dma-bufs of each memory, and how many of them are fds and mappings that
    /// were seen. The others are imports of drivers, fds in flight, or belong to processes that
    /// were not read.
    pub references: BTreeMap<MemoryKey, (u64, u64)>,
    files: SameMemory,
    /// The process that has each socket; of several, one.
    sockets: HashMap<u64, u32>,
    /// Users of clients, with their jobs.
    users: BTreeSet<(u32, &'a str)>,
}

impl<'a> Book<'a> {
    pub fn new(look: &'a Look) -> Self {
        let (before, after) = (&look.before.allocations, &look.after.allocations);
        let mut files = SameMemory::default();
        for (id, allocation) in before.iter().chain(after) {
            let other = [before, after].into_iter().filter_map(|ledger| ledger.get(id));
            files.join(allocation.keys().chain(other.flat_map(Allocation::keys)));
        }
        files.flatten();
        let references = references(&look.scan, &files);
        let (memories, holders) = (BTreeMap::new(), BTreeMap::new());
        let (sockets, users) = (HashMap::new(), BTreeSet::new());
        let mut book = Book { look, memories, holders, references, files, sockets, users };
        book.add_processes();
        for (id, allocation) in before {
            book.add_allocation(*id, allocation, after.get(id));
        }
        for (id, allocation) in after {
            if !before.contains_key(id) {
                book.add_allocation(*id, allocation, None);
            }
        }
        for (number, lease) in &look.before.leases {
            book.add_lease(*number, lease, look.after.leases.get(number));
        }
        for (number, lease) in &look.after.leases {
            if !look.before.leases.contains_key(number) {
                book.add_lease(*number, lease, None);
            }
        }
        book
    }

    fn add_processes(&mut self) {
        for (pid, process) in &self.look.scan.processes {
            self.sockets.extend(process.sockets.iter().map(|inode| (*inode, *pid)));
            if self.is_client(*pid) {
                self.users.insert((process.uid, process.job.as_str()));
            }
        }
        // A client's child has its sockets, too.
        for pid in self.look.after.clients.keys() {
            let sockets = self.look.scan.processes.get(pid).into_iter().flat_map(|it| &it.sockets);
            self.sockets.extend(sockets.map(|inode| (*inode, *pid)));
        }
    }

    fn add_allocation(
        &mut self,
        id: AllocationId,
        allocation: &Allocation,
        other: Option<&Allocation>,
    ) {
        let mut keys = allocation.keys().chain(other.into_iter().flat_map(Allocation::keys));
        let Some(key) = keys.next().and_then(|key| self.files.top(key)) else { return };
        let empty = Memory {
            first: id,
            size_bytes: 0,
            owners: BTreeSet::new(),
            keep: false,
            records: (0, 0),
        };
        let memory = self.memories.entry(key).or_insert(empty);
        memory.first = memory.first.min(id);
        memory.size_bytes = memory.size_bytes.saturating_add(allocation.size_bytes);
        memory.keep |= allocation.keep;
        let other = other.and_then(|other| other.fd);
        memory.records.0 += u64::from(allocation.fd.or(other).is_some());
        memory.records.1 += u64::from(allocation.fd.is_some() && allocation.fd == other);
        if allocation.owner_pid != 0 {
            memory.owners.insert(allocation.owner_pid);
        }
    }

    fn add_lease(&mut self, number: u64, lease: &'a Lease, other: Option<&Lease>) {
        if lease.pid == 0 {
            return;
        }
        let (may_be, is_sure) = self.what(lease, other);
        let holder = self.holders.entry(lease.pid).or_default();
        let is_open = !lease.mapped || other.is_some_and(|other| !other.mapped);
        for of in &may_be {
            *holder.any.entry(*of).or_default() += 1;
            *holder.open.entry(*of).or_default() += u64::from(is_open);
        }
        let (Some(other), Some(of), true) = (other, may_be.first(), is_sure) else { return };
        if other.mapped == lease.mapped {
            let sure = if lease.mapped { &mut holder.sure_mapped } else { &mut holder.sure_open };
            sure.entry(*of).or_default().push((number, lease));
        }
    }

    /// The memory that a lease may be of, and whether that is sure.
    fn what(&self, lease: &Lease, other: Option<&Lease>) -> (Vec<Of>, bool) {
        let id = &lease.allocation;
        let (before, after) =
            (self.look.before.allocations.get(id), self.look.after.allocations.get(id));
        let both = || [before, after].into_iter().flatten();
        let Some(some) = both().find(|allocation| allocation.is_named()) else {
            // An allocation that neither ledger has any more, or that no owner has declared after a
            // crash, may be of any kind.
            return (MemoryKind::ALL.iter().map(|kind| Of::Unknown(*kind)).collect(), false);
        };
        let key = both().flat_map(Allocation::keys).next().and_then(|key| self.files.top(key));
        let Some(key) = key else { return (vec![Of::Unknown(some.kind)], true) };
        let age_ms = other.map_or(lease.age_ms, |other| lease.age_ms.max(other.age_ms));
        let fd = |allocation: Option<&Allocation>| allocation.and_then(|it| it.fd);
        let is_sure = match some.kind {
            // Recognised only while the broker holds it: a copy may have been read before or after
            // that.
            kind if !kind.has_own_inode() => fd(before).is_some() && fd(before) == fd(after),
            _ => both().all(|allocation| age_ms < allocation.files.known_ms),
        };
        let unknown = (!is_sure).then_some(Of::Unknown(some.kind));
        (std::iter::once(Of::Known(key)).chain(unknown).collect(), is_sure)
    }

    /// The broker's pid.
    pub fn broker(&self) -> u32 {
        self.look.after.broker
    }

    /// All processes that could be read, except the broker.
    pub fn others(&self) -> impl Iterator<Item = (u32, &'a Process)> {
        let broker = self.broker();
        let all = self.look.scan.processes.iter().map(|(pid, process)| (*pid, process));
        all.filter(move |(pid, process)| *pid != broker && process.unread.is_none())
    }

    /// Whether a process is a client.
    pub fn is_client(&self, pid: u32) -> bool {
        self.look.before.clients.contains_key(&pid) || self.look.after.clients.contains_key(&pid)
    }

    /// Whether a process is a client, or has memory of the broker's allocations.
    pub fn is_near(&self, pid: u32, process: &Process) -> bool {
        let mut has = process.fds.iter().map(|fd| &fd.key).chain(process.mapped.keys());
        self.is_client(pid)
            || has.any(|key| {
                self.memory(self.of(*key)).is_some() || self.look.tombstones.files.contains_key(key)
            })
    }

    /// Whether a process may be a helper of clients: of their user and job.
    pub fn is_beside_clients(&self, process: &'a Process) -> bool {
        self.users.contains(&(process.uid, process.job.as_str()))
    }

    /// The process that has a socket.
    pub fn holder_of_socket(&self, inode: u64) -> Option<u32> {
        self.sockets.get(&inode).copied()
    }

    /// Whether it may be the broker's service manager, which keeps fds for the time after a crash.
    pub fn is_manager(&self, pid: u32) -> bool {
        let broker = self.look.scan.processes.get(&self.broker());
        pid == 1 || broker.is_some_and(|broker| broker.parent == pid)
    }

    /// The nearest ancestor of `pid` for which `is_one` is true.
    pub fn ancestor(&self, pid: u32, is_one: impl Fn(u32) -> bool) -> Option<u32> {
        let parent = |pid: &u32| self.look.scan.processes.get(pid).map(|process| process.parent);
        let ancestors = std::iter::successors(parent(&pid), parent);
        ancestors.take(super::limits::MAX_ANCESTORS).find(|pid| is_one(*pid))
    }

    /// Fds of a process by memory; fds of unknown memory by kind.
    pub fn fds(&self, process: &'a Process) -> BTreeMap<Of, Vec<&'a MemoryFd>> {
        let mut fds: BTreeMap<Of, Vec<&MemoryFd>> = BTreeMap::new();
        for memory in &process.fds {
            fds.entry(self.of(memory.key)).or_default().push(memory);
        }
        fds
    }

    /// Whether a process has the memory mapped.
    pub fn has_mapped(&self, process: &Process, of: Of) -> bool {
        process.mapped.keys().any(|key| self.of(*key) == of)
    }

    /// The memory, if it can be recognised.
    pub fn memory(&self, of: Of) -> Option<&Memory> {
        match of {
            Of::Known(key) => self.memories.get(&key),
            Of::Unknown(_) => None,
        }
    }

    /// The memory of a file.
    pub fn of(&self, key: MemoryKey) -> Of {
        self.files.top(key).map_or(Of::Unknown(key.kind), Of::Known)
    }
}

fn references(scan: &Scan, files: &SameMemory) -> BTreeMap<MemoryKey, (u64, u64)> {
    let mut by_file: BTreeMap<MemoryKey, (u64, u64)> = BTreeMap::new();
    for process in scan.processes.values() {
        for fd in &process.fds {
            let (references, seen) = by_file.entry(fd.key).or_default();
            *references = fd.references.unwrap_or(0).max(*references);
            *seen += 1;
        }
        for (key, mapped) in &process.mapped {
            by_file.entry(*key).or_default().1 += mapped.mappings;
        }
    }
    let mut by_memory: BTreeMap<MemoryKey, (u64, u64)> = BTreeMap::new();
    let dma_bufs = by_file.into_iter().filter(|(key, _)| key.kind.counts_references());
    for (key, (references, seen)) in dma_bufs {
        if let Some(top) = files.top(key) {
            let sums = by_memory.entry(top).or_default();
            *sums = (sums.0 + references, sums.1 + seen);
        }
    }
    by_memory
}
