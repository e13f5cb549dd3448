//! Which job a client is of: from the names of its cgroups, that launchers and container runtimes choose. Must never
//! be taken for a boundary between users: a user may place its own processes, its domain's caps hold in any case.

use crate::limits::{CGROUP_BYTES_AT_ONCE, CGROUP_FILE_BYTES};
use fdbroker_core::JobKey;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::io::Read;

/// The job of a process; `None` when its cgroups cannot be read: it is in another PID namespace, or gone.
pub fn of_process(pid: u32) -> Option<JobKey> {
    if pid == 0 {
        return None;
    }
    let file = std::fs::File::open(format!("/proc/{pid}/cgroup")).ok()?;
    let mut bytes = Vec::with_capacity(CGROUP_BYTES_AT_ONCE);
    file.take(CGROUP_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    name(std::str::from_utf8(&bytes).ok()?).map(key)
}

/// The same number for the same name, in every version of the broker: saved state goes by it.
fn key(name: &str) -> JobKey {
    let mut hasher = SipHasher24::new();
    hasher.write(name.as_bytes());
    JobKey(hasher.finish())
}

/// What of `/proc/PID/cgroup` (cgroups(7): lines of `hierarchy:controllers:path`) names the job: the path down to the
/// part of a launcher that is known, else the whole path of the unified hierarchy, else the longest path.
pub fn name(text: &str) -> Option<&str> {
    let lines = || text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let known = lines().find_map(|(_, path)| known_part(path));
    let unified = || {
        let line = text.lines().find_map(|line| line.strip_prefix("0::"));
        line.filter(|path| !path.is_empty())
    };
    let longest = || {
        let paths = lines().map(|(_, path)| path).filter(|path| !path.is_empty());
        paths.reduce(|longest, path| if path.len() > longest.len() { path } else { longest })
    };
    known.or_else(unified).or_else(longest)
}

/// The path down to the job of a launcher:
/// - Slurm: `/system.slice/[NODE_]slurmstepd.scope/job_N/...` (v2), `/slurm[_NODE]/uid_N/job_N/...` (v1)
/// - PBS: `.../pbs_jobs.service/jobid/ID/...` (v1), `.../pbs_jobs.service/jobs/ID/...` (v2)
/// - Kubernetes: `.../kubepods-QOS-podUID.slice/...` (systemd), `/kubepods/QOS/podUID/...` (cgroupfs)
fn known_part(path: &str) -> Option<&str> {
    let (mut in_slurm, mut in_kubepods) = (false, false);
    // How many of the parts that begin a PBS job have just been passed.
    let mut in_pbs = 0;
    let mut end = 0;
    for part in path.split('/') {
        end += part.len();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_slurm_job = in_slurm && part.strip_prefix("job_").is_some_and(is_number);
        let is_pbs_job = in_pbs == 2 && !part.is_empty();
        let uid = pod_of_slice(part).strip_prefix("pod");
        let is_pod = (in_kubepods || part.starts_with("kubepods"))
            && uid.is_some_and(|uid| uid.starts_with(|c: char| c.is_ascii_hexdigit()));
        if is_slurm_job || is_pbs_job || is_pod {
            return Some(&path[..end]);
        }
        in_slurm |= part.ends_with("slurmstepd.scope") || is_slurm_root(part);
        in_kubepods |= part.starts_with("kubepods");
        in_pbs = match (in_pbs, part) {
            (_, "pbs_jobs.service") => 1,
            (1, "jobid" | "jobs") => 2,
            _ => 0,
        };
        end += 1;
    }
    None
}

/// `kubepods-QOS-podUID.slice`: the part from `pod` on; UIDs have `_` for `-` there.
fn pod_of_slice(part: &str) -> &str {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    name.find("-pod").map_or(part, |at| &name[at + 1..])
}

fn is_slurm_root(part: &str) -> bool {
    part == "slurm" || part.starts_with("slurm_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_when_a_launcher_is_known_then_the_path_down_to_its_job() {
        let pod = "pod1f3a8e0c_5a0b_4a55_9d0c_0c3b6d7e8f90";
        let table = [
            (
                "0::/system.slice/slurmstepd.scope/job_81/step_0/user/task_3",
                "/system.slice/slurmstepd.scope/job_81",
            ),
            (
                "0::/system.slice/n7_slurmstepd.scope/job_81/step_batch/user/task_0",
                "/system.slice/n7_slurmstepd.scope/job_81",
            ),
            (
                "4:devices:/slurm/uid_1000/job_81/step_0/task_1\n0::/init.scope",
                "/slurm/uid_1000/job_81",
            ),
            ("4:memory:/slurm_n7/uid_1000/job_81/step_0", "/slurm_n7/uid_1000/job_81"),
            (
                "9:cpuset:/pbs_jobs.service/jobid/12.server/extra",
                "/pbs_jobs.service/jobid/12.server",
            ),
            (
                "0::/system.slice/pbs_jobs.service/jobs/12.server",
                "/system.slice/pbs_jobs.service/jobs/12.server",
            ),
            ("0::/kubepods/burstable/pod1f3a-8e0c/0123abcd", "/kubepods/burstable/pod1f3a-8e0c"),
        ];
        for (text, expected) in table {
            assert_eq!(name(text), Some(expected), "{text}");
        }
        let slice =
            format!("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-{pod}.slice");
        let text = format!("0::{slice}/cri-containerd-0123abcd.scope");
        assert_eq!(name(&text), Some(slice.as_str()));
        let guaranteed = format!("/kubepods.slice/kubepods-{pod}.slice");
        let text = format!("0::{guaranteed}/crio-0123.scope\n");
        assert_eq!(name(&text), Some(guaranteed.as_str()));
    }

    #[test]
    fn name_when_no_launcher_is_known_then_the_whole_path() {
        let table = [
            (
                "0::/user.slice/user-1000.slice/session-3.scope\n",
                "/user.slice/user-1000.slice/session-3.scope",
            ),
            (
                "12:pids:/user.slice\n1:name=systemd:/user.slice/user-1000.slice\n",
                "/user.slice/user-1000.slice",
            ),
            ("1:name=systemd:/a\n0::/b\n", "/b"),
            ("0::/\n", "/"),
            // A colon in a name, and what only looks like a launcher's.
            ("0::/a:b/c", "/a:b/c"),
            ("0::/home/job_7/x", "/home/job_7/x"),
            ("0::/system.slice/slurmstepd.scope/job_x/y", "/system.slice/slurmstepd.scope/job_x/y"),
            ("0::/x/pbs_jobs.service/other/jobid/3/4", "/x/pbs_jobs.service/other/jobid/3/4"),
            ("0::/a/podman/pod7", "/a/podman/pod7"),
        ];
        for (text, expected) in table {
            assert_eq!(name(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn name_when_there_is_nothing_to_read_then_none() {
        for text in ["", "\n", "nonsense", "0::"] {
            assert_eq!(name(text), None, "{text:?}");
        }
    }

    #[test]
    fn of_process_when_it_is_this_one_then_its_cgroup_and_when_there_is_none_then_none() {
        let text = std::fs::read_to_string("/proc/self/cgroup").expect("of this process");
        assert_eq!(of_process(std::process::id()), name(&text).map(key));
        assert_eq!(of_process(0), None);
    }

    #[test]
    fn key_when_the_same_name_then_the_same_number_for_ever() {
        assert_eq!(key("/slurm/uid_1000/job_81"), key("/slurm/uid_1000/job_81"));
        assert_ne!(key("/slurm/uid_1000/job_81"), key("/slurm/uid_1000/job_82"));
    }
}
