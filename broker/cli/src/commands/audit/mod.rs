//! `fdbroker audit`: the ledger against /proc of every process that it may read. Must never report
//! what does not hold in every look, nor change anything.

mod after_end;
mod args;
mod book;
mod broker;
mod cuda;
mod finding;
mod kcmp;
pub mod ledger;
mod limits;
mod odd;
mod parse;
mod peers;
mod process;
mod report;
mod same_memory;
pub mod scan;
#[cfg(test)]
mod tests;
mod tombstones;
mod unheld;
mod unleased;

pub use args::Args;

use crate::admin::{Admin, viewing};
use crate::commands::metrics;
use crate::error::{Error, Result};
use book::{Book, Look};
use fdbroker_protocol::MemoryKind;
use finding::{Finding, Identity, Kind};
use indicatif::{ProgressBar, ProgressStyle};
use ledger::Ledger;
use limits::{LOOK_INTERVAL, LOOKS, LOOKS_AT_WORK, PROGRESS_FROM};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use process::{Process, Scan};
use report::Report;
use scan::{MemfdLook, Whose};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use tombstones::Tombstones;

/// Audits the broker that the environment names; returns the exit status.
pub fn run(args: &Args) -> Result<u8> {
    let audited = audit(args);
    if let Some(dir) = &args.textfile {
        // Also when there was no audit: an old file would say that all is well.
        let counts = audited.as_ref().map(|(_, counts)| counts.clone()).unwrap_or_default();
        let is_complete = audited.as_ref().is_ok_and(|(report, _)| report.unread_parties == 0);
        metrics::write_audit(dir, is_complete, counts)?;
    }
    let (report, _) = audited?;
    report.print(args.json, args.verbose)?;
    Ok(report.exit_status())
}

/// How many findings there are of each kind.
type Counts = Vec<(&'static str, u64)>;

fn counts(found: &[Finding]) -> Counts {
    let count = |kind| found.iter().filter(|finding| finding.kind == kind).count() as u64;
    Kind::faults().map(|kind| (kind.name(), count(kind))).collect()
}

fn audit(args: &Args) -> Result<(Report, Counts)> {
    let mut admin = viewing::connect()?;
    let memfds = MemfdLook::learn()?;
    let first = look(&mut admin, &memfds)?;
    check_pids(&first, admin.inode()?)?;
    // Grants and evictions, which tell that the broker is at work, are not counted of a part.
    let needed = if admin.is_own_part() { LOOKS_AT_WORK } else { LOOKS };
    let (look, mut found, looks) = confirm(first, needed, || {
        std::thread::sleep(LOOK_INTERVAL);
        look(&mut admin, &memfds)
    })?;
    found.retain(|finding| args.pid.is_none() || finding.pid == args.pid);
    if let Some(pid) = args.pid
        && found.is_empty()
    {
        check_wanted(pid, &look)?;
    }
    let processes = look.scan.processes.values().filter(|it| it.unread.is_none()).count();
    let mut report = Report {
        scope: admin.scope_name(),
        processes: processes as u64,
        fds: look.scan.fds,
        looks: looks as u64,
        not_looked_at: gaps(&look, args.pid),
        unread_parties: unread_parties(&look, args.pid) as u64,
        ..Report::default()
    };
    let counts = counts(&found);
    report.add(found);
    Ok((report, counts))
}

fn look(admin: &mut Admin, memfds: &MemfdLook) -> Result<Look> {
    let mut before = Ledger::read(admin)?;
    let (peers, no_peers) = match peers::read() {
        Ok(peers) => (peers, None),
        Err(errno) => (HashMap::new(), Some(errno)),
    };
    let bar = ProgressBar::no_length().with_style(style());
    let whose = Whose { broker: before.broker, clients: &before.clients };
    let mut scan = scan::scan(memfds, whose, |done, all| {
        if all >= PROGRESS_FROM {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        }
    })?;
    bar.finish_and_clear();
    if let Some(errno) = no_peers {
        scan.gap(format!("lists of Unix sockets: sock_diag(7) says {errno}"));
    }
    let mut after = Ledger::read(admin)?;
    let tombstones = Tombstones::read(admin)?;
    add_buffers(&mut scan, &after, &tombstones);
    before.name_cuda_files(&scan.cuda_files);
    after.name_cuda_files(&scan.cuda_files);
    add_hidden(&mut scan, &after);
    Ok(Look { before, after, scan, tombstones, peers })
}

/// The kernel's list of dma-bufs, where the broker has or had any: it shows those that no process
/// has.
fn add_buffers(scan: &mut Scan, ledger: &Ledger, tombstones: &Tombstones) {
    let mut kinds = ledger.allocations.values().map(|allocation| allocation.kind);
    let mut ended = tombstones.files.keys().map(|key| key.kind);
    let is_one = |kind: MemoryKind| kind == MemoryKind::DmaBuf;
    if !kinds.any(is_one) && !ended.any(is_one) {
        return;
    }
    match scan::buffers() {
        Ok(buffers) => scan.buffers = buffers,
        Err(cause) => scan.gap(format!("dma-bufs that no process has: {}", cause.kind())),
    }
}

/// Holders that /proc does not show to this user (hidepid, proc_pid(5)), so that they are not taken
/// for gone.
fn add_hidden(scan: &mut Scan, ledger: &Ledger) {
    let pids: BTreeSet<u32> = ledger.leases.values().map(|lease| lease.pid).collect();
    for pid in pids {
        if pid != 0 && !scan.processes.contains_key(&pid) && !is_gone(pid) {
            let unread = Some("not shown in /proc to this user; run as root".into());
            scan.processes.insert(pid, Process { unread, ..Process::default() });
        }
    }
}

fn is_gone(pid: u32) -> bool {
    let pid = i32::try_from(pid).map_or(Pid::from_raw(i32::MAX), Pid::from_raw);
    kill(pid, None) == Err(Errno::ESRCH)
}

/// That nothing is found is said of processes that there are.
fn check_wanted(pid: u32, look: &Look) -> Result<()> {
    // A thread has a number, too, and kill(2) finds it.
    let is_hidden =
        pid != 0 && !is_gone(pid) && !Path::new(&format!("/proc/{pid}/status")).exists();
    let is_here = look.scan.processes.contains_key(&pid) || is_hidden;
    if is_here {
        Ok(())
    } else {
        Err(Error::NotFound(format!(
            "no process {pid} here; `fdbroker clients` lists the broker's clients"
        )))
    }
}

/// The pids of the ledger are those of /proc here when the process that has the broker's pid has
/// the other end of our connection.
fn check_pids(look: &Look, own: u64) -> Result<()> {
    let pid = look.after.broker;
    let is_it = match look.scan.processes.get(&pid) {
        // One that /proc shows and the look left out is a thread of the kernel.
        None => !is_gone(pid) && !Path::new(&format!("/proc/{pid}")).exists(),
        Some(process) if process.unread.is_some() => true,
        Some(process) => match look.peers.get(&own) {
            Some(Some(peer)) => process.sockets.contains(peer),
            _ => true,
        },
    };
    if is_it {
        Ok(())
    } else {
        Err(Error::Other(format!(
            "process {pid} is not the broker here, so its ledger cannot be compared with this /proc; run audit in \
             the broker's PID namespace (nsenter --pid --mount --target ITS_PID)"
        )))
    }
}

fn style() -> ProgressStyle {
    let style = ProgressStyle::with_template("audit: {pos} of {len} processes");
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Everything that one look shows.
fn judge(look: &Look) -> Vec<Finding> {
    let book = Book::new(look);
    let mut found = Vec::new();
    unleased::find(&book, &mut found);
    unheld::find(&book, &mut found);
    after_end::find(&book, &mut found);
    odd::find(&book, &mut found);
    broker::find(&book, &mut found);
    for finding in &mut found {
        let allocation = finding.allocation.and_then(|id| look.after.allocations.get(&id));
        finding.virtual_fd = allocation.and_then(|it| it.virtual_fd);
    }
    found
}

/// Looks again, `needed` times at least, until what was found in all looks holds, or nothing is
/// left of it; gives the last look, what was found, and how many looks there were.
fn confirm(
    first: Look,
    mut needed: usize,
    mut again: impl FnMut() -> Result<Look>,
) -> Result<(Look, Vec<Finding>, usize)> {
    let (mut look, mut looks) = (first, 1);
    let mut found = judge(&look);
    loop {
        if look.before.done != look.after.done {
            needed = LOOKS_AT_WORK;
        }
        // Where nothing is wrong there is nothing to confirm.
        if looks >= needed || found.iter().all(|finding| finding.kind.is_note()) {
            return Ok((look, found, looks));
        }
        look = again()?;
        found = confirmed(judge(&look), &found);
        looks += 1;
    }
}

/// What this look shows and the one before did.
fn confirmed(now: Vec<Finding>, before: &[Finding]) -> Vec<Finding> {
    let known: BTreeSet<Identity> = before.iter().map(Finding::identity).collect();
    now.into_iter().filter(|finding| known.contains(&finding.identity())).collect()
}

/// How many processes that the ledger is about could not be looked at: clients and, where all of
/// the ledger is seen, the broker.
fn unread_parties(look: &Look, wanted: Option<u32>) -> usize {
    let ledger = &look.after;
    let is_read = |pid: &u32| look.scan.processes.get(pid).is_some_and(|it| it.unread.is_none());
    let is_hidden = |pid: &u32| !is_read(pid) && !is_gone(*pid);
    // One that has joined since the processes were looked at is not hidden.
    let clients =
        ledger.clients.keys().copied().filter(|pid| look.before.clients.contains_key(pid));
    let parties = clients.chain(Some(ledger.broker).filter(|_| ledger.is_whole));
    // What is asked for counts, whatever it is.
    let parties: BTreeSet<u32> = match wanted {
        Some(wanted) => BTreeSet::from([wanted]),
        None => parties.collect(),
    };
    parties.iter().filter(|pid| is_hidden(pid)).count()
}

/// What was not looked at, and why; of the process `wanted`, if it is among it, by itself.
fn gaps(look: &Look, wanted: Option<u32>) -> BTreeMap<String, u64> {
    let (scan, ledger) = (&look.scan, &look.after);
    let mut gaps = scan.gaps.clone();
    let mut add = |what: String, count: u64| {
        if count > 0 {
            *gaps.entry(what).or_default() += count;
        }
    };
    for (pid, process) in &scan.processes {
        let Some(why) = &process.unread else { continue };
        let whose = match () {
            () if wanted == Some(*pid) => "the process asked for",
            () if *pid == ledger.broker => "the broker: its fds",
            () if ledger.clients.contains_key(pid) => "clients",
            () => "processes",
        };
        add(format!("{whose}: {why}"), 1);
    }
    if !scan.processes.contains_key(&ledger.broker) {
        add("the broker: not shown in /proc to this user; run as root".into(), 1);
    }
    add(
        "clients: the broker does not see their pids (another PID namespace)".into(),
        ledger.unseen_clients,
    );
    add(
        "ended allocations: forgotten for newer ones, so copies of theirs cannot be told".into(),
        look.tombstones.dropped,
    );
    let untold = |is_cuda: bool| {
        let all = ledger.allocations.values().filter(move |it| it.keys().next().is_none());
        all.filter(move |it| it.kind.has_own_inode() != is_cuda).count() as u64
    };
    add(
        "allocations: the broker has no fd of this CUDA memory now, so copies of theirs cannot be told".into(),
        untold(true),
    );
    add(
        "allocations: the broker has not had an fd of them since it started, so copies of theirs cannot be told".into(),
        untold(false),
    );
    gaps
}
