//! Which job this process belongs to: a name that every process of the job on this node finds by itself, and no
//! other job finds. Must never depend on what may differ between the ranks of one job.

use crate::error::{Context, Error, Result};
use nix::unistd::{Uid, getppid};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::ffi::OsString;
use std::fmt;
use std::hash::Hasher;

/// What launchers tell the processes of a job, the same to each of them and to no other job: Open MPI 4 and 5, PRRTE
/// and `srun --mpi=pmix`; Open MPI 4 alone; PMI-2 under Slurm; Slurm; Flux; HPE Cray's PALS and ALPS.
/// `PBS_JOBID` and the like are not here: they name an allocation, in which many jobs run.
const LAUNCHERS_IDS: [&[&str]; 7] = [
    &["PMIX_NAMESPACE"],
    &["OMPI_MCA_ess_base_jobid"],
    &["PMI_JOBID"],
    &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    &["FLUX_JOB_ID"],
    &["PALS_APID"],
    &["ALPS_APP_ID"],
];

/// Names (`comm`, 15 bytes) of the process that starts all ranks of a job on a node. Exact names: a script of the
/// user's called `mpirun_wrapper` runs once for each rank.
const LAUNCHERS: [&str; 19] = [
    "hydra_pmi_proxy",
    "pmi_proxy",
    "slurmstepd",
    "orted",
    "orterun",
    "prted",
    "prte",
    "prterun",
    "mpirun",
    "mpirun.openmpi",
    "mpirun.mpich",
    "mpirun.hydra",
    "mpiexec",
    "mpiexec.openmpi",
    "mpiexec.mpich",
    "mpiexec.hydra",
    "mpispawn",
    "flux-shell",
    "palsd",
];

/// How far up a launcher is looked for: wrappers of wrappers are a few, so this only bounds the loop.
const MAX_ANCESTORS: usize = 64;

/// How many hexadecimal digits of a directory's name tell the boot, and how many the job. Together they leave room
/// for the sockets' names in the 108 bytes of a socket's path.
const BOOT_DIGITS: usize = 6;
const JOB_DIGITS: usize = 12;

/// What tells a job from every other one on this node, as names and values.
#[derive(Debug, PartialEq, Eq)]
pub struct Job(Vec<(String, String)>);

impl Job {
    /// The job of this process: `given` by the user, else found.
    ///
    /// All that is found is used, not the first of it: ids in the environment may be inherited from an outer job
    /// (`mpirun` in a step of Slurm), and one launcher's process may serve several jobs (PRRTE's DVM).
    pub fn find(given: Option<&str>) -> Result<Self> {
        if let Some(name) = given {
            return Ok(Job(vec![("--job".into(), name.into())]));
        }
        let parent = getppid().as_raw();
        match found(|name| std::env::var_os(name), parent, Process::read) {
            parts if parts.is_empty() => Err(Error::Other(format!(
                "cannot tell which job this is: no launcher has named it, and the parent process ({parent}) is out of sight; name it yourself, the same for all of its processes: fdbroker run --join --job NAME -- CMD"
            ))),
            mut parts => {
                if parts.iter().any(|(name, _)| name == "process") {
                    // A pid says which process only within its namespace.
                    parts.push(("pid namespace".into(), namespace()?));
                }
                Ok(Job(parts))
            }
        }
    }

    /// The name of its directory on this node, in this boot.
    pub fn directory_name(&self) -> Result<String> {
        Ok(self.name_in(&boot_id()?, Uid::effective()))
    }

    fn name_in(&self, boot_id: &str, uid: Uid) -> String {
        // The whole boot id, as /tmp may be one for many nodes: its digits in the name are too few for that.
        let mut texts = vec![boot_id.to_owned(), uid.to_string()];
        texts.extend(self.0.iter().flat_map(|(name, value)| [name.clone(), value.clone()]));
        let job = digits(&texts, JOB_DIGITS);
        format!("{}{job}", boot_prefix(boot_id))
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<_> = self.0.iter().map(|(name, value)| format!("{name} {value}")).collect();
        f.write_str(&parts.join(", "))
    }
}

/// How the names of all jobs' directories begin on this node, in this boot.
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

/// Keys are zero: the name must be the same in every process, and guessing it gives nobody access.
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

/// What identifies a process, and leads to its parent.
#[derive(Clone, Debug)]
struct Process {
    name: String,
    parent: i32,
    /// Ticks since boot: tells two processes of one pid apart.
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
        // Field 3 is the first of these: the parent is field 4, the start field 22.
        let mut fields = tail.split_ascii_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let started = fields.nth(17)?.parse().ok()?;
        Some(Process { name: name.into(), parent, started })
    }
}

fn found(
    variable: impl Fn(&str) -> Option<OsString>,
    parent: i32,
    process: impl Fn(i32) -> Option<Process>,
) -> Vec<(String, String)> {
    let mut parts = Vec::new();
    for group in LAUNCHERS_IDS {
        let value = |name: &&str| {
            let value = variable(name).filter(|value| !value.is_empty())?;
            Some(((*name).to_owned(), value.to_string_lossy().into_owned()))
        };
        // Half of a pair names nothing: a batch script of Slurm has no step.
        let values: Option<Vec<_>> = group.iter().map(value).collect();
        parts.extend(values.into_iter().flatten());
    }
    let launcher = launcher_above(parent, &process);
    let fallback = || process(parent).map(|it| (parent, it));
    if let Some((pid, it)) = launcher.or_else(|| parts.is_empty().then(fallback).flatten()) {
        parts.push(("process".into(), format!("{pid} ({}) started {}", it.name, it.started)));
    }
    parts
}

/// The nearest launcher among the ancestors: with a shell in between, the ranks' parents differ.
fn launcher_above(
    parent: i32,
    process: &impl Fn(i32) -> Option<Process>,
) -> Option<(i32, Process)> {
    let mut pid = parent;
    for _ in 0..MAX_ANCESTORS {
        let it = process(pid)?;
        if LAUNCHERS.contains(&it.name.as_str()) {
            return Some((pid, it));
        }
        pid = it.parent;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pids from 10 on; each one's parent is the next.
    fn parts(environment: &[(&str, &str)], names: &[&str]) -> Vec<(String, String)> {
        let variable = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
        };
        found(variable, 10, |pid| {
            let index = usize::try_from(pid - 10).ok()?;
            let name = (*names.get(index)?).to_owned();
            Some(Process { name, parent: pid + 1, started: 7 })
        })
    }

    fn process_of(parts: &[(String, String)]) -> Option<&str> {
        parts.iter().find(|(name, _)| name == "process").map(|(_, value)| value.as_str())
    }

    #[test]
    fn found_when_nothing_names_the_job_then_the_parent_is_it() {
        assert_eq!(process_of(&parts(&[], &["bash", "sshd"])), Some("10 (bash) started 7"));
        assert!(parts(&[], &[]).is_empty());
    }

    #[test]
    fn found_when_a_shell_is_between_then_the_launcher_is_it() {
        let found = parts(&[], &["sh", "mpirun_wrapper.", "hydra_pmi_proxy", "mpirun"]);
        assert_eq!(process_of(&found), Some("12 (hydra_pmi_proxy) started 7"));
    }

    #[test]
    fn found_when_a_launcher_gave_an_id_then_parents_do_not_count() {
        let slurm = [("SLURM_JOB_ID", "5"), ("SLURM_STEP_ID", "0")];
        let (a, b) = (parts(&slurm, &["sh"]), parts(&slurm, &["bash", "login"]));
        assert_eq!(a, b);
        assert_eq!(process_of(&a), None);
        assert_ne!(a, parts(&[("SLURM_JOB_ID", "5"), ("SLURM_STEP_ID", "1")], &["sh"]));
    }

    #[test]
    fn found_when_an_id_is_of_an_outer_job_then_the_inner_launcher_counts_too() {
        let slurm = [("SLURM_JOB_ID", "5"), ("SLURM_STEP_ID", "0")];
        let found = parts(&slurm, &["hydra_pmi_proxy", "mpirun", "bash", "slurmstepd"]);
        assert_eq!(process_of(&found), Some("10 (hydra_pmi_proxy) started 7"));
    }

    #[test]
    fn found_when_half_an_id_or_an_allocations_then_not_used() {
        let found =
            parts(&[("SLURM_JOB_ID", "5"), ("PBS_JOBID", "6"), ("PMIX_NAMESPACE", "")], &[]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn found_when_ancestors_never_end_then_it_does() {
        let loops = |_: i32| Some(Process { name: "sh".into(), parent: 10, started: 7 });
        assert_eq!(found(|_| None, 10, loops).len(), 1);
    }

    #[test]
    fn name_in_when_anything_differs_then_another_name() {
        let job = |name: &str| Job(vec![("--job".into(), name.into())]);
        let name = job("a").name_in("boot", Uid::from_raw(1));
        assert_eq!(name, job("a").name_in("boot", Uid::from_raw(1)));
        assert_eq!(name.len(), "job-".len() + BOOT_DIGITS + 1 + JOB_DIGITS);
        assert!(name.starts_with(&boot_prefix("boot")));
        for other in [
            job("b").name_in("boot", Uid::from_raw(1)),
            job("a").name_in("boot", Uid::from_raw(2)),
            job("a").name_in("toob", Uid::from_raw(1)),
        ] {
            assert_ne!(name, other);
            assert!(name[name.len() - JOB_DIGITS..] != other[other.len() - JOB_DIGITS..]);
        }
    }

    #[test]
    fn parse_when_the_name_is_hostile_then_read_right() {
        let tail = "S 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 2222 23";
        let it = Process::parse(&format!("3 (a) S 9 (b) {tail}")).expect("a process");
        assert_eq!((it.name.as_str(), it.parent, it.started), ("a) S 9 (b", 4, 2222));
        let own = Process::read(std::process::id().cast_signed()).expect("this process");
        assert_eq!(own.parent, getppid().as_raw());
        assert!(own.started > 0);
    }
}
