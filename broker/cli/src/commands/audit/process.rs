//! What one scan of /proc has found: the processes, and what it could not look at. Must never read anything itself.

use super::ledger::MemoryKey;
use std::collections::{BTreeMap, HashMap};

/// An fd of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFd {
    /// Its number.
    pub fd: i32,
    /// What it is of.
    pub key: MemoryKey,
    /// References to a dma-buf: fds, fds in flight, mappings, imports.
    pub references: Option<u64>,
}

/// A socket in whose queue fds lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its number.
    pub fd: i32,
    /// Its inode.
    pub inode: u64,
    /// Fds in the queue.
    pub in_flight: u64,
}

/// Mappings of one piece of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// How many.
    pub mappings: u64,
    /// Bytes of address space.
    pub bytes: u64,
}

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its name.
    pub command: String,
    /// Letter of its state, `T` stopped.
    pub state: char,
    /// Who started it.
    pub parent: u32,
    /// Real uid.
    pub uid: u32,
    /// The job that its cgroup names.
    pub job: String,
    /// Fds of memory.
    pub fds: Vec<MemoryFd>,
    /// Sockets with fds in their queue.
    pub queues: Vec<Queue>,
    /// Inodes of its sockets; of the broker only.
    pub sockets: Vec<u64>,
    /// Mappings.
    pub mapped: BTreeMap<MemoryKey, Mapped>,
    /// Why its fds and mappings could not be read.
    pub unread: Option<String>,
}

/// What was found, and what could not be looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// By pid.
    pub processes: BTreeMap<u32, Process>,
    /// Fds read.
    pub fds: u64,
    /// What was not looked at, and why.
    pub gaps: BTreeMap<String, u64>,
    /// CUDA fds could be compared with the broker's.
    pub cuda_seen: bool,
    /// Of each CUDA fd of the broker's, the lowest one of the same file.
    pub cuda_files: HashMap<u64, u64>,
}

impl Scan {
    /// Notes that something was not looked at.
    pub fn gap(&mut self, what: impl Into<String>) {
        *self.gaps.entry(what.into()).or_default() += 1;
    }
}
