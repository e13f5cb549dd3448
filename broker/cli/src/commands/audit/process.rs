//! The result of a scan of /proc: the processes, and what could not be read. Must never read
//! anything itself.

use super::ledger::MemoryKey;
use std::collections::{BTreeMap, HashMap};

/// An fd of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFd {
    pub fd: i32,
    /// The thread that has it in an fd table of its own; 0: it is in the table of the process.
    pub thread: u32,
    pub key: MemoryKey,
    /// References to a dma-buf: fds, fds in flight, mappings, imports.
    pub references: Option<u64>,
    /// A memfd with the seals that a deposit needs; only of clients.
    pub sealed: bool,
}

impl MemoryFd {
    pub fn new(fd: i32, key: MemoryKey) -> Self {
        MemoryFd { fd, thread: 0, key, references: None, sealed: false }
    }
}

/// A socket with fds in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    pub fd: i32,
    pub inode: u64,
    /// Fds in the queue.
    pub in_flight: u64,
}

/// An io_uring with files or memory of its own (io_uring_register(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    pub fd: i32,
    /// Registered files that are shared memory.
    pub files: u64,
    /// Buffers that are registered with the ring: their pages stay pinned until it is closed.
    pub buffers: u64,
}

/// A dma-buf in the kernel's list of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub inode: u64,
    pub size_bytes: u64,
    /// Fds, fds in flight, mappings, imports.
    pub references: u64,
    pub exporter: String,
}

/// Mappings of one memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    pub mappings: u64,
    /// Bytes of address space.
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// `Name` in /proc/PID/status; a control character is a `?`.
    pub command: String,
    /// Letter of its state, `T` stopped.
    pub state: char,
    /// Pid of its parent.
    pub parent: u32,
    /// Real uid.
    pub uid: u32,
    /// The job of its cgroup.
    pub job: String,
    pub fds: Vec<MemoryFd>,
    /// Sockets with fds in their queue.
    pub queues: Vec<Queue>,
    /// Inodes of its sockets.
    pub sockets: Vec<u64>,
    pub rings: Vec<Ring>,
    /// The first thread has ended, and so many live on.
    pub headless: Option<u64>,
    pub mapped: BTreeMap<MemoryKey, Mapped>,
    /// The reason why its fds and mappings could not be read.
    pub unread: Option<String>,
}

impl Process {
    /// Its first thread has ended.
    pub fn is_dead(&self) -> bool {
        self.state == 'Z' || self.state == 'X'
    }

    /// Leaves nothing of a part that was read before the rest could not be.
    pub fn forget(&mut self) {
        self.fds.clear();
        self.queues.clear();
        self.sockets.clear();
        self.rings.clear();
        self.mapped.clear();
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// By pid.
    pub processes: BTreeMap<u32, Process>,
    /// All dma-bufs that the kernel lists.
    pub buffers: Vec<Buffer>,
    /// Number of fds that were read.
    pub fds: u64,
    /// What could not be read, with the reason: how often.
    pub gaps: BTreeMap<String, u64>,
    /// CUDA fds could be compared with the broker's fds.
    pub cuda_seen: bool,
    /// For each CUDA fd of the broker, its lowest fd of the same file.
    pub cuda_files: HashMap<u64, u64>,
}

impl Scan {
    /// Notes something that could not be read.
    pub fn gap(&mut self, what: impl Into<String>) {
        *self.gaps.entry(what.into()).or_default() += 1;
    }
}
