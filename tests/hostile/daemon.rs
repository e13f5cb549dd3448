//! The daemon under attack, run as an unprivileged user, and the counts that show a leak. Must
//! never run as root when another user can be had: root is exempt from the limits that matter.

use crate::support::admin::Admin;
use crate::support::peer::{Rank, pin_thread};
use crate::support::wait::{PATIENCE, read_to_end};
use crate::users::{User, are_many};
use fdbroker_protocol::admin::NodeStatus;
use fdbroker_protocol::{ByCounter, ByResource};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::Pid;
use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Size of the daemon's fd table: room for some 1000 clients, within a hard limit that every system
/// grants.
pub const DAEMON_FDS: u64 = 16_384;

/// Lines of the daemon's log that a failure shows: those of the minute before it.
const LOG_LINES_SHOWN: usize = 12;

/// A running daemon in a directory of its own.
#[derive(Debug)]
pub struct Daemon {
    dir: TempDir,
    child: Child,
    admin: Admin,
}

/// Fds and other counts that must be as before when an attack is over. No bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Entries of /proc/PID/fd; 0 where they cannot be seen.
    pub open_fds: usize,
    /// Of the node; the broker's own table is not looked at.
    pub uses: ByResource<u64>,
    pub closing: u64,
}

impl Counts {
    /// Whether nothing is left of an attack. Idle credits may have been taken back, and then there
    /// are fewer.
    pub fn is_as(self, before: Counts) -> bool {
        let is_no_more = self.uses.reserved_places <= before.uses.reserved_places;
        let uses = ByResource { reserved_places: before.uses.reserved_places, ..self.uses };
        is_no_more && Counts { uses, ..self } == before
    }

    /// Without the fds that the broker holds: under a small cap these are now one more, now one
    /// less.
    pub fn without_held(self) -> Counts {
        let uses =
            ByResource { fds: 0, held_fds: 0, held_bytes: 0, reserved_places: 0, ..self.uses };
        Counts { open_fds: 0, uses, ..self }
    }
}

/// What its loop and its core had to do at most, by its own account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Between two waits for something to do.
    pub longest_wake_us: u64,
    /// Visited in one step, and the bound of that step.
    pub records: u64,
    pub most_records: u64,
}

impl Work {
    /// Reads the line with which the log ends.
    fn parse(log: &str) -> Option<Work> {
        let (_, line) = log.split_once("; longest wake ")?;
        let mut numbers = line.lines().next()?.split_whitespace().flat_map(str::parse);
        Some(Work {
            longest_wake_us: numbers.next()?,
            records: numbers.next()?,
            most_records: numbers.next()?,
        })
    }
}

impl Daemon {
    /// Starts a daemon with these further arguments. Its loop has the first processor for itself;
    /// its helper threads, which only close fds, have the second one.
    pub fn start(arguments: &[&str], cpus: [usize; 2]) -> Daemon {
        let dir = tempfile::Builder::new().prefix("fdb-").tempdir().expect("a directory");
        let log = File::create(dir.path().join("log")).expect("a log");
        let mut command = Command::new(program(dir.path()));
        if are_many() {
            let uid = User::Daemon.uid();
            chown(dir.path(), Some(uid), Some(uid)).expect("chown");
            std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("chmod");
            command.uid(uid).gid(uid).arg("--socket").arg(dir.path().join("fdbroker/broker.sock"));
        } else {
            command.arg("--private").arg(dir.path());
        }
        let config = dir.path().join("config.toml");
        std::fs::write(&config, "").expect("write the config");
        command.arg("--config").arg(config).args(arguments);
        command.args(["--until-eof", "0", "--ready-fd", "1"]);
        command.env_clear().env("RUST_BACKTRACE", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        // SAFETY: what is called touches no memory of the parent and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                setrlimit(Resource::RLIMIT_NOFILE, DAEMON_FDS, DAEMON_FDS).map_err(Into::into)
            });
        }
        let mut child = command.spawn().expect("start fdbrokerd");
        let mut ready = child.stdout.take().expect("the readiness pipe");
        if read_to_end(&mut ready).as_deref() != Some("READY\n") {
            let log = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
            let _ = child.kill();
            panic!("fdbrokerd was not ready; its log:\n{log}");
        }
        place(child.id(), cpus);
        let admin = Admin::connect(&dir.path().join("fdbroker-admin/admin.sock"));
        Daemon { dir, child, admin }
    }

    /// Puts each thread of the daemon on its processor, those too that have started since.
    pub fn place(&self, cpus: [usize; 2]) {
        place(self.child.id(), cpus);
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir().join("fdbroker/broker.sock")
    }

    fn proc(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.child.id()).into()
    }

    pub fn counts(&self) -> Counts {
        let NodeStatus { uses, gauges, .. } = self.admin.status();
        Counts {
            open_fds: std::fs::read_dir(self.proc("fd")).map_or(0, Iterator::count),
            uses: ByResource { table_places: 0, ..uses.map(|it| it.now.get()) },
            closing: gauges.closing_fds.get(),
        }
    }

    /// What has happened since its start.
    pub fn counters(&self) -> ByCounter<u64> {
        self.admin.status().counters.map(|it| it.get())
    }

    /// Resident memory without files and shared pages, in KiB.
    pub fn memory_kib(&self) -> i64 {
        let status = std::fs::read_to_string(self.proc("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        line.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
    }

    /// Processor time of its loop so far.
    pub fn busy(&self) -> Duration {
        let stat = std::fs::read_to_string(self.proc(&format!("task/{}/stat", self.child.id())))
            .unwrap_or_default();
        let behind_name = stat.rsplit(')').next().unwrap_or_default();
        // utime and stime are fields 14 and 15 of proc_pid_stat(5), in hundredths of a second on
        // all of Linux.
        let ticks: u64 =
            behind_name.split_whitespace().skip(11).take(2).flat_map(str::parse::<u64>).sum();
        Duration::from_millis(ticks * 10)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// What it said last.
    pub fn end_of_log(&self) -> String {
        let log = self.log();
        let begin = log.lines().count().saturating_sub(LOG_LINES_SHOWN);
        log.lines().skip(begin).map(|line| format!("    {line}\n")).collect()
    }

    /// Ends it by closing its input; or what was wrong. Its log must have no panic, nor anything of
    /// the level "error".
    pub fn end(mut self) -> Result<Work, Vec<String>> {
        drop(self.child.stdin.take());
        let until = Instant::now() + PATIENCE;
        let ended = loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => break Ok(()),
                Ok(Some(status)) => break Err(format!("fdbrokerd ended with {status}")),
                _ if Instant::now() > until => break Err("fdbrokerd does not end".into()),
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let log = self.log();
        let is_bad =
            |line: &&str| line.starts_with("fdbrokerd: error: ") || line.contains("panicked");
        let mut complaints: Vec<String> = log.lines().filter(is_bad).map(str::to_owned).collect();
        complaints.extend(ended.err());
        match Work::parse(&log) {
            Some(work) if complaints.is_empty() => Ok(work),
            None if complaints.is_empty() => {
                Err(vec!["the log does not say how much work there was".into()])
            }
            _ => Err(complaints),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir().join("log")).unwrap_or_default();
            eprintln!("log of the daemon, whose end was {:?}:\n{log}", self.child.try_wait());
        }
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Puts each thread of the daemon on its processor.
fn place(pid: u32, cpus: [usize; 2]) {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("/proc");
    let number =
        |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    for thread in threads.filter_map(number) {
        let is_loop = thread == i32::try_from(pid).expect("a pid");
        pin_thread(Pid::from_raw(thread), if is_loop { cpus[0] } else { cpus[1] });
        if is_loop {
            Rank::Serving.take(Pid::from_raw(thread));
        }
    }
}

/// The program; a copy in `dir` if another user must be able to reach it.
fn program(dir: &Path) -> PathBuf {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_fdbrokerd"));
    if !are_many() {
        return built;
    }
    let copy = dir.join("fdbrokerd");
    let copied = Command::new("cp").arg(built).arg(&copy).status();
    assert!(copied.expect("run cp").success());
    std::fs::set_permissions(&copy, Permissions::from_mode(0o755)).expect("chmod");
    copy
}
