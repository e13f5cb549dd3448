//! Which job a client is of: from the names of its cgroups, that launchers and container runtimes choose. Must never
//! be taken for a boundary between users: a user may place its own processes, its domain's caps hold in any case.

use crate::limits::{CGROUP_BYTES_AT_ONCE, CGROUP_FILE_BYTES};
use fdbroker_core::{JobKey, JobName};
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::io::Read;

/// The job of a process; `None` when its cgroups cannot be read: it is in another PID namespace, or gone.
pub fn of_process(pid: u32) -> Option<(JobKey, JobName)> {
    if pid == 0 {
        return None;
    }
    let file = std::fs::File::open(format!("/proc/{pid}/cgroup")).ok()?;
    let mut bytes = Vec::with_capacity(CGROUP_BYTES_AT_ONCE);
    file.take(CGROUP_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    let cgroup = find(std::str::from_utf8(&bytes).ok()?)?;
    Some((key(cgroup.path), cgroup.name()))
}

/// The same number for the same path, in every version of the broker: saved state goes by it.
fn key(path: &str) -> JobKey {
    let mut hasher = SipHasher24::new();
    hasher.write(path.as_bytes());
    JobKey(hasher.finish())
}

/// The name of a process's job, from the text of its `/proc/PID/cgroup`; `None` when nothing there names one.
pub fn name_in(text: &str) -> Option<String> {
    let name = find(text)?.name();
    (name != JobName::NONE).then(|| name.as_str().to_owned())
}

/// The cgroup that is a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cgroup<'a> {
    /// Names the job to the broker.
    pub path: &'a str,
    /// The launcher that made it, if that is known, and the launcher's id of the job.
    launcher: Option<(&'static str, &'a str)>,
}

impl Cgroup<'_> {
    /// Names the job to people: by its launcher, else by the nearest unit of systemd.
    pub fn name(&self) -> JobName {
        let unit = || {
            let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
            self.path.rsplit('/').find(is_unit)
        };
        match self.launcher {
            // The names of slices cannot have the dashes of a UID.
            Some((K8S, uid)) => JobName::new(&format!("{K8S}{}", uid.replace('_', "-"))),
            Some((launcher, id)) => JobName::new(&format!("{launcher}{id}")),
            None => unit().map_or(JobName::NONE, |unit| JobName::new(&format!("unit:{unit}"))),
        }
    }
}

const SLURM: &str = "slurm:";
const PBS: &str = "pbs:";
const K8S: &str = "k8s:";

/// What of `/proc/PID/cgroup` (cgroups(7): lines of `hierarchy:controllers:path`) is the job: the path down to the
/// part of a launcher that is known, else the whole path of the unified hierarchy, else the longest path.
pub(crate) fn find(text: &str) -> Option<Cgroup<'_>> {
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
    known.or_else(|| unified().or_else(longest).map(|path| Cgroup { path, launcher: None }))
}

/// The path down to the job of a launcher:
/// - Slurm: `/system.slice/[NODE_]slurmstepd.scope/job_N/...` (v2), `/slurm[_NODE]/uid_N/job_N/...` (v1)
/// - PBS: `.../pbs_jobs.service/jobid/ID/...` (v1), `.../pbs_jobs.service/jobs/ID/...` (v2)
/// - Kubernetes: `.../kubepods-QOS-podUID.slice/...` (systemd), `/kubepods/QOS/podUID/...` (cgroupfs)
fn known_part(path: &str) -> Option<Cgroup<'_>> {
    let (mut in_slurm, mut in_kubepods) = (false, false);
    // How many of the parts that begin a PBS job have just been passed.
    let mut in_pbs = 0;
    let mut end = 0;
    for part in path.split('/') {
        end += part.len();
        let is_number = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_uid = |uid: &&str| uid.starts_with(|c: char| c.is_ascii_hexdigit());
        let slurm = part.strip_prefix("job_").filter(is_number).filter(|_| in_slurm);
        let pbs = Some(part).filter(|id| in_pbs == 2 && !id.is_empty());
        let pod = pod_of_slice(part).strip_prefix("pod").filter(is_uid);
        let pod = pod.filter(|_| in_kubepods || part.starts_with("kubepods"));
        let found = [(SLURM, slurm), (PBS, pbs), (K8S, pod)];
        let found = found.into_iter().find_map(|(launcher, id)| Some((launcher, id?)));
        if found.is_some() {
            return Some(Cgroup { path: &path[..end], launcher: found });
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
    use fdbroker_protocol::limits::JOB_NAME_BYTES;

    fn path_and_name(text: &str) -> Option<(&str, String)> {
        let cgroup = find(text)?;
        Some((cgroup.path, cgroup.name().as_str().to_owned()))
    }

    fn expect(text: &str, path: &str, name: &str) {
        assert_eq!(path_and_name(text), Some((path, name.to_owned())), "{text}");
    }

    #[test]
    fn find_when_a_launcher_is_known_then_the_path_down_to_its_job_and_its_id() {
        let table = [
            (
                "0::/system.slice/slurmstepd.scope/job_81/step_0/user/task_3",
                "/system.slice/slurmstepd.scope/job_81",
                "slurm:81",
            ),
            (
                "0::/system.slice/n7_slurmstepd.scope/job_81/step_batch/user/task_0",
                "/system.slice/n7_slurmstepd.scope/job_81",
                "slurm:81",
            ),
            (
                "4:devices:/slurm/uid_1000/job_81/step_0/task_1\n0::/init.scope",
                "/slurm/uid_1000/job_81",
                "slurm:81",
            ),
            ("4:memory:/slurm_n7/uid_1000/job_81/step_0", "/slurm_n7/uid_1000/job_81", "slurm:81"),
            (
                "9:cpuset:/pbs_jobs.service/jobid/12.server/extra",
                "/pbs_jobs.service/jobid/12.server",
                "pbs:12.server",
            ),
            (
                "0::/system.slice/pbs_jobs.service/jobs/12.server",
                "/system.slice/pbs_jobs.service/jobs/12.server",
                "pbs:12.server",
            ),
            (
                "0::/kubepods/burstable/pod1f3a-8e0c/0123abcd",
                "/kubepods/burstable/pod1f3a-8e0c",
                "k8s:1f3a-8e0c",
            ),
            (
                "11:memory:/kubepods/besteffort/pod1f3a-8e0c/0123abcd\n1:name=systemd:/",
                "/kubepods/besteffort/pod1f3a-8e0c",
                "k8s:1f3a-8e0c",
            ),
        ];
        for (text, path, name) in table {
            expect(text, path, name);
        }
        let pod = "pod1f3a8e0c_5a0b_4a55_9d0c_0c3b6d7e8f90";
        let name = "k8s:1f3a8e0c-5a0b-4a55-9d0c-0c3b6d7e8f90";
        let slice =
            format!("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-{pod}.slice");
        expect(&format!("0::{slice}/cri-containerd-0123abcd.scope"), &slice, name);
        let guaranteed = format!("/kubepods.slice/kubepods-{pod}.slice");
        expect(&format!("0::{guaranteed}/crio-0123.scope\n"), &guaranteed, name);
    }

    #[test]
    fn find_when_no_launcher_is_known_then_the_whole_path_and_the_nearest_unit() {
        let session = "/user.slice/user-1000.slice/session-3.scope";
        let service = "/user.slice/user-1000.slice/user@1000.service";
        let app = format!("{service}/app.slice/app-x.scope/inner");
        let table = [
            (format!("0::{session}\n"), session, "unit:session-3.scope"),
            (format!("0::{service}/init"), &format!("{service}/init"), "unit:user@1000.service"),
            (format!("0::{app}"), &app, "unit:app-x.scope"),
            (format!("1:name=systemd:{session}"), session, "unit:session-3.scope"),
            (
                "12:pids:/user.slice\n1:name=systemd:/user.slice/user-1000.slice\n".into(),
                "/user.slice/user-1000.slice",
                "",
            ),
            ("1:name=systemd:/a\n0::/b\n".into(), "/b", ""),
            ("0::/\n".into(), "/", ""),
            // A colon in a name, and what only looks like a launcher's.
            ("0::/a:b/c".into(), "/a:b/c", ""),
            ("0::/home/job_7/x".into(), "/home/job_7/x", ""),
            (
                "0::/system.slice/slurmstepd.scope/job_x/y".into(),
                "/system.slice/slurmstepd.scope/job_x/y",
                "unit:slurmstepd.scope",
            ),
            (
                "0::/x/pbs_jobs.service/other/jobid/3/4".into(),
                "/x/pbs_jobs.service/other/jobid/3/4",
                "unit:pbs_jobs.service",
            ),
            ("0::/a/podman/pod7".into(), "/a/podman/pod7", ""),
        ];
        for (text, path, name) in table {
            expect(&text, path, name);
        }
    }

    #[test]
    fn name_when_too_long_or_not_printable_then_cut_and_a_question_mark() {
        let unit = format!("docker-{}.scope", "0123456789abcdef".repeat(4));
        let name = find(&format!("0::/system.slice/{unit}")).expect("a path").name();
        assert_eq!(name.as_str(), &format!("unit:{unit}")[..JOB_NAME_BYTES]);
        let name = find("0::/a\u{1b}[2Jb\u{e4}.scope").expect("a path").name();
        assert_eq!(name.as_str(), "unit:a?[2Jb??.scope");
        assert_eq!(JobName::new(name.as_str()), name);
    }

    #[test]
    fn find_when_there_is_nothing_to_read_then_none() {
        for text in ["", "\n", "nonsense", "0::"] {
            assert_eq!(find(text), None, "{text:?}");
        }
    }

    #[test]
    fn of_process_when_it_is_this_one_then_its_cgroup_and_when_there_is_none_then_none() {
        let text = std::fs::read_to_string("/proc/self/cgroup").expect("of this process");
        let expected = find(&text).map(|cgroup| (key(cgroup.path), cgroup.name()));
        assert_eq!(of_process(std::process::id()), expected);
        assert_eq!(of_process(0), None);
    }

    #[test]
    fn key_when_the_same_path_then_the_same_number_for_ever() {
        assert_eq!(key("/slurm/uid_1000/job_81"), key("/slurm/uid_1000/job_81"));
        assert_ne!(key("/slurm/uid_1000/job_81"), key("/slurm/uid_1000/job_82"));
    }
}
