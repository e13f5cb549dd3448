//! `fdbroker fd`: says what an fd of a process is. Must never open or stat it: links and fdinfo are
//! read, as `audit` does.

use super::audit::ledger::MemoryKey;
use super::audit::scan;
use crate::admin::{Selection, viewing};
use crate::error::{Error, Result};
use crate::output::{Output, human_size, printable};
use crate::records::{client_name, nonzero};
use fdbroker_protocol::admin::{AllocationRecord, LeaseRecord, NO_OWN_FD};
use fdbroker_protocol::{AllocationId, MemoryKind};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::str::FromStr;

const HELP: &str = "\
Examples:
  fdbroker fd 4711/12               fd 12 of process 4711, as in /proc/4711/fd and lsof
  fdbroker fd 4711/12 --json

A memfd and a dma-buf are known by their inodes. One that an owner has divided is the memory of several allocations. An fd of CUDA
memory tells nothing of itself: only those of the broker are known, by their numbers.

Exit status 4: there is no such fd, or it is no memory that this broker knows, as far as you may see it.";

/// Say what an fd of a process is: which allocation, whose, and by which right
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The process and the number of its fd
    #[arg(value_name = "PID/N")]
    pub which: Which,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Which {
    pid: u32,
    fd: u32,
}

impl FromStr for Which {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let both =
            text.split_once('/').and_then(|(pid, fd)| Some((pid.parse().ok()?, fd.parse().ok()?)));
        both.map(|(pid, fd)| Which { pid, fd }).ok_or("write PID/N, such as 4711/12")
    }
}

/// Most allocations that are told: a memfd may be divided into a million.
const MOST_TOLD: usize = 64;

#[derive(Serialize)]
struct Report {
    pid: u32,
    fd: u32,
    link: String,
    allocations: Vec<Found>,
    /// Of the same memory, beyond those.
    more: usize,
}

#[derive(Serialize)]
struct Found {
    allocation: String,
    size_bytes: u64,
    object: Option<String>,
    owner_pid: Option<u32>,
    owner_uid: u32,
    owner_name: String,
    /// By which right the process has it.
    has_it: &'static str,
}

/// Says what the fd is.
pub fn run(args: &Args) -> Result<()> {
    let Which { pid, fd } = args.which;
    let (link, memory) = scan::one(pid, fd)?.map_err(|cause| match cause.kind() {
        io::ErrorKind::NotFound => Error::NotFound(format!("process {pid} has no fd {fd}")),
        io::ErrorKind::PermissionDenied => Error::NotFound(format!(
            "fds of process {pid} are not to be seen by this user; run as root, or as its user"
        )),
        _ => Error::Os { what: format!("look at fd {fd} of process {pid}"), cause },
    })?;
    let mut admin = viewing::connect()?;
    let is_brokers = admin.status()?.pid.get() == pid;
    let mut leases = BTreeMap::new();
    admin.each_page(Selection::pid(pid), |page: &[LeaseRecord]| {
        leases.extend(page.iter().map(|it| ((it.slot.get(), it.generation.get()), it.state.get())));
        Ok(())
    })?;
    let mut report = Report { pid, fd, link, allocations: Vec::new(), more: 0 };
    admin.each_page(Selection::ALL, |page: &[AllocationRecord]| {
        for it in page.iter().filter(|it| is_it(it, is_brokers.then_some(fd), memory)) {
            match report.allocations.len() {
                MOST_TOLD => report.more += 1,
                _ => report.allocations.push(found(it, pid, is_brokers, &leases)),
            }
        }
        Ok(())
    })?;
    let mut out = Output::stdout();
    if args.json {
        out.json_line(&report)?;
        out.flush()?;
    }
    if report.allocations.is_empty() {
        let what = match memory {
            Some(MemoryKey { kind: MemoryKind::CudaVmm, .. }) => {
                "CUDA's control device or its memory, which tells no more"
            }
            Some(_) => "memory that this broker does not know, as far as you may see",
            None => "no memory that can be shared",
        };
        return Err(Error::NotFound(format!("{pid}/{fd}: {}: {what}", printable(&report.link))));
    }
    if !args.json {
        report.allocations.iter().try_for_each(|it| out.text(&line(&report, it)))?;
        if report.more > 0 {
            out.text(&format!("and {} more allocations in the same memory\n", report.more))?;
        }
    }
    out.finish()
}

/// Whether an allocation has this memory, or the broker has it by this fd.
fn is_it(record: &AllocationRecord, of_broker: Option<u32>, memory: Option<MemoryKey>) -> bool {
    if of_broker.is_some_and(|fd| fd == record.fd.get() && fd != NO_OWN_FD) {
        return true;
    }
    let Some(MemoryKey { kind, number }) = memory.filter(|it| it.number != 0) else { return false };
    let mut inodes = record.former_inodes.iter().chain([&record.inode]);
    record.facts.kind == kind as u8 && inodes.any(|inode| inode.get() == number)
}

fn found(
    record: &AllocationRecord,
    pid: u32,
    is_brokers: bool,
    leases: &BTreeMap<(u32, u32), u32>,
) -> Found {
    let owner = nonzero(record.owner_pid).filter(|_| record.owner_gone == 0);
    let (slot, generation) = (record.slot.get(), record.generation.get());
    let has_it = match leases.get(&(slot, generation)) {
        _ if is_brokers => "the broker holds it",
        Some(1) => "an open lease",
        _ if owner == Some(pid) => "its owner",
        Some(_) => "a mapped lease: the fd was to be closed",
        None => "no lease: a copy; `fdbroker audit` tells more",
    };
    Found {
        allocation: AllocationId { slot, generation }.to_string(),
        size_bytes: record.facts.size_bytes.get(),
        object: record.object.get().map(|name| String::from_utf8_lossy(name).into_owned()),
        owner_pid: owner,
        owner_uid: record.owner_uid.get(),
        owner_name: client_name(&record.owner_name),
        has_it,
    }
}

fn line(report: &Report, it: &Found) -> String {
    let Report { pid, fd, link, .. } = report;
    let object = it.object.as_deref().map(|name| format!(", object {}", printable(name)));
    let owner = it
        .owner_pid
        .map_or_else(|| "nobody (kept)".into(), |pid| format!("process {pid} ({})", it.owner_name));
    format!(
        "{pid}/{fd}: {}: allocation {} ({}{}) of {owner}, uid {}: {}\n",
        printable(link),
        it.allocation,
        human_size(it.size_bytes),
        object.unwrap_or_default(),
        it.owner_uid,
        it.has_it
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_when_not_two_numbers_then_refused() {
        assert_eq!("4711/12".parse(), Ok(Which { pid: 4711, fd: 12 }));
        for text in ["", "12", "/", "1/", "/1", "-1/2", "1/2/3", "1/x"] {
            assert!(text.parse::<Which>().is_err(), "{text}");
        }
    }
}
