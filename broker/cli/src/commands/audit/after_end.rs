//! Findings about memory that has ended and that nobody has a lease of: who has it all the same.
//! Must never report what an owner keeps of its own memory, nor memory that the ledger knows still
//! or again.

use super::book::{Book, Of};
use super::finding::{Finding, Kind, count};
use super::ledger::MemoryKey;
use super::process::{Buffer, Mapped, MemoryFd, Process};
use super::tombstones::EndedFile;
use crate::output::human_time;
use std::collections::{BTreeMap, BTreeSet};

/// What a process has of one file.
#[derive(Default)]
struct Has<'a> {
    fds: Vec<&'a MemoryFd>,
    mapped: Mapped,
}

/// Finds copies of ended memory, and dma-bufs that no process has.
pub fn find(book: &Book<'_>, found: &mut Vec<Finding>) {
    for (pid, process) in book.others() {
        for (key, has) in all_of(process) {
            if let Some(file) = ended(book, key) {
                copies(book, (pid, process), (key, file), &has, found);
            }
        }
    }
    for buffer in &book.look.scan.buffers {
        unheld(book, buffer, found);
    }
}

fn all_of(process: &Process) -> BTreeMap<MemoryKey, Has<'_>> {
    let mut all: BTreeMap<MemoryKey, Has<'_>> = BTreeMap::new();
    for fd in &process.fds {
        all.entry(fd.key).or_default().fds.push(fd);
    }
    for (key, mapped) in &process.mapped {
        all.entry(*key).or_default().mapped = *mapped;
    }
    all
}

/// The file of memory that has ended; `None`, too, if the ledger has an allocation of it.
fn ended<'a>(book: &Book<'a>, key: MemoryKey) -> Option<&'a EndedFile> {
    let file = book.look.tombstones.files.get(&key)?;
    matches!(book.of(key), Of::Unknown(_)).then_some(file)
}

fn copies(
    book: &Book<'_>,
    (pid, process): (u32, &Process),
    (key, file): (MemoryKey, &EndedFile),
    has: &Has<'_>,
    found: &mut Vec<Finding>,
) {
    let is_owner = |pid: u32, uid: u32| file.owners.contains(&(pid, uid));
    // A lease of memory without known files may be of this one.
    let holder = book.holders.get(&pid);
    let is_explained = holder.is_some_and(|it| it.any.contains_key(&Of::Unknown(key.kind)));
    if is_owner(pid, process.uid) || is_explained {
        return;
    }
    let parts = [
        Some(has.fds.len() as u64).filter(|fds| *fds > 0).map(|fds| count(fds, "fd")),
        Some(has.mapped.mappings).filter(|it| *it > 0).map(|it| count(it, "mapping")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let what = format!("{} of memory that has ended ({})", parts.join(" and "), told(file));
    let owner = book.ancestor(pid, |ancestor| {
        let processes = &book.look.scan.processes;
        processes.get(&ancestor).is_some_and(|it| is_owner(ancestor, it.uid))
    });
    let (kind, what) = match owner {
        Some(owner) if has.fds.is_empty() && !book.is_client(pid) => {
            (Kind::Inherited, format!("{what}; a child of the owner {owner}"))
        }
        _ => (Kind::EndedCopy, what),
    };
    let numbers: Vec<i32> = has.fds.iter().map(|fd| fd.fd).collect();
    let mut finding = Finding::of(kind, pid, process, what).fds(&numbers);
    finding = finding.memory(Some(key), Some(file.id), file.size_bytes);
    finding.age_ms = Some(file.age_ms);
    found.push(finding);
}

/// `OWNER_GONE 75 s ago, of process 4711 of slurm:7`.
fn told(file: &EndedFile) -> String {
    let reason = if file.reason.is_empty() { "ended" } else { &file.reason };
    let mut text = format!("{reason} {} ago", human_time(file.age_ms));
    let owners: BTreeSet<u32> =
        file.owners.iter().map(|(pid, _)| *pid).filter(|pid| *pid != 0).collect();
    match (owners.first(), owners.len()) {
        (Some(pid), 1) => text += &format!(", owned by process {pid}"),
        (Some(pid), more) => text += &format!(", owned by process {pid} and {} more", more - 1),
        (None, _) => {}
    }
    if !file.job.is_empty() {
        text += &format!(" of {}", file.job);
    }
    text
}

fn unheld(book: &Book<'_>, buffer: &Buffer, found: &mut Vec<Finding>) {
    let kind = fdbroker_protocol::MemoryKind::DmaBuf;
    let key = MemoryKey { kind, number: buffer.inode };
    let processes = &book.look.scan.processes;
    let is_there = |process: &Process| {
        process.mapped.contains_key(&key) || process.fds.iter().any(|fd| fd.key == key)
    };
    if processes.values().any(is_there) || matches!(book.of(key), Of::Known(_)) {
        return;
    }
    let said = format!("from {}, {}", buffer.exporter, count(buffer.references, "reference"));
    let (kind, what, id) = match ended(book, key) {
        Some(file) => {
            let what = format!("a dma-buf that no process seen has, {said} ({})", told(file));
            (Kind::EndedUnheld, what, Some(file.id))
        }
        // One that could not be read may have it.
        None if processes.values().any(|process| process.unread.is_some()) => return,
        None => (Kind::Unheld, format!("a dma-buf that no process has, {said}"), None),
    };
    found.push(Finding::new(kind, what).memory(Some(key), id, buffer.size_bytes));
}
