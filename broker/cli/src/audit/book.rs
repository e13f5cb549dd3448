//! One look: the ledger before and after /proc was read, and sums of both by memory and by holder. What may be is the
//! union of both ledgers, what is for sure their intersection. Must never judge, nor count what was true for a moment
//! only as sure.

use super::ledger::{Allocation, Lease, Ledger, MemoryKey};
use super::scan::{Process, Scan};
use fdbroker_protocol::{AllocationId, MemoryKind};
use std::collections::{BTreeMap, HashMap};

/// What was read in one look.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The ledger before /proc was read.
    pub before: Ledger,
    /// And after.
    pub after: Ledger,
    /// What /proc said.
    pub scan: Scan,
    /// The other end of each Unix socket by inode, `None` when that is closed; sockets of other network namespaces are
    /// not here.
    pub peers: HashMap<u64, Option<u64>>,
}

/// A memory that can be told in /proc, or one that the broker holds no fd of, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Of {
    /// By its key.
    Known(MemoryKey),
    /// Evicted, or ended.
    Unknown(MemoryKind),
}

impl Of {
    /// What it is.
    pub fn kind(self) -> MemoryKind {
        match self {
            Of::Known(key) => key.kind,
            Of::Unknown(kind) => kind,
        }
    }
}

/// What is known of one memory.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The first allocation in it.
    pub first: AllocationId,
    /// Bytes of its allocations.
    pub size_bytes: u64,
    /// Owners by pid, with their allocations in it.
    pub owners: BTreeMap<u32, u64>,
    /// Some allocation in it outlives its owner.
    pub keep: bool,
    /// Fds that the broker may hold of it, and that it holds for sure.
    pub records: (u64, u64),
}

/// What the ledger has of one holder.
#[derive(Clone, Debug, Default)]
pub struct Holder<'a> {
    /// Open leases that it may have.
    pub open: BTreeMap<Of, u64>,
    /// Leases of any state that it may have.
    pub any: BTreeMap<Of, u64>,
    /// Open leases that it has for sure.
    pub sure_open: BTreeMap<Of, Vec<(u64, &'a Lease)>>,
    /// Mapped ones that it has for sure.
    pub sure_mapped: BTreeMap<Of, Vec<(u64, &'a Lease)>>,
}

/// Sums over one look.
#[derive(Debug)]
pub struct Book<'a> {
    /// What was read.
    pub look: &'a Look,
    /// Memories by key.
    pub memories: BTreeMap<MemoryKey, Memory>,
    /// Holders by pid.
    pub holders: BTreeMap<u32, Holder<'a>>,
}

impl<'a> Book<'a> {
    /// Sums up.
    pub fn new(look: &'a Look) -> Self {
        let mut book = Book { look, memories: BTreeMap::new(), holders: BTreeMap::new() };
        for (id, allocation) in &look.before.allocations {
            book.add_allocation(*id, allocation, look.after.allocations.get(id));
        }
        for (id, allocation) in &look.after.allocations {
            let before = look.before.allocations.get(id);
            // Those known before and held before have been added.
            if before.is_none_or(|before| before.key.is_none()) {
                book.add_allocation(*id, allocation, before);
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

    fn add_allocation(
        &mut self,
        id: AllocationId,
        allocation: &Allocation,
        other: Option<&Allocation>,
    ) {
        let Some(key) = allocation.key else { return };
        let is_sure = other.is_some_and(|other| other.key == Some(key));
        let empty = Memory {
            first: id,
            size_bytes: 0,
            owners: BTreeMap::new(),
            keep: false,
            records: (0, 0),
        };
        let memory = self.memories.entry(key).or_insert(empty);
        memory.first = memory.first.min(id);
        memory.size_bytes = memory.size_bytes.saturating_add(allocation.size_bytes);
        memory.keep |= allocation.keep;
        memory.records.0 += 1;
        memory.records.1 += u64::from(is_sure);
        if allocation.owner_pid != 0 {
            *memory.owners.entry(allocation.owner_pid).or_default() += 1;
        }
    }

    fn add_lease(&mut self, number: u64, lease: &'a Lease, other: Option<&Lease>) {
        if lease.pid == 0 {
            return;
        }
        let of = self.what(lease.allocation);
        let holder = self.holders.entry(lease.pid).or_default();
        let is_open = !lease.mapped || other.is_some_and(|other| !other.mapped);
        // What the ledger no longer has may have been of any kind.
        let kinds = MemoryKind::ALL.iter().map(|kind| Of::Unknown(*kind));
        let may_be: Vec<Of> = of.map_or_else(|| kinds.collect(), |of| vec![of]);
        for of in may_be {
            *holder.any.entry(of).or_default() += 1;
            *holder.open.entry(of).or_default() += u64::from(is_open);
        }
        let (Some(of), Some(other)) = (of, other) else { return };
        if other.mapped == lease.mapped {
            let sure = if lease.mapped { &mut holder.sure_mapped } else { &mut holder.sure_open };
            sure.entry(of).or_default().push((number, lease));
        }
    }

    fn what(&self, id: AllocationId) -> Option<Of> {
        let (before, after) =
            (self.look.before.allocations.get(&id), self.look.after.allocations.get(&id));
        let key = before.and_then(|it| it.key).or_else(|| after.and_then(|it| it.key));
        match key {
            Some(key) => Some(Of::Known(key)),
            None => before.or(after).map(|allocation| Of::Unknown(allocation.kind)),
        }
    }

    /// The broker's pid.
    pub fn broker(&self) -> u32 {
        self.look.after.broker
    }

    /// Processes that could be read, without the broker.
    pub fn others(&self) -> impl Iterator<Item = (u32, &'a Process)> {
        let broker = self.broker();
        let all = self.look.scan.processes.iter().map(|(pid, process)| (*pid, process));
        all.filter(move |(pid, process)| *pid != broker && process.unread.is_none())
    }

    /// Whether a process is connected.
    pub fn is_client(&self, pid: u32) -> bool {
        self.look.before.clients.contains_key(&pid) || self.look.after.clients.contains_key(&pid)
    }

    /// Whether it may be the service manager of the broker, which keeps fds for the time after a crash.
    pub fn is_manager(&self, pid: u32) -> bool {
        let broker = self.look.scan.processes.get(&self.broker());
        pid == 1 || broker.is_some_and(|broker| broker.parent == pid)
    }

    /// The nearest ancestor of `pid` that is one of these.
    pub fn ancestor(&self, pid: u32, is_one: impl Fn(u32) -> bool) -> Option<u32> {
        let parent = |pid: &u32| self.look.scan.processes.get(pid).map(|process| process.parent);
        let ancestors = std::iter::successors(parent(&pid), parent);
        ancestors.take(super::limits::MAX_ANCESTORS).find(|pid| is_one(*pid))
    }

    /// Fds of a process by memory, those of unknown memory by kind.
    pub fn fds(&self, process: &Process) -> BTreeMap<Of, Vec<i32>> {
        let mut fds: BTreeMap<Of, Vec<i32>> = BTreeMap::new();
        for memory in &process.fds {
            fds.entry(self.of(memory.key)).or_default().push(memory.fd);
        }
        fds
    }

    /// Whether a process has such memory mapped.
    pub fn has_mapped(&self, process: &Process, of: Of) -> bool {
        process.mapped.keys().any(|key| self.of(*key) == of)
    }

    /// References to a dma-buf, and those of them that are fds and mappings seen; what is beyond is imports of drivers, in
    /// flight, or of processes that were not read.
    pub fn references(&self, key: MemoryKey) -> (u64, u64) {
        let (mut references, mut seen) = (0, 0);
        for process in self.look.scan.processes.values() {
            for fd in process.fds.iter().filter(|fd| fd.key == key) {
                seen += 1;
                references = references.max(fd.references.unwrap_or(0));
            }
            seen += process.mapped.get(&key).map_or(0, |mapped| mapped.mappings);
        }
        (references, seen)
    }

    fn of(&self, key: MemoryKey) -> Of {
        match self.memories.contains_key(&key) {
            true => Of::Known(key),
            false => Of::Unknown(key.kind),
        }
    }
}
