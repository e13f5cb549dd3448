//! Findings in processes that the ledger does not know: fds and mappings without a lease, and fds
//! in flight. Must never report a leak that a lease in either ledger, or a memory that cannot be
//! recognised, may explain.

use super::book::{Book, Of};
use super::finding::{Finding, Kind, count, list};
use super::process::{MemoryFd, Process, Queue};
use fdbroker_protocol::MemoryKind;
use std::collections::{BTreeMap, BTreeSet};

/// Finds fds and mappings that no lease explains.
pub fn find(book: &Book<'_>, found: &mut Vec<Finding>) {
    for (pid, process) in book.others() {
        fds(book, pid, process, found);
        mappings(book, pid, process, found);
    }
}

fn fds(book: &Book<'_>, pid: u32, process: &Process, found: &mut Vec<Finding>) {
    let holder = book.holders.get(&pid);
    let open = |of: Of| holder.and_then(|holder| holder.open.get(&of)).copied().unwrap_or(0);
    // Leases of memory without known files may explain any fd of the kind. Not for CUDA: there no
    // two allocations share a file, and all known files are held by the broker now.
    let kinds = MemoryKind::ALL.iter().filter(|kind| kind.has_own_inode());
    let mut slack: BTreeMap<MemoryKind, u64> =
        kinds.map(|kind| (*kind, open(Of::Unknown(*kind)))).collect();
    for (of, fds) in book.fds(process) {
        let Some(memory) = book.memory(of) else { continue };
        // An owner may keep the fd that it has deposited.
        let own = u64::from(memory.owners.contains(&pid));
        let mut excess = (fds.len() as u64).saturating_sub(own + open(of));
        if let Some(slack) = slack.get_mut(&of.kind()) {
            let taken = excess.min(*slack);
            *slack -= taken;
            excess -= taken;
        }
        if excess == 0 {
            continue;
        }
        let is_client = book.is_client(pid);
        // Each table has copies of what was in it when the thread made it.
        let thread = fds.iter().map(|fd| fd.thread).find(|thread| *thread != 0);
        let kind = match () {
            () if book.is_manager(pid) && memory.keep => Kind::Kept,
            () if thread.is_some() => Kind::ThreadTable,
            () if is_client => Kind::Leak,
            () => Kind::Stray,
        };
        let has = count(fds.len() as u64, "fd");
        let what = if is_client {
            format!("{has}, {}", rights(own, open(of)))
        } else {
            match book.ancestor(pid, |pid| book.is_client(pid)) {
                Some(parent) => format!("{has}; no client, a child of client {parent}"),
                None => format!("{has}; no client"),
            }
        };
        let what = match thread {
            Some(thread) => format!("{what}; in the fd table of thread {thread}"),
            None => what,
        };
        let of_thread = |fd: &&&MemoryFd| thread.is_none_or(|thread| fd.thread == thread);
        let numbers: Vec<i32> = fds.iter().filter(of_thread).map(|fd| fd.fd).collect();
        let finding = Finding::of(kind, pid, process, what).fds(&numbers);
        let file = fds.first().map(|fd| fd.key);
        found.push(finding.memory(file, Some(memory.first), memory.size_bytes));
    }
}

fn rights(own: u64, leases: u64) -> String {
    match (own, leases) {
        (0, 0) => "no lease".into(),
        (0, leases) => count(leases, "open lease"),
        (own, 0) => format!("{own} its own"),
        (own, leases) => format!("{own} its own, {}", count(leases, "open lease")),
    }
}

fn mappings(book: &Book<'_>, pid: u32, process: &Process, found: &mut Vec<Finding>) {
    let holder = book.holders.get(&pid);
    let has_lease = |of| holder.is_some_and(|holder| holder.any.contains_key(&of));
    for (key, mapped) in &process.mapped {
        let of = book.of(*key);
        let Some(memory) = book.memory(of) else { continue };
        let is_its_own = memory.owners.contains(&pid);
        if is_its_own || has_lease(of) || has_lease(Of::Unknown(key.kind)) {
            continue;
        }
        let owner = book.ancestor(pid, |pid| memory.owners.contains(&pid));
        let what = count(mapped.mappings, "mapping");
        let parent = book.ancestor(pid, |pid| book.is_client(pid)).filter(|_| book.is_client(pid));
        let (kind, what) = match (owner, parent) {
            (_, Some(parent)) => {
                let what = format!(
                    "{what}, no lease; a client of its own, and a child of client {parent}"
                );
                (Kind::StrayMapping, what)
            }
            (Some(owner), None) => {
                (Kind::Inherited, format!("{what}; a child of the owner {owner}"))
            }
            (None, None) => (Kind::StrayMapping, format!("{what}, no lease")),
        };
        let finding = Finding::of(kind, pid, process, what);
        let size = mapped.bytes;
        found.push(finding.memory(Some(*key), Some(memory.first), size));
    }
}

/// Sockets of a process with fds in their queues.
#[derive(Debug, Default)]
pub struct InFlight<'a> {
    /// Its connections to the broker: each fd has a lease.
    pub granted: Vec<&'a Queue>,
    pub others: Vec<&'a Queue>,
    /// Sockets with an unknown other end: of another network namespace.
    pub unknown: Vec<&'a Queue>,
}

impl<'a> InFlight<'a> {
    /// Sorts the queues of a process by their sender.
    pub fn of(book: &Book<'_>, process: &'a Process) -> Self {
        let broker = book.look.scan.processes.get(&book.broker());
        let sockets: BTreeSet<u64> =
            broker.map(|broker| broker.sockets.iter().copied().collect()).unwrap_or_default();
        let mut sorted = InFlight::default();
        for queue in &process.queues {
            match book.look.peers.get(&queue.inode) {
                _ if sockets.is_empty() => sorted.unknown.push(queue),
                Some(Some(peer)) if sockets.contains(peer) => sorted.granted.push(queue),
                Some(_) => sorted.others.push(queue),
                None => sorted.unknown.push(queue),
            }
        }
        sorted
    }

    /// Number of fds that may have a lease.
    pub fn leased(&self) -> u64 {
        self.granted.iter().chain(&self.unknown).map(|queue| queue.in_flight).sum()
    }
}

/// Finds fds in flight to a process. `accounted` of its leases have neither fd nor mapping.
pub fn find_in_flight<'a>(
    book: &Book<'a>,
    pid: u32,
    process: &'a Process,
    accounted: u64,
    found: &mut Vec<Finding>,
) {
    let in_flight = InFlight::of(book, process);
    if !book.is_near(pid, process) {
        return strangers(book, (pid, process), &in_flight, found);
    }
    let mut note = |kind, queues: &[&Queue], said: &str| {
        for queue in queues {
            let what = format!("{} in the queue of {said}", count(queue.in_flight, "fd"));
            let mut finding = Finding::of(kind, pid, process, what).fds(&[queue.fd]);
            finding.inode = Some(queue.inode);
            found.push(finding);
        }
    };
    note(Kind::Unread, &in_flight.granted, "its connection to the broker");
    note(Kind::InFlight, &in_flight.others, "a socket");
    // If the other end is unknown, fds count as grants as long as leases account for them.
    let unknown = &in_flight.unknown;
    let sum: u64 = unknown.iter().map(|queue| queue.in_flight).sum();
    let kind = if sum <= accounted { Kind::Unread } else { Kind::InFlight };
    note(kind, unknown, "a socket whose other end cannot be seen");
}

/// Finds fds in flight to a process that has nothing else of the broker: from a client, or, beside
/// clients, from nobody any more. What others send to each other is their own.
fn strangers<'a>(
    book: &Book<'a>,
    (pid, process): (u32, &'a Process),
    in_flight: &InFlight<'_>,
    found: &mut Vec<Finding>,
) {
    for queue in in_flight.others.iter().chain(&in_flight.unknown) {
        let sender = match book.look.peers.get(&queue.inode) {
            // A socket of another network namespace, say.
            None => continue,
            Some(None) if book.is_beside_clients(process) && !book.is_manager(pid) => {
                "the sender is gone".to_owned()
            }
            Some(peer) => match peer.and_then(|peer| book.holder_of_socket(peer)) {
                Some(sender) if book.is_client(sender) => format!("client {sender} has sent them"),
                _ => continue,
            },
        };
        let fds = count(queue.in_flight, "fd");
        let what = format!("{fds} in the queue of a socket; no client, {sender}");
        let mut finding = Finding::of(Kind::InFlight, pid, process, what).fds(&[queue.fd]);
        finding.inode = Some(queue.inode);
        found.push(finding);
    }
}

/// Text such as `leases 7, 9`.
pub fn leases(numbers: &[u64]) -> String {
    let noun = if numbers.len() == 1 { "lease" } else { "leases" };
    format!("{noun} {}", list(numbers))
}
