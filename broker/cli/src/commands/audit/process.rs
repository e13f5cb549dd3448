//! The result of a scan of /proc: the processes, and what could not be read. Must never read anything itself.

use super::ledger::MemoryKey;
use std::collections::{BTreeMap, HashMap};

/// An fd of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFd {
    pub fd: i32,
    pub key: MemoryKey,
    /// References to a dma-buf: fds, fds in flight, mappings, imports.
    pub references: Option<u64>,
}

/// A socket with fds in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    pub fd: i32,
    pub inode: u64,
    /// Fds in the queue.
    pub in_flight: u64,
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
    /// Inodes of its sockets; of the broker only.
    pub sockets: Vec<u64>,
    pub mapped: BTreeMap<MemoryKey, Mapped>,
    /// The reason why its fds and mappings could not be read.
    pub unread: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// By pid.
    pub processes: BTreeMap<u32, Process>,
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
