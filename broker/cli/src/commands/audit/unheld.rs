//! Findings in the ledger that processes do not confirm: forgotten leases, and ended memory that is
//! not given back. Must never report a lease as forgotten if its fd may be in flight, a driver may
//! have imported its memory, or its holder was not read.

use super::book::{Book, Holder, Of};
use super::finding::{Finding, Kind, count};
use super::ledger::Lease;
use super::limits::ENDED_LEASE_MS;
use super::process::Process;
use super::unleased::{self, InFlight};
use crate::output::human_time;
use fdbroker_protocol::AllocationId;
use std::collections::BTreeMap;

/// Leases by number.
type Leases<'a> = [(u64, &'a Lease)];

/// Finds leases without fd and mapping, and fds in flight, which belong to some of these leases.
pub fn find(book: &Book<'_>, found: &mut Vec<Finding>) {
    let none = Holder::default();
    for (pid, process) in book.others() {
        let holder = book.holders.get(&pid).unwrap_or(&none);
        let mut in_flight = InFlight::of(book, process).leased();
        let before = in_flight;
        open(book, (pid, process), holder, &mut in_flight, found);
        mapped(book, (pid, process), holder, found);
        unleased::find_in_flight(book, pid, process, before - in_flight, found);
    }
    for (pid, holder) in &book.holders {
        match book.look.scan.processes.get(pid) {
            None => gone(*pid, holder, found),
            Some(process) => ended(book, (*pid, process), holder, found),
        }
    }
}

fn open(
    book: &Book<'_>,
    (pid, process): (u32, &Process),
    holder: &Holder<'_>,
    in_flight: &mut u64,
    found: &mut Vec<Finding>,
) {
    let fds = book.fds(process);
    for (of, leases) in &holder.sure_open {
        // Fds of CUDA memory that the broker does not hold look like the driver's own fds.
        let is_blind = matches!(of, Of::Unknown(kind) if !kind.has_own_inode());
        if is_blind || !of.kind().has_own_inode() && !book.look.scan.cuda_seen {
            continue;
        }
        let there = fds.get(of).map_or(0, Vec::len);
        let mut missing = (leases.len().saturating_sub(there)) as u64;
        let taken = missing.min(*in_flight);
        *in_flight -= taken;
        missing -= taken;
        if missing == 0 {
            continue;
        }
        let numbers: Vec<u64> = leases.iter().map(|(number, _)| *number).collect();
        let which = if missing == leases.len() as u64 {
            unleased::leases(&numbers)
        } else {
            format!("{missing} of {}", unleased::leases(&numbers))
        };
        let (kind, what) = if book.has_mapped(process, *of) {
            (Kind::Unreported, format!("{which}: open, but mapped and no fd"))
        } else {
            (Kind::Forgotten, format!("{which}: open, but no fd"))
        };
        found.push(about(Finding::of(kind, pid, process, what), *of, leases));
    }
}

fn mapped(
    book: &Book<'_>,
    (pid, process): (u32, &Process),
    holder: &Holder<'_>,
    found: &mut Vec<Finding>,
) {
    let fds = book.fds(process);
    for (of, leases) in &holder.sure_mapped {
        // A driver's import is not a mapping of the process. A memfd can only be mapped. The
        // references of a dma-buf say whether there is an import of it.
        let is_visible = match of {
            Of::Known(key) if key.kind.counts_references() => {
                let (references, seen) = book.references.get(key).copied().unwrap_or((0, 0));
                references > 0 && references <= seen
            }
            of => of.kind().shows_each_import(),
        };
        if !is_visible || fds.contains_key(of) || book.has_mapped(process, *of) {
            continue;
        }
        let numbers: Vec<u64> = leases.iter().map(|(number, _)| *number).collect();
        let what = format!("{}: mapped, but no mapping", unleased::leases(&numbers));
        found.push(about(Finding::of(Kind::Forgotten, pid, process, what), *of, leases));
    }
}

/// Finds leases of processes that do not exist: the broker ends leases at the death of their
/// holder.
fn gone(pid: u32, holder: &Holder<'_>, found: &mut Vec<Finding>) {
    for (of, leases) in holder.sure_open.iter().chain(&holder.sure_mapped) {
        let what = format!("{}: no such process", count(leases.len() as u64, "lease"));
        let mut finding = about(Finding::new(Kind::Forgotten, what), *of, leases);
        finding.pid = Some(pid);
        finding.uid = leases.first().map(|(_, lease)| lease.uid);
        found.push(finding);
    }
}

fn ended(
    book: &Book<'_>,
    (pid, process): (u32, &Process),
    holder: &Holder<'_>,
    found: &mut Vec<Finding>,
) {
    let mut by_allocation: BTreeMap<AllocationId, Vec<(u64, &Lease)>> = BTreeMap::new();
    for (number, lease) in holder.sure_open.values().chain(holder.sure_mapped.values()).flatten() {
        if lease.ended {
            by_allocation.entry(lease.allocation).or_default().push((*number, lease));
        }
    }
    let client = book.look.after.clients.get(&pid);
    let why = match process.state {
        'T' | 't' => Some("stopped"),
        'Z' | 'X' => Some("dead"),
        _ if client.is_some_and(|client| client.silent) => Some("silent"),
        _ => None,
    };
    for (id, leases) in by_allocation {
        // The library gives back at once what nobody uses.
        let ended_ms = book.look.tombstones.ages_ms.get(&id).copied();
        let is_late = ended_ms.is_some_and(|ms| ms > ENDED_LEASE_MS);
        let (kind, state) = match why {
            Some(why) => (Kind::Pinned, why),
            None if is_late => (Kind::Pinned, "alive"),
            None => (Kind::Ended, "alive"),
        };
        let leased = count(leases.len() as u64, "lease");
        let since = ended_ms.map_or_else(String::new, |ms| format!(" {} ago", human_time(ms)));
        let what = format!("the allocation has ended{since}, {leased}; the process is {state}");
        let size = leases.iter().map(|(_, lease)| lease.size_bytes).max().unwrap_or(0);
        let finding = Finding::of(kind, pid, process, what).memory(None, Some(id), size);
        found.push(finding.age(leases.iter().map(|(_, lease)| *lease)));
    }
}

fn about(finding: Finding, of: Of, leases: &Leases<'_>) -> Finding {
    let key = if let Of::Known(key) = of { Some(key) } else { None };
    let first = leases.first().map(|(_, lease)| lease.allocation);
    let size = leases.iter().map(|(_, lease)| lease.size_bytes).fold(0, u64::saturating_add);
    finding.memory(key, first, size).age(leases.iter().map(|(_, lease)| *lease))
}
