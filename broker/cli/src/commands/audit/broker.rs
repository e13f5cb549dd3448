//! Findings about the broker: its fds against its ledger, allocations without owner and holder,
//! references to dma-bufs. Must never report an fd that is on its way in or out as drift.

use super::book::{Book, Look, Of};
use super::finding::{Finding, Kind, count};
use super::ledger::{Allocation, Ledger};
use super::process::{MemoryFd, Process};
use fdbroker_protocol::admin::AllocationState;
use std::collections::HashSet;

/// Finds drift, orphans and imports.
pub fn find(book: &Book<'_>, found: &mut Vec<Finding>) {
    // A part of the ledger counts a part of the broker's fds, and root can read all of these.
    if book.look.after.is_whole {
        table(book, found);
        sums(book, found);
    }
    orphans(book, found);
    imports(book, found);
}

fn table(book: &Book<'_>, found: &mut Vec<Finding>) {
    let (pid, look) = (book.broker(), book.look);
    let Some(broker) = look.scan.processes.get(&pid).filter(|it| it.unread.is_none()) else {
        return;
    };
    let fds = book.fds(broker);
    let beyond = uncounted(look, broker);
    let closing = look.before.closing_fds.max(look.after.closing_fds);
    if beyond.len() as u64 > closing {
        // One finding for each: another file at the same number is another fd.
        found.extend(beyond.into_iter().map(|fd| {
            let what = format!("fd {} of memory that it does not count, {closing} closing", fd.fd);
            let finding = Finding::of(Kind::Drift, pid, broker, what).fds(&[fd.fd]);
            finding.memory(Some(fd.key), None, 0)
        }));
    }
    for (key, memory) in &book.memories {
        let there = fds.get(&Of::Known(*key)).map_or(0, |fds| fds.len() as u64);
        if there < memory.records.1 {
            let counted = count(memory.records.1, "fd");
            let what = format!("its ledger counts {counted} of this memory, it has {there}");
            let finding = Finding::of(Kind::Drift, pid, broker, what);
            found.push(finding.memory(Some(*key), Some(memory.first), memory.size_bytes));
        }
    }
}

/// Fds of memory of the broker whose numbers neither ledger has.
fn uncounted<'a>(look: &Look, broker: &'a Process) -> Vec<&'a MemoryFd> {
    let ledgers = [&look.before, &look.after];
    let all = ledgers.into_iter().flat_map(|ledger| ledger.allocations.values());
    let counted: HashSet<i64> = all.filter_map(|it| it.fd.map(i64::from)).collect();
    broker.fds.iter().filter(|fd| !counted.contains(&i64::from(fd.fd))).collect()
}

/// Compares the number of held fds, if it is the same before and after.
fn sums(book: &Book<'_>, found: &mut Vec<Finding>) {
    let held = |ledger: &Ledger| {
        let all = ledger.allocations.values();
        all.filter(|allocation| allocation.fd.is_some()).count() as u64
    };
    let (before, after) = (&book.look.before, &book.look.after);
    let is_steady = before.stored_fds == after.stored_fds && held(before) == held(after);
    if is_steady && held(after) != after.stored_fds {
        let what = format!(
            "it counts {} held, and lists {}",
            count(after.stored_fds, "fd"),
            count(held(after), "allocation"),
        );
        let mut finding = Finding::new(Kind::Drift, what);
        finding.pid = Some(book.broker());
        found.push(finding);
    }
}

fn orphans(book: &Book<'_>, found: &mut Vec<Finding>) {
    let is_one = |allocation: &Allocation| {
        use AllocationState::{Evicted, Held, Recalling, Resident};
        let lives = matches!(allocation.state, Held | Resident | Evicted | Recalling);
        lives && allocation.owner_gone && allocation.leases == 0 && !allocation.named
    };
    let mut all: Vec<_> = book.look.after.allocations.iter().collect();
    all.retain(|(id, after)| {
        is_one(after) && book.look.before.allocations.get(id).is_some_and(is_one)
    });
    all.sort_unstable_by_key(|(id, _)| **id);
    for (id, allocation) in all {
        let state = allocation.state.name();
        let what = format!("{state}; its owner is gone, and nobody has a lease of it");
        let mut finding = Finding::new(Kind::Orphan, what);
        finding.uid = allocation.owner_uid;
        finding = finding.memory(allocation.keys().next(), Some(*id), allocation.size_bytes);
        found.push(finding);
    }
}

/// Compares the references of each dma-buf with the fds and mappings that were seen.
fn imports(book: &Book<'_>, found: &mut Vec<Finding>) {
    for (key, (references, seen)) in &book.references {
        let Some(memory) = book.memories.get(key).filter(|_| references > seen) else { continue };
        let what = format!("{references} references, {seen} of them are fds and mappings seen");
        let finding = Finding::new(Kind::Imports, what);
        found.push(finding.memory(Some(*key), Some(memory.first), memory.size_bytes));
    }
}
