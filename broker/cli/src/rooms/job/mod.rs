//! Which job this process belongs to. Every process of a job on this node finds the same name by
//! itself, and processes of other jobs find other names. Must never depend on anything that differs
//! between the ranks of a job.

use crate::error::{Context, Error, Result};
use fdbrokerd::schedulers::{Ids, is_launcher};
use nix::unistd::{Uid, getppid};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::fmt;
use std::hash::Hasher;

/// How many ancestors are searched for a launcher. Real jobs have a few wrappers, so this only
/// bounds the loop.
const MAX_ANCESTORS: usize = 64;

/// Hexadecimal digits of a directory's name that identify the boot and the job. They are few, so
/// that the names of the sockets fit in the 108 bytes of a socket's path.
const BOOT_DIGITS: usize = 6;
const JOB_DIGITS: usize = 12;

/// The job of this process.
#[derive(Debug, PartialEq, Eq)]
pub struct Job {
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
            return Ok(Job { parts: vec![("--job".into(), name.into())], allocation: Vec::new() });
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
        Ok(Job { parts, allocation: ids.allocation })
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
        format!("{}{job}", boot_prefix(boot_id))
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |name: &str, value: &str| format!("{name} {}", value.escape_debug());
        let parts: Vec<_> = self.parts.iter().map(|(name, value)| said(name, value)).collect();
        f.write_str(&parts.join(", "))?;
        self.allocation.iter().try_for_each(|(name, id)| write!(f, ", within {}", said(name, id)))
    }
}

/// Start of the names of all jobs' directories on this node, in this boot.
pub fn directory_prefix() -> Result<String> {
    Ok(boot_prefix(&boot_id()?))
}

fn boot_prefix(boot_id: &str) -> String {
    format!("job-{}-", digits(&[boot_id.to_owned()], BOOT_DIGITS))
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
