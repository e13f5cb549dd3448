//! What audit can find: kinds, and what to do about each. Must never name a remedy that this command does not have.

use super::ledger::{Lease, MemoryKey};
use super::limits::MAX_LISTED;
use super::process::Process;
use crate::records::as_seconds_or_null;
use fdbroker_protocol::AllocationId;
use serde::Serialize;

/// What is wrong, or worth to know: notes come last, from [`Kind::Ended`] on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A client has more fds of a memory than leases of it.
    Leak,
    /// A process that is no client has an fd of a client's memory.
    Stray,
    /// A process has memory mapped that it has no lease of.
    StrayMapping,
    /// Fds lie in the queue of a socket that nobody reads.
    InFlight,
    /// A lease of which its holder has nothing.
    Forgotten,
    /// An allocation without owner and holders.
    Orphan,
    /// Ended memory that a process which does nothing keeps.
    Pinned,
    /// The broker's fds are not those of its ledger.
    Drift,
    /// Note: ended memory that a live client has still to give back.
    Ended,
    /// Note: grants that their client has not read yet.
    Unread,
    /// Note: mapped, but the lease says open.
    Unreported,
    /// Note: a child of the owner has inherited its mapping.
    Inherited,
    /// Note: a copy for the time after a crash, in the service manager.
    Kept,
    /// Note: references to a dma-buf that are no fds and no mappings.
    Imports,
}

impl Kind {
    /// Worth to know, and no fault.
    pub fn is_note(self) -> bool {
        self >= Kind::Ended
    }

    /// As in JSON.
    pub fn name(self) -> &'static str {
        self.name_and_remedy().0
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        self.name_and_remedy().1
    }

    fn name_and_remedy(self) -> (&'static str, &'static str) {
        match self {
            Kind::Leak => (
                "leak",
                "the process has copied a granted fd (dup, an import that keeps it) or not closed one after giving it back: \
                 close the fds named, or end the process",
            ),
            Kind::Stray => (
                "stray",
                "a child inherited the fd by fork, or got it over a socket: close it there (close-on-exec does it for programs \
                 that are started), or end the process; it pins the memory until then",
            ),
            Kind::StrayMapping => (
                "stray_mapping",
                "the process mapped the memory and gave its lease back, or never had one: unmap it, or end the process; it pins \
                 the memory until then",
            ),
            Kind::InFlight => (
                "in_flight",
                "receive and close what lies in the socket, or close the socket; no other tool shows these fds, and they pin \
                 their memory",
            ),
            Kind::Forgotten => (
                "forgotten",
                "the client closed or unmapped it without giving the lease back (drop the Grant or Import, do not close its fd by \
                 hand): it is charged for it until it does or ends",
            ),
            Kind::Orphan => (
                "orphan",
                "kept for a successor that has not come: it ends by itself at the end of the broker's keep_ttl",
            ),
            Kind::Pinned => (
                "pinned",
                "the memory is freed only when the process gives its leases back: let it run on (kill -CONT), or end it",
            ),
            Kind::Drift => (
                "drift",
                "a fault of the broker: report it with this output and the broker's log; a restart of the service mends it",
            ),
            Kind::Ended => ("ended", "its client has been told and gives it back when it is done"),
            Kind::Unread => ("unread", "its client has asked for them and not read the answer yet"),
            Kind::Unreported => (
                "unreported",
                "the client should report the lease as mapped: it is charged for an fd it has not",
            ),
            Kind::Inherited => {
                ("inherited", "it goes with the child, or when that executes a program")
            }
            Kind::Kept => {
                ("kept", "nothing: it is there for a broker that is started after a crash")
            }
            Kind::Imports => (
                "imports",
                "imports of a driver, fds in flight, or processes that were not looked at",
            ),
        }
    }
}

/// One finding, or one note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is.
    pub kind: Kind,
    /// The process.
    pub pid: Option<u32>,
    /// Its fds; of many the first.
    pub fds: Vec<i32>,
    /// The process's name, or what the owner called itself.
    pub command: String,
    /// The job that its cgroup names.
    pub job: String,
    /// The user.
    pub uid: Option<u32>,
    /// The allocation; of many in one memory, the first.
    pub allocation: Option<String>,
    /// Inode of the memory, or of the socket.
    pub inode: Option<u64>,
    /// Size of the memory in bytes.
    pub size_bytes: Option<u64>,
    /// Age of the oldest lease, in ms; in JSON in seconds.
    #[serde(rename = "age_seconds", serialize_with = "as_seconds_or_null")]
    pub age_ms: Option<u64>,
    /// What was seen.
    pub what: String,
    /// What to do.
    pub remedy: &'static str,
}

/// By what a finding is known again in the next look.
pub type Identity = (Kind, Option<u32>, Option<u64>, Option<String>);

impl Finding {
    /// Without a process.
    pub fn new(kind: Kind, what: impl Into<String>) -> Self {
        Finding {
            kind,
            pid: None,
            fds: Vec::new(),
            command: String::new(),
            job: String::new(),
            uid: None,
            allocation: None,
            inode: None,
            size_bytes: None,
            age_ms: None,
            what: what.into(),
            remedy: kind.remedy(),
        }
    }

    /// Of a process.
    pub fn of(kind: Kind, pid: u32, process: &Process, what: impl Into<String>) -> Self {
        Finding {
            pid: Some(pid),
            command: process.command.clone(),
            job: process.job.clone(),
            uid: Some(process.uid),
            ..Finding::new(kind, what)
        }
    }

    /// With these fds, the first of them listed.
    pub fn fds(mut self, fds: &[i32]) -> Self {
        self.fds = fds.iter().copied().take(MAX_LISTED).collect();
        self
    }

    /// With this memory.
    pub fn memory(mut self, key: Option<MemoryKey>, id: Option<AllocationId>, size: u64) -> Self {
        self.inode = key.and_then(MemoryKey::inode);
        self.allocation = id.map(|id| id.to_string());
        self.size_bytes = Some(size).filter(|size| *size != 0);
        self
    }

    /// With the age of the oldest of these leases.
    pub fn age<'a>(mut self, leases: impl IntoIterator<Item = &'a Lease>) -> Self {
        self.age_ms = leases.into_iter().map(|lease| lease.age_ms).max();
        self
    }

    /// What it is known by. Which fds and leases a count is about may change from look to look.
    pub fn identity(&self) -> Identity {
        // A memory with an inode is known by it: which of its allocations comes first may change.
        let allocation = self.allocation.clone().filter(|_| self.inode.is_none());
        (self.kind, self.pid, self.inode, allocation)
    }
}

/// `7, 9, 11 and 3 more`.
pub fn list(numbers: &[u64]) -> String {
    let shown: Vec<String> = numbers.iter().take(MAX_LISTED).map(u64::to_string).collect();
    match numbers.len().saturating_sub(MAX_LISTED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
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
