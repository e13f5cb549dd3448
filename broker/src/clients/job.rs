//! Which job a client is of: from the cgroups of its process. Must never take the job from anything
//! that the client says.

use crate::clients::schedulers::job_cgroup;
use crate::fds::jobs::Process;
use crate::kernel::Start;
use fdbroker_core::{JobKey, JobName};
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// What the broker asks about the process of a client, of its /proc/PID/cgroup, if that could be
/// read, and its /proc/PID/stat. A lane reads them: before Linux 6.8 the first one waits for the
/// mutex of all cgroups, and the second may have to free the memory of a process that dies just
/// then.
pub fn process(cgroup: Option<&[u8]>, stat: &[u8]) -> Process {
    let start = Start::parse(stat).unwrap_or_default();
    Process { job: cgroup.and_then(of_text), start, ..Process::default() }
}

/// The job in the text of /proc/PID/cgroup.
pub fn of_text(cgroup: &[u8]) -> Option<(JobKey, JobName)> {
    let cgroup = job_cgroup(std::str::from_utf8(cgroup).ok()?)?;
    Some((key(cgroup.path), cgroup.name))
}

/// The same number for the same path, in every version of the broker: saved state goes by it.
fn key(path: &str) -> JobKey {
    let mut hasher = SipHasher24::new();
    hasher.write(path.as_bytes());
    JobKey(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_when_its_files_are_there_then_job_and_start_and_when_there_are_none_then_nothing() {
        let text = std::fs::read_to_string("/proc/self/cgroup").expect("of this process");
        let stat = std::fs::read("/proc/self/stat").expect("of this process");
        let expected = job_cgroup(&text).map(|cgroup| (key(cgroup.path), cgroup.name));
        let found = process(Some(text.as_bytes()), &stat);
        assert_eq!((found.job, Some(found.start)), (expected, Start::of(std::process::id())));
        assert_eq!(process(None, b""), Process::default());
    }

    #[test]
    fn key_when_the_same_path_then_the_same_number_for_ever() {
        assert_eq!(key("/slurm/uid_1000/job_81"), key("/slurm/uid_1000/job_81"));
        assert_ne!(key("/slurm/uid_1000/job_81"), key("/slurm/uid_1000/job_82"));
    }
}
