//! The findings of audit: their kinds and remedies. Must never name a remedy that does not exist.

use super::ledger::{Lease, MemoryKey};
use super::limits::MAX_LISTED;
use super::process::Process;
use crate::records::as_seconds_or_null;
use fdbroker_protocol::AllocationId;
use serde::{Serialize, Serializer};

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal: $remedy:literal,)*) => {
        /// A kind of fault, or of note: notes are the kinds from [`Kind::Ended`] on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        pub enum Kind {
            $($(#[$doc])* #[serde(rename = $name)] $kind,)*
        }

        impl Kind {
            const ALL: &[Kind] = &[$(Kind::$kind),*];

            fn name_and_remedy(self) -> (&'static str, &'static str) {
                match self {
                    $(Kind::$kind => ($name, $remedy),)*
                }
            }
        }
    };
}

kinds! {
    /// A client has more fds of a memory than leases.
    Leak "leak": "the process has copied a granted fd (dup, an import that keeps it) or not closed one after giving it back: \
        close the fds named, or end the process",
    /// A process that is no client has an fd of a client's memory.
    Stray "stray":
        "a child inherited the fd by fork, or got it over a socket: close it there (close-on-exec does it for programs \
        that are started), or end the process; it pins the memory until then",
    /// A process has mapped memory without a lease.
    StrayMapping "stray_mapping":
        "the process mapped the memory and gave its lease back, or never had one: unmap it, or end the process; it pins \
        the memory until then",
    /// Fds lie in the queue of a socket, unread.
    InFlight "in_flight":
        "receive and close what lies in the socket, or close the socket; no other tool shows these fds, and they pin \
        their memory",
    /// A client has a lease, but neither an fd nor a mapping.
    Forgotten "forgotten":
        "the client closed or unmapped it without giving the lease back (drop the Grant or Import, do not close its fd by \
        hand): it is charged for it until it does or ends",
    /// An allocation has neither owner nor holders.
    Orphan "orphan": "kept for a new owner that has not come: it ends by itself after the broker's keep_ttl",
    /// A process that is stopped or silent keeps ended memory, or any process keeps it for longer
    /// than a minute.
    Pinned "pinned":
        "the memory is freed only when the process gives its leases back: let it run on (kill -CONT) and drop its imports, \
        or end it",
    /// A process has an fd or a mapping of memory that has ended, and no lease.
    EndedCopy "ended_copy":
        "the allocation has ended and nobody has a lease, yet this process pins its memory: close the fds and unmap it \
        there, or end the process",
    /// Memory that has ended lives on, and no process has it.
    EndedUnheld "ended_unheld":
        "the kernel keeps it for an import of a driver, a ring, or a message that nobody reads: end the processes that \
        have used it; findings of in_flight and io_uring name candidates",
    /// A thread has fds beyond the leases in an fd table of its own.
    ThreadTable "thread_table":
        "the thread has called unshare(CLONE_FILES), so closing an fd elsewhere in the process closes no copy of it: \
        close the fds in that thread, or end the thread",
    /// The first thread of a process has ended, and others live on.
    Headless "zombie_leader":
        "its main thread has called pthread_exit(3) and tools take it for dead: end it (kill -9), or let its threads end",
    /// A ring has registered files of shared memory.
    IoUring "io_uring":
        "registered files stay open when their fds are closed: unregister them (IORING_UNREGISTER_FILES), or close the ring",
    /// An owner is stopped.
    Stopped "stopped_owner":
        "it does not answer when the broker asks for an fd again, so its evicted memory cannot be had: let it run on \
        (kill -CONT, or thaw its cgroup), or end it",
    /// The broker's fds do not match its ledger.
    Drift "drift": "a fault of the broker: report it with this output and the broker's log; restart the service to mend it",
    /// Note: a live client has not given ended memory back yet.
    Ended "ended": "its client has been told, and gives it back after use",
    /// Note: a client has not read its grants yet.
    Unread "unread": "its client has not read the broker's answer yet",
    /// Note: memory is mapped, but its lease is open.
    Unreported "unreported": "the client should report the lease as mapped: it is charged for an fd that it does not have",
    /// Note: a child of the owner has inherited its mapping.
    Inherited "inherited": "the mapping ends with the child, or when the child executes a program",
    /// Note: the service manager keeps a copy for the time after a crash.
    Kept "kept": "nothing to do: the copy is for a broker that starts after a crash",
    /// Note: a dma-buf has references that are neither fds nor mappings.
    Imports "imports": "imports of a driver, fds in flight, or processes that were not looked at",
    /// Note: a client has memory that the broker does not know.
    Unknown "unknown": "its own memory, not shared through the broker; only worth a look if memory is short",
    /// Note: a ring has registered buffers.
    RingBuffers "ring_buffers": "the pages of registered buffers stay until the ring is closed, shared ones too",
    /// Note: no process has a dma-buf, which the broker does not know.
    Unheld "unheld": "imports of a driver, or fds in flight",
}

impl Kind {
    /// All kinds of faults.
    pub fn faults() -> impl Iterator<Item = Kind> {
        Kind::ALL.iter().copied().filter(|kind| !kind.is_note())
    }

    /// Whether it is a note, and no fault.
    pub fn is_note(self) -> bool {
        self >= Kind::Ended
    }

    /// The name in the table and in JSON.
    pub fn name(self) -> &'static str {
        self.name_and_remedy().0
    }

    pub fn remedy(self) -> &'static str {
        self.name_and_remedy().1
    }
}

/// A finding or a note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub kind: Kind,
    /// `None` if the finding is not about a process.
    pub pid: Option<u32>,
    /// Its fds, all of them: the table shows [`MAX_LISTED`].
    pub fds: Vec<i32>,
    /// The name of the process.
    pub command: String,
    /// The job of its cgroup.
    pub job: String,
    pub uid: Option<u32>,
    /// The first allocation of the memory.
    #[serde(serialize_with = "as_text_or_null")]
    pub allocation: Option<AllocationId>,
    /// The number by which programs under a layer know it.
    pub virtual_fd: Option<u32>,
    /// Inode of the memory, or of the socket.
    pub inode: Option<u64>,
    /// Size of the memory in bytes.
    pub size_bytes: Option<u64>,
    /// Age of the oldest lease, or time since the end of ended memory, in ms; in JSON in seconds.
    #[serde(rename = "age_seconds", serialize_with = "as_seconds_or_null")]
    pub age_ms: Option<u64>,
    /// What was seen: a phrase for the table and for JSON.
    pub what: String,
    pub remedy: &'static str,
}

/// Two findings of two looks are the same if these values are equal.
pub type Identity = (Kind, Option<u32>, Option<u64>, Option<AllocationId>, Option<i32>);

impl Finding {
    /// A finding without a process.
    pub fn new(kind: Kind, what: impl Into<String>) -> Self {
        Finding {
            kind,
            pid: None,
            fds: Vec::new(),
            command: String::new(),
            job: String::new(),
            uid: None,
            allocation: None,
            virtual_fd: None,
            inode: None,
            size_bytes: None,
            age_ms: None,
            what: what.into(),
            remedy: kind.remedy(),
        }
    }

    /// A finding about a process.
    pub fn of(kind: Kind, pid: u32, process: &Process, what: impl Into<String>) -> Self {
        Finding {
            pid: Some(pid),
            command: process.command.clone(),
            job: process.job.clone(),
            uid: Some(process.uid),
            ..Finding::new(kind, what)
        }
    }

    pub fn fds(mut self, fds: &[i32]) -> Self {
        self.fds = fds.to_vec();
        self
    }

    /// Adds the memory. `size` is in bytes; 0 leaves the size out.
    pub fn memory(mut self, key: Option<MemoryKey>, id: Option<AllocationId>, size: u64) -> Self {
        self.inode = key.and_then(MemoryKey::inode);
        self.allocation = id;
        self.size_bytes = Some(size).filter(|size| *size != 0);
        self
    }

    /// Adds the age of the oldest lease.
    pub fn age<'a>(mut self, leases: impl IntoIterator<Item = &'a Lease>) -> Self {
        self.age_ms = leases.into_iter().map(|lease| lease.age_ms).max();
        self
    }

    /// Its identity. Fds and leases of clients are no part of it: they may change from look to
    /// look. The broker's fds are: it counts each by its number.
    pub fn identity(&self) -> Identity {
        // An inode is enough: the first allocation of a memory may change.
        let allocation = self.allocation.filter(|_| self.inode.is_none());
        let fd = self.fds.first().copied().filter(|_| self.kind == Kind::Drift);
        (self.kind, self.pid, self.inode, allocation, fd)
    }
}

fn as_text_or_null<S: Serializer>(id: &Option<AllocationId>, to: S) -> Result<S::Ok, S::Error> {
    id.map(|id| id.to_string()).serialize(to)
}

/// The first [`MAX_LISTED`] numbers, and how many more there are.
pub fn first<T: ToString>(numbers: &[T], between: &str) -> (String, usize) {
    let shown: Vec<String> = numbers.iter().take(MAX_LISTED).map(T::to_string).collect();
    (shown.join(between), numbers.len().saturating_sub(MAX_LISTED))
}

/// `7, 9, 11 and 3 more`.
pub fn list(numbers: &[u64]) -> String {
    match first(numbers, ", ") {
        (shown, 0) => shown,
        (shown, more) => format!("{shown} and {more} more"),
    }
}

/// `1 fd`, `2 fds`.
pub fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_when_json_then_its_age_is_in_seconds_or_null() {
        let mut finding = Finding::new(Kind::Forgotten, "what");
        let age = |finding: &Finding| {
            let json = serde_json::to_value(finding).expect("plain data");
            assert_eq!(json.get("age_ms"), None, "one unit: seconds");
            json["age_seconds"].clone()
        };
        assert_eq!(age(&finding), serde_json::Value::Null);
        finding.age_ms = Some(61_234);
        assert_eq!(age(&finding), 61.234);
    }
}
