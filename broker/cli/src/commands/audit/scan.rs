//! Reads /proc: fds of shared memory, sockets with fds in their queues, mappings. Must never open, stat or stop what
//! it looks at: links and fdinfo are read, which no file system can hold up; and never leave out a process in silence.

use super::cuda;
use super::ledger::MemoryKey;
use super::limits::{MAX_FDS, MAX_FILE_BYTES, MAX_MAPPINGS, MAX_PROCESSES};
use super::parse;
use super::process::{MemoryFd, Process, Queue, Scan};
use crate::error::{Context, Result};
use fdbroker_protocol::MemoryKind;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::path::Path;

/// Names of memfds that a broker has for itself.
const BROKERS_OWN: [&str; 2] = ["/memfd:fdbroker-state", "/memfd:fdbroker-keep-book"];

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
        let info =
            read(Path::new(&format!("/proc/self/fdinfo/{}", own.as_raw_fd()))).context(what)?;
        let device = nix::sys::stat::fstat(&own).context(what)?.st_dev;
        let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
        let device = format!("{major:02x}:{minor:02x}");
        Ok(MemfdLook { mount: parse::field(&info, "mnt_id").unwrap_or(0), device })
    }
}

/// Looks at every process but this one. `progress` is told how many are done, of how many.
pub fn scan(look: &MemfdLook, broker: u32, mut progress: impl FnMut(usize, usize)) -> Result<Scan> {
    let mut scan = Scan::default();
    let pids = all_pids(&mut scan)?;
    let own = std::process::id();
    for (done, pid) in pids.iter().enumerate() {
        progress(done, pids.len());
        if *pid != own {
            look_at(*pid, *pid == broker, look, &mut scan);
        }
    }
    cuda::tell_apart(&mut scan, broker);
    Ok(scan)
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
fn look_at(pid: u32, is_broker: bool, look: &MemfdLook, scan: &mut Scan) {
    let base = format!("/proc/{pid}");
    let Ok(status) = read(Path::new(&format!("{base}/status"))) else { return };
    let Some(mut process) = parse::status(&status) else { return };
    let found = read_fds(&base, is_broker, look, &mut process, scan)
        .and_then(|()| read_maps(&base, look, &mut process, scan));
    match found {
        Ok(()) => {}
        // A zombie's /proc belongs to root; what it had is closed.
        Err(_) if process.state == 'Z' || process.state == 'X' => {}
        Err(cause) if is_gone(&cause) => return,
        Err(cause) => {
            let why = match cause.kind() {
                io::ErrorKind::PermissionDenied if nix::unistd::geteuid().is_root() => {
                    "not readable, not even for root here".into()
                }
                io::ErrorKind::PermissionDenied => "not readable for this user; run as root".into(),
                _ => cause.to_string(),
            };
            process.fds.clear();
            process.queues.clear();
            process.mapped.clear();
            process.unread = Some(why);
        }
    }
    process.job = read(Path::new(&format!("{base}/cgroup")))
        .ok()
        .and_then(|text| fdbrokerd::schedulers::job_name(&text))
        .unwrap_or_default();
    scan.processes.insert(pid, process);
}

fn read_fds(
    base: &str,
    is_broker: bool,
    look: &MemfdLook,
    process: &mut Process,
    scan: &mut Scan,
) -> io::Result<()> {
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
        // The link says where to look closer; what proves an fd is its fdinfo, which its holder cannot forge.
        let is_socket = link.starts_with("socket:");
        let is_memory = link.starts_with("/memfd:") || link.starts_with("/dmabuf:");
        if link.ends_with("/nvidiactl") {
            let key = MemoryKey { kind: MemoryKind::CudaVmm, number: 0 };
            process.fds.push(MemoryFd { fd, key, references: None });
        }
        if !is_socket && !is_memory
            || is_broker && BROKERS_OWN.iter().any(|own| link.starts_with(own))
        {
            continue;
        }
        let info = match read(Path::new(&format!("{base}/fdinfo/{fd}"))) {
            Ok(info) => info,
            Err(cause) if is_gone(&cause) => continue,
            Err(cause) => return Err(cause),
        };
        let Some(inode) = parse::field(&info, "ino") else { continue };
        if is_socket {
            let in_flight = parse::field(&info, "scm_fds").unwrap_or(0);
            if in_flight > 0 {
                process.queues.push(Queue { fd, inode, in_flight });
            }
            if is_broker {
                process.sockets.push(inode);
            }
        } else if let Some(memory) = parse::memory(&info, look.mount) {
            let key = MemoryKey { kind: memory.kind, number: inode };
            process.fds.push(MemoryFd { fd, key, references: memory.references });
        }
    }
    process.fds.sort_unstable_by_key(|memory| memory.fd);
    process.queues.sort_unstable_by_key(|queue| queue.fd);
    Ok(())
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

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn is_gone(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::NotFound || cause.raw_os_error() == Some(libc::ESRCH)
}
