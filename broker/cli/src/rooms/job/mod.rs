//! Which job this process belongs to. Every process of a job on this node finds the same name by
//! itself, and processes of other jobs find other names. Must never depend on anything that differs
//! between the ranks of a job.

use crate::error::{Context, Error, Result};
use fdbrokerd::schedulers::{Ids, is_launcher, scheduler_ids};
use nix::unistd::{Uid, getppid};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::ffi::OsString;
use std::fmt;
use std::hash::Hasher;
use std::path::Path;

/// How many ancestors are searched for a launcher. Real jobs have a few wrappers, so this only
/// bounds the loop.
const MAX_ANCESTORS: usize = 64;

/// Hexadecimal digits of a directory's name that identify the boot and the job. They are few, so
/// that the names of the sockets fit in the 108 bytes of a socket's path.
const BOOT_DIGITS: usize = 6;
const JOB_DIGITS: usize = 12;

/// Who starts the broker of a job: a rank of `run --join`, or a program that asks the library for
/// that. It begins the name of the job's directory, so that the two never meet.
const JOINED: &str = "job";
const STARTED: &str = "own";

/// The job of this process.
#[derive(Debug, PartialEq, Eq)]
pub struct Job {
    /// One of [`JOINED`] and [`STARTED`].
    kind: &'static str,
    /// Tells the job from every other one on this node, as names and values.
    parts: Vec<(String, String)>,
    /// The allocations that the job runs in. They tell no job from another; `fdbroker jobs` shows
    /// them.
    allocation: Vec<(&'static str, String)>,
}

impl Job {
    /// The job of this process: `given` by the user, else found.
    ///
    /// Everything that is found counts, not only the first id: ids in the environment may be
    /// inherited from an outer job (`mpirun` in a step of Slurm), and one launcher's process may
    /// serve several jobs (PRRTE's DVM).
    pub fn find(given: Option<&str>) -> Result<Self> {
        if let Some(name) = given {
            let parts = vec![("--job".into(), name.into())];
            return Ok(Job { kind: JOINED, parts, allocation: Vec::new() });
        }
        let parent = getppid().as_raw();
        let ids = Ids::find(|name| Some(std::env::var_os(name)?.to_string_lossy().into_owned()));
        let mut parts = parts(ids.job, parent, Process::read);
        if parts.is_empty() {
            return Err(Error::Other(format!(
                "cannot tell which job this is: no launcher has named it, and the parent process ({parent}) cannot be seen; give all processes of the job the same name: fdbroker run --join --job NAME -- CMD"
            )));
        }
        if parts.iter().any(|(name, _)| name == "process") {
            // A pid identifies a process only within its namespace.
            parts.push(("pid namespace".into(), namespace()?));
        }
        Ok(Job { kind: JOINED, parts, allocation: ids.allocation })
    }

    /// What processes that start their broker themselves have in common: the scheduler's job and
    /// step, at whose end it kills the broker, too; else the user.
    pub fn of_started(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let parts = scheduler_ids(|name| Some(variable(name)?.to_string_lossy().into_owned()));
        let parts = parts.into_iter().map(|(name, id)| (name.to_owned(), id)).collect();
        Job { kind: STARTED, parts, allocation: Vec::new() }
    }

    /// Whether a scheduler ends it.
    pub fn is_scheduled(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Whether programs start its broker by themselves.
    pub fn is_started(&self) -> bool {
        self.kind == STARTED
    }

    /// Name of the job's directory on this node, in this boot.
    pub fn directory_name(&self) -> Result<String> {
        Ok(self.name_in(&boot_id()?, Uid::effective()))
    }

    fn name_in(&self, boot_id: &str, uid: Uid) -> String {
        // The whole boot id counts, since many nodes may share one /tmp: the digits of it in the
        // name are too few.
        let mut texts = vec![boot_id.to_owned(), uid.to_string()];
        texts.extend(self.parts.iter().flat_map(|(name, value)| [name.clone(), value.clone()]));
        let job = digits(&texts, JOB_DIGITS);
        format!("{}{job}", boot_prefix(self.kind, boot_id))
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |name: &str, value: &str| format!("{name} {}", value.escape_debug());
        let parts: Vec<_> = self.parts.iter().map(|(name, value)| said(name, value)).collect();
        let all = if parts.is_empty() { "the user's".into() } else { parts.join(", ") };
        f.write_str(&all)?;
        self.allocation.iter().try_for_each(|(name, id)| write!(f, ", within {}", said(name, id)))
    }
}

/// Starts of the names of all jobs' directories on this node, in this boot.
pub fn directory_prefixes() -> Result<[String; 2]> {
    let boot_id = boot_id()?;
    Ok([JOINED, STARTED].map(|kind| boot_prefix(kind, &boot_id)))
}

/// Whether this is the name of a directory of processes that start their broker themselves.
pub fn is_of_started(directory: &Path) -> bool {
    let name = directory.file_name().map(|name| name.to_string_lossy());
    name.is_some_and(|name| name.starts_with(&format!("{STARTED}-")))
}

fn boot_prefix(kind: &str, boot_id: &str) -> String {
    format!("{kind}-{}-", digits(&[boot_id.to_owned()], BOOT_DIGITS))
}

fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).context(|| format!("read {path}"))?;
    Ok(text.trim().to_owned())
}

fn namespace() -> Result<String> {
    let path = "/proc/self/ns/pid";
    let link = std::fs::read_link(path).context(|| format!("read {path}"))?;
    Ok(link.to_string_lossy().into_owned())
}

/// A hash with the key zero: every process must get the same name, and guessing a name gives no
/// access.
fn digits(texts: &[String], count: usize) -> String {
    let mut hasher = SipHasher24::new();
    for text in texts {
        hasher.write_usize(text.len());
        hasher.write(text.as_bytes());
    }
    let mut text = format!("{:032x}", hasher.finish128().as_u128());
    text.truncate(count);
    text
}

/// A process, as /proc shows it.
#[derive(Clone, Debug)]
struct Process {
    name: String,
    parent: i32,
    /// Ticks since boot. Tells two processes apart that had the same pid one after the other.
    started: u64,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// proc_pid_stat(5). The name may itself hold spaces and parentheses.
    fn parse(stat: &str) -> Option<Self> {
        let (head, tail) = stat.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        // `tail` begins with field 3. The parent is field 4, the start is field 22.
        let mut fields = tail.split_ascii_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let started = fields.nth(17)?.parse().ok()?;
        Some(Process { name: name.into(), parent, started })
    }
}

/// The ids that launchers gave, and the launcher's process: an id may be inherited from an outer
/// job. The parent counts only where nothing else tells the job.
fn parts(
    ids: Vec<(&str, String)>,
    parent: i32,
    process: impl Fn(i32) -> Option<Process>,
) -> Vec<(String, String)> {
    let mut parts: Vec<_> = ids.into_iter().map(|(name, id)| (name.to_owned(), id)).collect();
    let launcher = launcher_above(parent, &process);
    let fallback = || process(parent).map(|it| (parent, it));
    if let Some((pid, it)) = launcher.or_else(|| parts.is_empty().then(fallback).flatten()) {
        parts.push(("process".into(), format!("{pid} ({}) started {}", it.name, it.started)));
    }
    parts
}

/// The nearest launcher among the ancestors. It need not be the parent: each rank may have a shell
/// of its own.
fn launcher_above(
    parent: i32,
    process: &impl Fn(i32) -> Option<Process>,
) -> Option<(i32, Process)> {
    let mut pid = parent;
    for _ in 0..MAX_ANCESTORS {
        let it = process(pid)?;
        if is_launcher(&it.name) {
            return Some((pid, it));
        }
        pid = it.parent;
    }
    None
}

#[cfg(test)]
mod tests;
