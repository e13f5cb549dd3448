//! Subjects of commands: a handle, an allocation, a process, a user or a job. Must never treat a
//! subject that does not exist like one that holds nothing.

pub mod handle;
pub mod of_user;
#[cfg(test)]
mod tests;

use crate::admin::{Admin, Selection};
use crate::error::{Error, Result};
use crate::records;
use fdbroker_protocol::admin::{AccountRecord, AllocationRecord, ClientRecord, LeaseRecord};
use fdbroker_protocol::handle::HANDLE_BYTES;
use fdbroker_protocol::{AllocationId, Handle, VirtualFd};
use fdbrokerd::schedulers::is_job_name;
use nix::unistd::User;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A subject as the user named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Handle(Handle),
    Allocation(AllocationId),
    /// An allocation, by the fd number that its owner passes.
    VirtualFd(VirtualFd),
    /// A process, by its pid.
    Pid(u32),
    /// All processes of a user.
    Uid(u32),
    /// All processes of a job, by the name in `fdbroker jobs`.
    Job(String),
}

/// Before the name or key of a job.
const JOB_PREFIX: &str = "job:";

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = |text: &str| {
            text.parse().map_err(|_| format!("`{text}` is no number from 0 to {}", u32::MAX))
        };
        if let Some(pid) = text.strip_prefix("pid:") {
            return number(pid).map(Subject::Pid);
        }
        if let Some(uid) = text.strip_prefix("uid:") {
            let named = || User::from_name(uid).ok().flatten().map(|user| user.uid.as_raw());
            return number(uid).or_else(|why| named().ok_or(why)).map(Subject::Uid);
        }
        if is_job_name(text) || text.starts_with(JOB_PREFIX) {
            return Ok(Subject::Job(text.to_owned()));
        }
        if text.len() == 2 * HANDLE_BYTES {
            return text.parse().map(Subject::Handle);
        }
        if let Some(fd) = text.parse().ok().and_then(VirtualFd::new) {
            return Ok(Subject::VirtualFd(fd));
        }
        if text.parse::<u32>().is_ok() {
            return Err(format!(
                "`{text}` may be a process or a user: write pid:{text} or uid:{text}"
            ));
        }
        text.parse().map(Subject::Allocation).map_err(|_| {
            format!("`{text}` is none of: a handle (128 hex digits), SLOT.GENERATION such as 12.3, a virtual fd (from 2^30), pid:N, uid:N, job:NAME")
        })
    }
}

/// Adds jobs, by their names, to `subjects`.
pub fn with_jobs(mut subjects: Vec<Subject>, jobs: Vec<String>) -> Vec<Subject> {
    subjects.extend(jobs.into_iter().map(Subject::Job));
    subjects
}

impl fmt::Display for Subject {
    /// As messages name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Handle(handle) => handle.id().fmt(f),
            Subject::Allocation(id) => id.fmt(f),
            Subject::VirtualFd(fd) => write!(f, "with the virtual fd {fd}"),
            Subject::Pid(pid) => write!(f, "process {pid}"),
            Subject::Uid(uid) => write!(f, "user {uid}"),
            Subject::Job(name) => write!(f, "job {name}"),
        }
    }
}

impl Subject {
    /// It is a single allocation.
    pub fn is_allocation(&self) -> bool {
        matches!(self, Subject::Handle(_) | Subject::Allocation(_) | Subject::VirtualFd(_))
    }

    /// The selection of the subject. Only handles, virtual fds and jobs are looked up at the
    /// broker.
    pub fn selection(&self, admin: &mut Admin) -> Result<Selection> {
        match self {
            Subject::Handle(handle) => Ok(Selection::allocation(handle::id(handle, admin)?)),
            Subject::Allocation(id) => Ok(Selection::allocation(*id)),
            Subject::VirtualFd(fd) => numbered(*fd, admin),
            Subject::Pid(pid) => Ok(Selection::pid(*pid)),
            Subject::Uid(uid) => Ok(Selection::uid(*uid)),
            Subject::Job(name) => job(name, admin),
        }
    }

    /// The selections of the subject: several if several jobs have the name.
    pub fn selections(&self, admin: &mut Admin) -> Result<Vec<Selection>> {
        match self {
            Subject::Job(name) => {
                Ok(known_keys(name, admin)?.into_iter().map(Selection::job).collect())
            }
            subject => Ok(vec![subject.selection(admin)?]),
        }
    }

    /// The selection of a subject that exists.
    pub fn known(&self, admin: &mut Admin) -> Result<Selection> {
        let selection = self.selection(admin)?;
        let is_known = match self {
            Subject::Job(_) => true,
            // Of memory of another user a user may see the leases alone.
            _ if self.is_allocation() => {
                !admin.all::<AllocationRecord>(selection)?.is_empty()
                    || !admin.all::<LeaseRecord>(selection)?.is_empty()
            }
            _ => !admin.all::<ClientRecord>(selection)?.is_empty(),
        };
        match self {
            _ if is_known => Ok(selection),
            _ if self.is_allocation() => Err(no_allocation(self)),
            _ => Err(Error::NotFound(format!(
                "{self} is no client of this broker; `fdbroker holders` lists all"
            ))),
        }
    }
}

/// The error for an allocation that does not exist.
pub fn no_allocation(name: impl fmt::Display) -> Error {
    Error::NotFound(format!(
        "no allocation {name}: it has ended, or never was; `fdbroker ls` lists all allocations"
    ))
}

/// The selection of the allocation that has this virtual fd. Only the broker can tell its slot from
/// the number.
fn numbered(fd: VirtualFd, admin: &mut Admin) -> Result<Selection> {
    let number = fd.number().cast_unsigned();
    let all = admin.all::<AllocationRecord>(Selection::ALL)?;
    let found = all.iter().find(|record| record.virtual_fd.get() == number);
    let found = found.ok_or_else(|| no_allocation(Subject::VirtualFd(fd)))?;
    Ok(Selection::allocation(AllocationId {
        slot: found.slot.get(),
        generation: found.generation.get(),
    }))
}

/// Keys of the jobs with this name, which may begin with `job:` and may be a key itself. There is
/// nearly always one key, the same on all listeners. But long names are cut, and a user can give a
/// cgroup the name of another user's job.
fn keys_of(name: &str, jobs: &[AccountRecord]) -> BTreeSet<u64> {
    let bare = name.strip_prefix(JOB_PREFIX).unwrap_or(name);
    let is_meant = |job: &&AccountRecord| {
        let Some(label) = records::job_label(job.key, &job.name) else { return false };
        label == name || label == bare || name == format!("{JOB_PREFIX}{:016x}", job.key.get())
    };
    jobs.iter().filter(is_meant).map(|job| job.key.get()).collect()
}

/// Keys of the jobs with this name that use the broker, at least one.
fn known_keys(name: &str, admin: &mut Admin) -> Result<BTreeSet<u64>> {
    let keys = keys_of(name, &admin.all::<AccountRecord>(Selection::ALL)?);
    if keys.is_empty() {
        Err(Error::NotFound(format!(
            "no job {name} uses this broker; `fdbroker jobs` lists those that do"
        )))
    } else {
        Ok(keys)
    }
}

/// The selection of the only job with this name.
fn job(name: &str, admin: &mut Admin) -> Result<Selection> {
    let keys = known_keys(name, admin)?;
    if let (Some(key), 1) = (keys.first(), keys.len()) {
        return Ok(Selection::job(*key));
    }
    let named: Vec<String> = keys.iter().map(|key| format!("{JOB_PREFIX}{key:016x}")).collect();
    Err(Error::Usage(format!(
        "{} jobs are called {name}; name one by its key: {}",
        keys.len(),
        named.join(", ")
    )))
}
