//! Reads /proc: fds of shared memory, sockets with fds in their queues, rings, mappings; and the
//! kernel's list of dma-bufs. Must never open, stat or stop what it looks at (but for memfds, once
//! they are proved to be some): links and fdinfo are read, which no file system can hold up; and
//! never leave out a process in silence.

use super::kcmp::{Question, kcmp};
use super::ledger::{Client, MemoryKey};
use super::limits::{
    MAX_BUFFER_LIST_BYTES, MAX_FDS, MAX_FILE_BYTES, MAX_MAPPINGS, MAX_PROCESSES, MAX_RING_BYTES,
    MAX_TABLES, MAX_THREADS,
};
use super::process::{Buffer, MemoryFd, Process, Queue, Scan};
use super::{cuda, parse};
use crate::error::{Context, Result};
use fdbroker_protocol::MemoryKind;
use fdbrokerd::names::OWN_MEMFDS;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Whether this is a memfd that a broker has for itself.
fn is_brokers_own(link: &str) -> bool {
    let name = link.strip_prefix("/memfd:");
    name.is_some_and(|name| OWN_MEMFDS.iter().any(|own| name.starts_with(own)))
}

/// How memfds look in /proc of this boot: learned from one of our own.
#[derive(Clone, Debug)]
pub struct MemfdLook {
    /// `mnt_id` in fdinfo.
    mount: u64,
    /// Device in maps.
    device: String,
}

impl MemfdLook {
    /// Makes a memfd and looks at it.
    pub fn learn() -> Result<Self> {
        let what = || "learn how memfds look in /proc (audit needs it; `fdbroker doctor` says what is here)";
        let own = memfd_create(c"fdbroker-audit", MFdFlags::MFD_CLOEXEC).context(what)?;
        let info = format!("/proc/self/fdinfo/{}", own.as_raw_fd());
        let info = read(Path::new(&info), MAX_FILE_BYTES).context(what)?;
        let device = nix::sys::stat::fstat(&own).context(what)?.st_dev;
        let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
        let device = format!("{major:02x}:{minor:02x}");
        Ok(MemfdLook { mount: parse::field(&info, "mnt_id").unwrap_or(0), device })
    }
}

/// Where the link of one fd of a process leads, and the memory that it is proved to be.
pub fn one(pid: u32, fd: u32) -> Result<io::Result<(String, Option<MemoryKey>)>> {
    let look = MemfdLook::learn()?;
    let memory = |link: &str| -> io::Result<Option<MemoryKey>> {
        if link.ends_with("/nvidiactl") {
            return Ok(Some(MemoryKey { kind: MemoryKind::CudaVmm, number: 0 }));
        }
        if !link.starts_with("/memfd:") && !link.starts_with("/dmabuf:") {
            return Ok(None);
        }
        let info = read(Path::new(&format!("/proc/{pid}/fdinfo/{fd}")), MAX_FILE_BYTES)?;
        let found = parse::memory(&info, look.mount).zip(parse::field(&info, "ino"));
        Ok(found.map(|(memory, number)| MemoryKey { kind: memory.kind, number }))
    };
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}"));
    Ok(link.and_then(|link| {
        let link = link.to_string_lossy().into_owned();
        memory(&link).map(|memory| (link, memory))
    }))
}

/// The kernel's list of dma-bufs; for root, where debugfs is mounted.
const BUFFER_LIST: &str = "/sys/kernel/debug/dma_buf/bufinfo";

/// Whose fds are looked at in which way.
#[derive(Clone, Copy, Debug)]
pub struct Whose<'a> {
    pub broker: u32,
    /// By pid. Of their memfds it is said which are sealed.
    pub clients: &'a BTreeMap<u32, Client>,
}

/// Looks at every process but this one. `progress` is told how many are done, of how many.
pub fn scan(
    look: &MemfdLook,
    whose: Whose<'_>,
    mut progress: impl FnMut(usize, usize),
) -> Result<Scan> {
    let mut scan = Scan::default();
    let pids = all_pids(&mut scan)?;
    let own = std::process::id();
    for (done, pid) in pids.iter().enumerate() {
        progress(done, pids.len());
        if *pid != own {
            look_at(*pid, whose, look, &mut scan);
        }
    }
    cuda::tell_apart(&mut scan, whose.broker);
    Ok(scan)
}

/// All dma-bufs that there are; an error where the kernel does not say.
pub fn buffers() -> io::Result<Vec<Buffer>> {
    let mut bytes = Vec::new();
    File::open(BUFFER_LIST)?.take(MAX_BUFFER_LIST_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).lines().filter_map(parse::buffer).collect())
}

fn all_pids(scan: &mut Scan) -> Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").context(|| "read /proc")? {
        let entry = entry.context(|| "read /proc")?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if pids.len() == MAX_PROCESSES {
            scan.gap(format!("processes beyond {MAX_PROCESSES}: audit looks at no more"));
            continue;
        }
        pids.push(pid);
    }
    Ok(pids)
}

/// A process that ends meanwhile is none.
fn look_at(pid: u32, whose: Whose<'_>, look: &MemfdLook, scan: &mut Scan) {
    let base = format!("/proc/{pid}");
    let Ok(status) = read(Path::new(&format!("{base}/status")), MAX_FILE_BYTES) else { return };
    let Some(mut process) = parse::status(&status) else { return };
    if is_lane(pid, &process, whose.broker) {
        return;
    }
    let found = read_all(pid, whose, look, &mut process, scan);
    match found {
        Ok(()) => {}
        Err(cause) if is_gone(&cause) => return,
        Err(cause) => {
            let why = match cause.kind() {
                io::ErrorKind::PermissionDenied if nix::unistd::geteuid().is_root() => {
                    "not readable, not even for root here".into()
                }
                io::ErrorKind::PermissionDenied => "not readable for this user; run as root".into(),
                _ => cause.to_string(),
            };
            process.forget();
            process.unread = Some(why);
        }
    }
    let cgroup = read(Path::new(&format!("{base}/cgroup")), MAX_FILE_BYTES).unwrap_or_default();
    process.job = fdbrokerd::schedulers::job_name(&cgroup).unwrap_or_default();
    // Its state does not show that.
    if whose.clients.contains_key(&pid) && !process.is_dead() && is_frozen(&cgroup) {
        process.state = 'T';
    }
    scan.processes.insert(pid, process);
}

/// Whether the cgroup in the text of /proc/PID/cgroup is frozen (cgroups(7)): by `systemctl freeze`
/// or a container engine's pause.
fn is_frozen(cgroup: &str) -> bool {
    let says = |path: String, what: &str| {
        read(Path::new(&path), MAX_FILE_BYTES).is_ok_and(|text| text.lines().any(|it| it == what))
    };
    cgroup.lines().any(|line| match line.split_once(':').and_then(|(_, of)| of.split_once(':')) {
        // By itself, or beside those of version 1.
        Some(("", path)) => ["", "/unified"]
            .iter()
            .any(|of| says(format!("/sys/fs/cgroup{of}{path}/cgroup.events"), "frozen 1")),
        Some(("freezer", path)) => {
            says(format!("/sys/fs/cgroup/freezer{path}/freezer.state"), "FROZEN")
        }
        _ => false,
    })
}

/// Whether a process is one of the broker's lanes, or the one from which they are started: these
/// share its table of fds.
fn is_lane(pid: u32, process: &Process, broker: u32) -> bool {
    let parent = || {
        let path = format!("/proc/{}/status", process.parent);
        parse::status(&read(Path::new(&path), MAX_FILE_BYTES).ok()?)
    };
    let is_child =
        process.parent == broker || parent().is_some_and(|parent| parent.parent == broker);
    // A broker that is process 1 of a container has children that are others'.
    is_child
        && match kcmp(Question::Table, (broker, 0), (pid, 0)) {
            Ok(Some(order)) => order == Ordering::Equal,
            _ => process.command.starts_with("fdbroker-lane"),
        }
}

/// Reads every fd table of a process, and its mappings.
fn read_all(
    pid: u32,
    whose: Whose<'_>,
    look: &MemfdLook,
    process: &mut Process,
    scan: &mut Scan,
) -> io::Result<()> {
    let (mut main, mut threads) = (pid, threads(pid, scan));
    if process.is_dead() {
        // Nothing can be read by the number of a first thread that has ended, though others live
        // on.
        threads.retain(|thread| is_alive(pid, *thread));
        let Some(first) = threads.first() else { return Ok(()) };
        process.headless = Some(threads.len() as u64);
        main = *first;
    }
    let task = |thread: u32| format!("/proc/{pid}/task/{thread}");
    read_fds(&task(main), (pid, 0), whose, look, process, scan)?;
    for thread in own_tables(main, &threads, scan) {
        match read_fds(&task(thread), (pid, thread), whose, look, process, scan) {
            // A thread may end at any time.
            Err(cause) if is_gone(&cause) => {}
            found => found?,
        }
    }
    process.fds.sort_unstable_by_key(|memory| (memory.thread, memory.fd));
    // A socket may be there by several fds.
    process.queues.sort_unstable_by_key(|queue| (queue.inode, queue.fd));
    process.queues.dedup_by_key(|queue| queue.inode);
    process.queues.sort_unstable_by_key(|queue| queue.fd);
    read_maps(&task(main), look, process, scan)
}

/// The threads of a process; none if that cannot be seen.
fn threads(pid: u32, scan: &mut Scan) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut threads: Vec<u32> = names.take(MAX_THREADS + 1).collect();
    if threads.len() > MAX_THREADS {
        scan.gap(format!("threads of a process beyond {MAX_THREADS}: audit looks at no more"));
        threads.truncate(MAX_THREADS);
    }
    threads
}

fn is_alive(pid: u32, thread: u32) -> bool {
    let status = read(Path::new(&format!("/proc/{pid}/task/{thread}/status")), MAX_FILE_BYTES);
    let process = status.ok().and_then(|text| parse::status(&text));
    process.is_some_and(|process| !process.is_dead())
}

/// Threads with an fd table of their own, one of each that share it.
fn own_tables(main: u32, threads: &[u32], scan: &mut Scan) -> Vec<u32> {
    let mut tables = vec![main];
    'threads: for thread in threads.iter().filter(|thread| **thread != main) {
        for table in &tables {
            match kcmp(Question::Table, (*table, 0), (*thread, 0)) {
                Ok(Some(Ordering::Equal)) => continue 'threads,
                Ok(Some(_)) => {}
                Ok(None) => continue 'threads,
                // As in a container whose seccomp profile refuses it.
                Err(why) => {
                    scan.gap(format!("fd tables of threads: kcmp(2) says {why}"));
                    return Vec::new();
                }
            }
        }
        if tables.len() > MAX_TABLES {
            scan.gap(format!("fd tables of a process beyond {MAX_TABLES}: audit looks at no more"));
            break;
        }
        tables.push(*thread);
    }
    tables.split_off(1)
}

fn read_fds(
    base: &str,
    (pid, thread): (u32, u32),
    whose: Whose<'_>,
    look: &MemfdLook,
    process: &mut Process,
    scan: &mut Scan,
) -> io::Result<()> {
    let is_broker = pid == whose.broker;
    for (seen, entry) in fs::read_dir(format!("{base}/fd"))?.enumerate() {
        if seen == MAX_FDS {
            scan.gap(format!("fds of a process beyond {MAX_FDS}: audit looks at no more"));
            break;
        }
        let entry = entry?;
        scan.fds += 1;
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let link = match fs::read_link(entry.path()) {
            Ok(link) => link.to_string_lossy().into_owned(),
            Err(cause) if is_gone(&cause) => continue,
            Err(cause) => return Err(cause),
        };
        // The link says where to look closer; what proves an fd is its fdinfo, which its holder
        // cannot forge.
        let is_socket = link.starts_with("socket:");
        let is_memory = link.starts_with("/memfd:") || link.starts_with("/dmabuf:");
        // The kernel's own text. Its fdinfo waits for no lock (io_uring/fdinfo.c).
        let is_ring = link == "anon_inode:[io_uring]";
        if link.ends_with("/nvidiactl") {
            let key = MemoryKey { kind: MemoryKind::CudaVmm, number: 0 };
            process.fds.push(MemoryFd { thread, ..MemoryFd::new(fd, key) });
        }
        if !is_socket && !is_memory && !is_ring || is_broker && is_brokers_own(&link) {
            continue;
        }
        let most = if is_ring { MAX_RING_BYTES } else { MAX_FILE_BYTES };
        let info = match read(Path::new(&format!("{base}/fdinfo/{fd}")), most) {
            Ok(info) => info,
            Err(cause) if is_gone(&cause) => continue,
            Err(cause) => return Err(cause),
        };
        if is_ring {
            process.rings.push(parse::ring(&info, fd));
            continue;
        }
        let Some(inode) = parse::field(&info, "ino") else { continue };
        if is_socket {
            let in_flight = parse::field(&info, "scm_fds").unwrap_or(0);
            if in_flight > 0 {
                process.queues.push(Queue { fd, inode, in_flight });
            }
            process.sockets.push(inode);
        } else if let Some(memory) = parse::memory(&info, look.mount) {
            let key = MemoryKey { kind: memory.kind, number: inode };
            let sealed = memory.kind == MemoryKind::Memfd
                && whose.clients.contains_key(&pid)
                && is_sealed(&format!("{base}/fd/{fd}"), look);
            let references = memory.references;
            process.fds.push(MemoryFd { fd, thread, key, references, sealed });
        }
    }
    Ok(())
}

/// Whether a memfd has the seals that a deposit needs. The fd may have become another one
/// meanwhile, so nothing is opened that is not proved to be a memfd: a path (O_PATH) opens nothing.
fn is_sealed(path: &str, look: &MemfdLook) -> bool {
    let open = |path: &str, flags: i32| {
        let mut options = File::options();
        options.read(true).custom_flags(flags | libc::O_CLOEXEC).open(path)
    };
    let Ok(place) = open(path, libc::O_PATH) else { return false };
    let own = place.as_raw_fd();
    let info = read(Path::new(&format!("/proc/self/fdinfo/{own}")), MAX_FILE_BYTES);
    if !info.is_ok_and(|info| parse::field(&info, "mnt_id") == Some(look.mount)) {
        return false;
    }
    let Ok(memfd) = open(&format!("/proc/self/fd/{own}"), libc::O_NONBLOCK) else { return false };
    let needed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    let seals = fcntl(&memfd, FcntlArg::F_GET_SEALS);
    seals.is_ok_and(|seals| SealFlag::from_bits_retain(seals).contains(needed))
}

fn read_maps(
    base: &str,
    look: &MemfdLook,
    process: &mut Process,
    scan: &mut Scan,
) -> io::Result<()> {
    let mut lines = BufReader::new(File::open(format!("{base}/maps"))?);
    let mut line = Vec::new();
    for _ in 0..MAX_MAPPINGS {
        line.clear();
        if lines.by_ref().take(MAX_FILE_BYTES).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if let Some((key, bytes)) = parse::mapping(&String::from_utf8_lossy(&line), &look.device) {
            let mapped = process.mapped.entry(key).or_default();
            mapped.mappings += 1;
            mapped.bytes += bytes;
        }
    }
    scan.gap(format!("mappings of a process beyond {MAX_MAPPINGS}: audit looks at no more"));
    Ok(())
}

fn read(path: &Path, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn is_gone(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::NotFound || cause.raw_os_error() == Some(libc::ESRCH)
}
