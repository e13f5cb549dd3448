//! Which job a client is of: from the cgroups of its process. Must never take the job from anything that the client says.

use crate::clients::schedulers::job_cgroup;
use crate::fds::jobs::Process;
use crate::kernel;
use crate::limits::{CGROUP_BYTES_AT_ONCE, CGROUP_FILE_BYTES};
use fdbroker_core::{JobKey, JobName};
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::io::Read;

/// What the broker asks about the process of a client. Only in a lane: before Linux 6.8 a read of /proc/PID/cgroup waits for the
/// mutex of all cgroups, and a read of /proc/PID/stat may have to free the memory of a process that dies just then.
pub fn process(pid: u32) -> Process {
    Process { job: of_process(pid), start: kernel::Start::of(pid).unwrap_or_default() }
}

/// The job of a process; `None` when its cgroups cannot be read: it is in another PID namespace, or gone.
pub fn of_process(pid: u32) -> Option<(JobKey, JobName)> {
    if pid == 0 {
        return None;
    }
    let file = std::fs::File::open(format!("/proc/{pid}/cgroup")).ok()?;
    let mut bytes = Vec::with_capacity(CGROUP_BYTES_AT_ONCE);
    file.take(CGROUP_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    let cgroup = job_cgroup(std::str::from_utf8(&bytes).ok()?)?;
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
    fn of_process_when_it_is_this_one_then_its_cgroup_and_when_there_is_none_then_none() {
        let text = std::fs::read_to_string("/proc/self/cgroup").expect("of this process");
        let expected = job_cgroup(&text).map(|cgroup| (key(cgroup.path), cgroup.name));
        assert_eq!(of_process(std::process::id()), expected);
        assert_eq!(of_process(0), None);
    }

    #[test]
    fn key_when_the_same_path_then_the_same_number_for_ever() {
        assert_eq!(key("/slurm/uid_1000/job_81"), key("/slurm/uid_1000/job_81"));
        assert_ne!(key("/slurm/uid_1000/job_81"), key("/slurm/uid_1000/job_82"));
    }
}
