//! Counts the fds that the ledger claims: stops the demo's own processes, reads their /proc/PID/fd,
//! lets them go on. Must never stop another process, nor leave one stopped, whatever goes wrong in
//! between.

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::os::linux::fs::MetadataExt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use std::{fs, io};

/// How the links of fds of shared memory begin in /proc/PID/fd: arenas of this program, and
/// dma-bufs.
const HOST_MEMORY: [&str; 2] = ["/memfd:fdbroker", "/dmabuf:"];

/// The broker's generation page.
const PAGE: &str = "/memfd:generations";

/// How the links of fds of Level Zero memory begin.
const LEVEL_ZERO_MEMORY: [&str; 2] = ["/memfd:", "/dmabuf:"];

/// Device number of /dev/nvidiactl, 195:255 (Documentation/admin-guide/devices.txt), as st_rdev has
/// it.
const NVIDIA_CONTROL: u64 = (195 << 8) | 255;

/// How fds of shared memory are told from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// By name: arenas and dma-bufs.
    Names,
    /// By device number: CUDA VMM exports. The driver's own fds have the same number. Those that a
    /// process has before it shares anything are its base, and not counted.
    CudaVmm,
    /// By name: dma-bufs, and the memfds that a Level Zero driver without a device has in their
    /// place.
    LevelZero,
}

/// Longest wait until all are stopped. After it the sample is given up, not the demo: a process may
/// be in an uninterruptible call.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Between two looks at whether they are stopped: short against what a sample costs.
const STOP_LOOK_INTERVAL: Duration = Duration::from_micros(50);

/// A sample may cost at most one part in so many of the run.
const COST_SHARE: u32 = 25;

/// Shortest and longest time between two samples.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
const MAX_INTERVAL: Duration = Duration::from_secs(5);

/// Takes samples of the same processes again and again.
#[derive(Debug)]
pub struct Sampler {
    processes: Vec<Pid>,
    look: Look,
    /// Fds per process that look alike and are not of shared memory; empty: not known yet.
    base: Vec<u64>,
    /// The time of the next sample, so that samples cost little of the run.
    pub next_due: Instant,
    /// Number of samples taken.
    pub samples: u64,
    /// Most that any sample found, per process.
    pub peaks: Vec<u64>,
    /// Most that any sample found in all of them.
    pub total_peak: u64,
}

impl Sampler {
    /// `processes` must be children of this process that it has not waited for.
    pub fn new(processes: Vec<Pid>, look: Look) -> Self {
        let peaks = vec![0; processes.len()];
        let base = if look == Look::Names { peaks.clone() } else { Vec::new() };
        let next_due = Instant::now();
        Sampler { processes, look, base, next_due, samples: 0, peaks, total_peak: 0 }
    }

    /// Called before anything is shared: the fds that look like shared memory now are not. Until it
    /// was called no sample is taken where the base is needed.
    pub fn take_base(&mut self) -> io::Result<()> {
        if self.base.is_empty() {
            let late = || io::Error::other("the processes could not be stopped");
            self.base = sample(&self.processes, self.look)?.ok_or_else(late)?;
        }
        Ok(())
    }

    /// Stops all, counts, lets all go on. How many there are in all of them; `None` when they could
    /// not all be stopped in time.
    pub fn sample(&mut self) -> io::Result<Option<u64>> {
        let start = Instant::now();
        let sample = if self.base.is_empty() { None } else { sample(&self.processes, self.look)? };
        let pause = (start.elapsed() * COST_SHARE).clamp(MIN_INTERVAL, MAX_INTERVAL);
        self.next_due = Instant::now() + pause;
        let Some(sample) = sample else { return Ok(None) };
        let mut total = 0;
        for ((peak, found), base) in self.peaks.iter_mut().zip(sample).zip(&self.base) {
            let shared = found.saturating_sub(*base);
            total += shared;
            *peak = (*peak).max(shared);
        }
        self.samples += 1;
        self.total_peak = self.total_peak.max(total);
        Ok(Some(total))
    }
}

/// Processes that were told to stop. They are told to go on when this is dropped.
struct Stopped<'a>(&'a [Pid]);

impl<'a> Stopped<'a> {
    fn stop(processes: &'a [Pid]) -> io::Result<Self> {
        let stopped = Stopped(processes);
        for pid in processes {
            match kill(*pid, Signal::SIGSTOP) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(cause) => return Err(cause.into()),
            }
        }
        Ok(stopped)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        for pid in self.0 {
            let _ = kill(*pid, Signal::SIGCONT);
        }
    }
}

/// The fds of each process, or `None`: not all could be stopped in time.
fn sample(processes: &[Pid], look: Look) -> io::Result<Option<Vec<u64>>> {
    let guard = Stopped::stop(processes)?;
    let until = Instant::now() + STOP_LIMIT;
    for pid in processes {
        while !is_at_rest(*pid)? {
            if Instant::now() > until {
                return Ok(None);
            }
            std::thread::sleep(STOP_LOOK_INTERVAL);
        }
    }
    let mut sample = Vec::with_capacity(processes.len());
    for pid in processes {
        sample.push(match count_shared_memory(*pid, look) {
            // The /proc of a zombie belongs to root.
            Err(_) if has_ended(*pid) => 0,
            found => found?,
        });
    }
    drop(guard);
    Ok(Some(sample))
}

/// Whether a child is stopped, all its threads included, or dead. /proc/PID/stat would tell of the
/// main thread only; the kernel tells the parent when the last thread has stopped.
fn is_at_rest(pid: Pid) -> io::Result<bool> {
    let flags =
        WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::Pid(pid), flags) {
        Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => Ok(false),
        // ECHILD: waited for already, so it is gone.
        Ok(_) | Err(Errno::ECHILD) => Ok(true),
        Err(cause) => Err(cause.into()),
    }
}

/// A child's pid. It cannot be another process's as long as the child has not been waited for.
pub fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}

/// Whether a child has ended. Its exit status is left for the one that waits for it.
pub fn has_ended(pid: Pid) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    !matches!(waitid(Id::Pid(pid), flags), Ok(WaitStatus::StillAlive) | Err(Errno::EINTR))
}

/// Fds of shared memory of a process; 0 when it is gone. Exact only while it is stopped.
pub fn count_shared_memory(pid: Pid, look: Look) -> io::Result<u64> {
    let folder = match fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(folder) => folder,
        Err(cause) if is_gone(&cause) => return Ok(0),
        Err(cause) => return Err(cause),
    };
    let mut found = 0;
    for entry in folder {
        let is_one = entry.and_then(|entry| looks_shared(&entry.path(), look));
        found += match is_one {
            Ok(is_one) => u64::from(is_one),
            Err(cause) if is_gone(&cause) => 0,
            Err(cause) => return Err(cause),
        };
    }
    Ok(found)
}

fn looks_shared(fd: &Path, look: Look) -> io::Result<bool> {
    match look {
        Look::Names => fs::read_link(fd).map(|link| begins_with(&link, &HOST_MEMORY)),
        Look::LevelZero => fs::read_link(fd)
            .map(|link| begins_with(&link, &LEVEL_ZERO_MEMORY) && !begins_with(&link, &[PAGE])),
        // Follows the link, and asks the device's driver nothing.
        Look::CudaVmm => fs::metadata(fd).map(|fd| fd.st_rdev() == NVIDIA_CONTROL),
    }
}

fn is_gone(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::NotFound || cause.raw_os_error() == Some(libc::ESRCH)
}

fn begins_with(link: &Path, prefixes: &[&str]) -> bool {
    let name = link.as_os_str().as_bytes();
    prefixes.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// A child that waits, and ends with the test.
    struct Idle(Child);

    impl Idle {
        fn start() -> Self {
            let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
            Idle(child.expect("cat starts"))
        }

        fn pid(&self) -> Pid {
            pid_of(&self.0)
        }
    }

    impl Drop for Idle {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn sample_when_children_hold_no_shared_memory_then_zero_and_they_run_on() {
        let children = [Idle::start(), Idle::start()];
        let mut sampler = Sampler::new(children.iter().map(Idle::pid).collect(), Look::Names);
        let sample = sampler.sample().expect("own children").expect("stopped in time");
        assert_eq!((sample, &sampler.peaks), (0, &vec![0, 0]));
        for child in &children {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.pid())).expect("alive");
            assert!(!stat.contains(") T "), "{stat}");
        }
    }

    #[test]
    fn sample_when_children_hold_known_fds_then_exactly_those_are_counted() {
        let memfd = |name| {
            let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
            Stdio::from(nix::sys::memfd::memfd_create(name, flags).expect("a memfd"))
        };
        let start = |fds: [Stdio; 3]| {
            let [stdin, stdout, stderr] = fds;
            let mut command = Command::new("sleep");
            command.arg("60").stdin(stdin).stdout(stdout).stderr(stderr);
            Idle(command.spawn().expect("sleep starts"))
        };
        let arena = || memfd(c"fdbroker-arena");
        let three = start([arena(), arena(), arena()]);
        let one = start([arena(), memfd(c"another"), Stdio::null()]);
        let mut sampler = Sampler::new(vec![three.pid(), one.pid()], Look::Names);
        let sample = sampler.sample().expect("own children").expect("stopped in time");
        assert_eq!((sample, sampler.total_peak, &sampler.peaks), (4, 4, &vec![3, 1]));
        sampler.base = vec![1, 2];
        assert_eq!(sampler.sample().expect("own children"), Some(2), "beyond the base");
    }

    #[test]
    fn sample_when_a_child_is_dead_then_it_counts_as_zero() {
        let mut child = Idle::start();
        child.0.kill().expect("own child");
        let sample = sample(&[child.pid()], Look::Names).expect("own child").expect("at rest");
        assert_eq!(sample, [0]);
    }

    #[test]
    fn sample_when_only_devices_count_then_nothing_before_the_base_is_known() {
        let child = Idle::start();
        let mut sampler = Sampler::new(vec![child.pid()], Look::CudaVmm);
        assert_eq!(sampler.sample().expect("own child"), None);
        sampler.take_base().expect("own child");
        let sample = sampler.sample().expect("own child").expect("stopped in time");
        assert_eq!(sample, 0);
    }

    #[test]
    fn begins_with_when_arena_or_dma_buf_then_counted_and_nothing_else() {
        let counts = |link: &str, prefixes| begins_with(Path::new(link), prefixes);
        for link in ["/memfd:fdbroker-arena (deleted)", "/dmabuf:", "/dmabuf:name"] {
            assert!(counts(link, &HOST_MEMORY) && counts(link, &LEVEL_ZERO_MEMORY), "{link}");
        }
        for link in ["socket:[1]", "/dev/null", "/x/dmabuf:"] {
            assert!(!counts(link, &HOST_MEMORY) && !counts(link, &LEVEL_ZERO_MEMORY), "{link}");
        }
        assert!(!counts("/memfd:other (deleted)", &HOST_MEMORY));
    }
}
