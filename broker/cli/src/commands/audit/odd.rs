//! Findings about what a process is, not about one memory: it has lost its first thread, it is
//! stopped and owns memory, a ring of it keeps files, a client has memory that the broker does not
//! know. Must never report a process that has nothing to do with the broker.

use super::book::{Book, Of};
use super::finding::{Finding, Kind, count};
use super::process::{MemoryFd, Process};
use fdbroker_protocol::MemoryKind;
use fdbroker_protocol::admin::AllocationState;
use std::collections::{BTreeMap, BTreeSet};

pub fn find(book: &Book<'_>, found: &mut Vec<Finding>) {
    for (pid, process) in book.others() {
        headless(book, pid, process, found);
        rings(book, pid, process, found);
        unknown(book, pid, process, found);
    }
    stopped(book, found);
}

fn headless(book: &Book<'_>, pid: u32, process: &Process, found: &mut Vec<Finding>) {
    let Some(threads) = process.headless.filter(|_| book.is_near(pid, process)) else { return };
    let what = format!(
        "its first thread has ended, {} on; /proc/{pid}/fd shows nothing",
        match threads {
            1 => "1 thread lives".to_owned(),
            more => format!("{more} threads live"),
        }
    );
    let numbers: Vec<i32> = process.fds.iter().map(|fd| fd.fd).collect();
    found.push(Finding::of(Kind::Headless, pid, process, what).fds(&numbers));
}

fn rings<'a>(book: &Book<'a>, pid: u32, process: &'a Process, found: &mut Vec<Finding>) {
    if !book.is_near(pid, process) && !book.is_beside_clients(process) {
        return;
    }
    for ring in &process.rings {
        let files = count(ring.files, "registered file");
        let buffers = count(ring.buffers, "registered buffer");
        let (kind, what) = match (ring.files, ring.buffers) {
            (0, 0) => continue,
            (0, _) => (Kind::RingBuffers, format!("a ring with {buffers}")),
            (_, 0) => (Kind::IoUring, format!("a ring with {files} of shared memory")),
            _ => (Kind::IoUring, format!("a ring with {files} of shared memory and {buffers}")),
        };
        // Which memory it is, the kernel does not say.
        found.push(Finding::of(kind, pid, process, what).fds(&[ring.fd]));
    }
}

/// Memory that a client could have deposited and has not, or that it got from elsewhere. A lease of
/// memory without known files may be of it.
fn unknown(book: &Book<'_>, pid: u32, process: &Process, found: &mut Vec<Finding>) {
    if !book.is_client(pid) {
        return;
    }
    let any = book.holders.get(&pid).map(|holder| &holder.any);
    let is_one = |fd: &&MemoryFd| {
        let of = book.of(fd.key);
        let is_known = matches!(of, Of::Known(_)) || any.is_some_and(|any| any.contains_key(&of));
        let is_ended = book.look.tombstones.files.contains_key(&fd.key);
        (fd.key.kind == MemoryKind::DmaBuf || fd.sealed) && !is_known && !is_ended
    };
    let mut by_kind: BTreeMap<MemoryKind, Vec<&MemoryFd>> = BTreeMap::new();
    for fd in process.fds.iter().filter(is_one) {
        by_kind.entry(fd.key.kind).or_default().push(fd);
    }
    for (kind, fds) in by_kind {
        let files: BTreeSet<_> = fds.iter().map(|fd| fd.key).collect();
        let noun = if kind == MemoryKind::DmaBuf { "dma-buf" } else { "sealed memfd" };
        let what = format!("{} that the broker does not know", count(files.len() as u64, noun));
        let numbers: Vec<i32> = fds.iter().map(|fd| fd.fd).collect();
        let finding = Finding::of(Kind::Unknown, pid, process, what).fds(&numbers);
        let only = files.first().copied().filter(|_| files.len() == 1);
        found.push(finding.memory(only, None, 0));
    }
}

/// Owners that cannot answer when the broker asks for an fd again.
fn stopped(book: &Book<'_>, found: &mut Vec<Finding>) {
    use AllocationState::{Evicted, Held, Recalling, Resident};
    let mut owned: BTreeMap<u32, (u64, u64, u64)> = BTreeMap::new();
    for allocation in book.look.after.allocations.values() {
        let is_away = matches!(allocation.state, Evicted | Recalling);
        if is_away || matches!(allocation.state, Held | Resident) {
            let (all, away, bytes) = owned.entry(allocation.owner_pid).or_default();
            *all += 1;
            *away += u64::from(is_away);
            *bytes = bytes.saturating_add(allocation.size_bytes);
        }
    }
    for (pid, (all, away, bytes)) in owned {
        let process = book.look.scan.processes.get(&pid).filter(|_| pid != 0);
        let Some(process) = process.filter(|it| matches!(it.state, 'T' | 't')) else { continue };
        let what = format!("the owner of {} is stopped, {away} evicted", count(all, "allocation"));
        found.push(Finding::of(Kind::Stopped, pid, process, what).memory(None, None, bytes));
    }
}
