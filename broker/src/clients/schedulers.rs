//! The schedulers and launchers whose jobs the broker can name: what their cgroups, variables and
//! processes look like. Text in, job out: must never read a file, a variable or a process itself. A
//! name is no boundary between users: a user may place its own processes in any cgroup of its own;
//! the caps of its domain hold in any case.

use fdbroker_core::JobName;

/// What one scheduler or launcher shows of its jobs.
struct Scheduler {
    /// Begins the names of its jobs, as in `slurm:81`; empty where no cgroup tells a job.
    name: &'static str,
    /// Finds the id of a job in a cgroup's path. Given are three parts of the path that follow each
    /// other; the last one is the job's own.
    cgroup: fn([&str; 3]) -> Option<String>,
    /// Variables that together name one job: the same for all its processes, and different in any
    /// other job.
    job: &'static [&'static str],
    /// Variables that name an allocation, in which many jobs may run.
    allocation: &'static [&'static str],
    /// Names (`comm`, 15 bytes) of the process that starts all ranks of a job on a node. Exact
    /// names: a user's script called `mpirun_wrapper` runs once for each rank.
    processes: &'static [&'static str],
}

const NOTHING: Scheduler =
    Scheduler { name: "", cgroup: |_| None, job: &[], allocation: &[], processes: &[] };

/// The order counts: `fdbroker run --join` makes the name of a job's directory from all ids, in
/// this order.
const SCHEDULERS: [Scheduler; 11] = [
    // PMIx: Open MPI 4 and 5, PRRTE, `srun --mpi=pmix`, PALS with `PALS_PMI=pmix`.
    Scheduler { job: &["PMIX_NAMESPACE"], processes: &["prted", "prte", "prterun"], ..NOTHING },
    // Open MPI 4 and its alternatives-system names on Debian; `mpirun` and `mpiexec` are MPICH's
    // too.
    Scheduler {
        job: &["OMPI_MCA_ess_base_jobid"],
        processes: &["orted", "orterun", "mpirun", "mpirun.openmpi", "mpiexec", "mpiexec.openmpi"],
        ..NOTHING
    },
    // PMI-2 under Slurm, and PALS.
    Scheduler { job: &["PMI_JOBID"], ..NOTHING },
    // Hydra gives its ranks no id.
    Scheduler {
        processes: &[
            "hydra_pmi_proxy",
            "pmi_proxy",
            "mpirun.mpich",
            "mpirun.hydra",
            "mpiexec.mpich",
            "mpiexec.hydra",
        ],
        ..NOTHING
    },
    Scheduler { processes: &["mpispawn"], ..NOTHING },
    // A batch script has no step: it is no MPI job.
    Scheduler {
        name: "slurm",
        cgroup: slurm,
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        processes: &["slurmstepd"],
        ..NOTHING
    },
    Scheduler {
        name: "flux",
        cgroup: flux,
        job: &["FLUX_JOB_ID"],
        processes: &["flux-shell"],
        ..NOTHING
    },
    // HPE Cray's PALS (its pals.h: PALS_APID_ENV) makes no cgroup for an application. Its ranks run
    // in the cgroup of the PBS job, or in palsd.service, so that `jobs` shows `pbs:ID` or
    // `unit:palsd.service`. Flux and Slurm set PALS_APID for Cray's MPI, too: to their own id of
    // the job.
    Scheduler { job: &["PALS_APID"], processes: &["palsd"], ..NOTHING },
    Scheduler { job: &["ALPS_APP_ID"], ..NOTHING },
    Scheduler { name: "pbs", cgroup: pbs, allocation: &["PBS_JOBID"], ..NOTHING },
    Scheduler { name: "k8s", cgroup: kubernetes, ..NOTHING },
];

/// Slurm's cgroup plugins: `/system.slice/[NODE_]slurmstepd.scope/job_N/...` (v2),
/// `/slurm[_NODE]/uid_N/job_N/...` (v1).
fn slurm([above, parent, part]: [&str; 3]) -> Option<String> {
    let id = part.strip_prefix("job_")?;
    let is_v1 = (above == "slurm" || above.starts_with("slurm_")) && parent.starts_with("uid_");
    let is_job = (is_v1 || parent.ends_with("slurmstepd.scope")) && is_number(id);
    is_job.then(|| id.to_owned())
}

/// flux-core, src/common/libsubprocess/bulk-exec.c: the unit `shell-RANK-fID.service`, or
/// `imp-shell-...` for a job of another user than Flux's own, with ID in base 58. Only with
/// `exec.service = "sdexec"` (flux-config-exec(5)); else all jobs are in the unit of Flux itself.
/// The jobs of an instance inside a job are in the outer job's cgroup.
fn flux([_, _, part]: [&str; 3]) -> Option<String> {
    /// Digits in base 58 of the largest id, of 64 bits.
    const MOST_DIGITS: usize = 11;
    let unit = part.strip_suffix(".service")?;
    let (rank, id) =
        unit.strip_prefix("imp-").unwrap_or(unit).strip_prefix("shell-")?.split_once('-')?;
    let digits = id.strip_prefix('f')?;
    let is_digit = |c: char| c.is_ascii_alphanumeric() && !"0OIl".contains(c);
    let is_id = (1..=MOST_DIGITS).contains(&digits.len()) && digits.chars().all(is_digit);
    (is_number(rank) && is_id).then(|| id.to_owned())
}

/// OpenPBS, src/hooks/cgroups/pbs_cgroups.PY: `.../pbs_jobs.service/jobid/ID/...` (v1) and
/// `.../jobs/ID/...` (v2). PBS Pro of HPE Cray systems such as ALCF's Polaris: `/jobs/N`.
fn pbs([above, parent, part]: [&str; 3]) -> Option<String> {
    let is_job = match above {
        "pbs_jobs.service" => matches!(parent, "jobid" | "jobs") && !part.is_empty(),
        "" => parent == "jobs" && is_number(part),
        _ => false,
    };
    is_job.then(|| part.to_owned())
}

/// kubelet: `.../kubepods[-QOS]-podUID.slice/...` (systemd), `/kubepods[/QOS]/podUID/...`
/// (cgroupfs). A broker that is in a pod itself, in a cgroup namespace of its own, sees the cgroups
/// of other pods from there: `/../../podUID/...`, `/../../../QOS/podUID/...`.
fn kubernetes([above, parent, part]: [&str; 3]) -> Option<String> {
    let uid = match part.strip_suffix(".slice") {
        Some(slice) if slice.contains("kubepods-") => slice.split_once("-pod")?.1,
        None if ["kubepods", ".."].iter().any(|it| [above, parent].contains(it)) => {
            part.strip_prefix("pod")?
        }
        _ => return None,
    };
    // The names of slices cannot have the dashes of a UID.
    uid.starts_with(|c: char| c.is_ascii_hexdigit()).then(|| uid.replace('_', "-"))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The cgroup that is a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cgroup<'a> {
    /// Identifies the job to the broker.
    pub path: &'a str,
    /// Names the job to people: by its scheduler, else by the nearest unit of systemd, else not at
    /// all.
    pub name: JobName,
}

/// The job in the text of `/proc/PID/cgroup` (cgroups(7): lines of `hierarchy:controllers:path`):
/// the path down to the job of a known scheduler, else the whole path of the unified hierarchy,
/// else the longest path.
pub fn job_cgroup(text: &str) -> Option<Cgroup<'_>> {
    let paths = || text.lines().filter_map(|line| Some(line.split_once(':')?.1.split_once(':')?.1));
    let unified = || text.lines().find_map(|line| line.strip_prefix("0::"));
    let longest = || paths().reduce(|best, path| if path.len() > best.len() { path } else { best });
    paths().find_map(scheduled).or_else(|| {
        let path = unified().filter(|path| !path.is_empty()).or_else(longest)?;
        (!path.is_empty()).then(|| Cgroup { path, name: unit_name(path) })
    })
}

/// The name of the job in the text of `/proc/PID/cgroup`.
pub fn job_name(text: &str) -> Option<String> {
    let name = job_cgroup(text)?.name;
    (name != JobName::NONE).then(|| name.as_str().to_owned())
}

fn scheduled(path: &str) -> Option<Cgroup<'_>> {
    let mut last = [""; 3];
    let mut end = 0;
    for part in path.split('/') {
        end += part.len();
        last = [last[1], last[2], part];
        let name =
            SCHEDULERS.iter().find_map(|it| Some(format!("{}:{}", it.name, (it.cgroup)(last)?)));
        if let Some(name) = name {
            return Some(Cgroup { path: &path[..end], name: JobName::new(&name) });
        }
        end += 1;
    }
    None
}

/// Whether a text begins like the name of a job: `slurm:`, `unit:` and so on.
pub fn is_job_name(text: &str) -> bool {
    let is_known = |kind: &str| kind == UNIT || SCHEDULERS.iter().any(|it| it.name == kind);
    text.split_once(':').is_some_and(|(kind, _)| !kind.is_empty() && is_known(kind))
}

/// Begins the names of jobs that only a unit of systemd names.
const UNIT: &str = "unit";

fn unit_name(path: &str) -> JobName {
    let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
    let unit = path.rsplit('/').find(is_unit);
    unit.map_or(JobName::NONE, |unit| JobName::new(&format!("{UNIT}:{unit}")))
}

/// What the environment says of the job that a process is in: names and values of variables.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// Together they name the job. All that is found, since some may be inherited from an outer job
    /// (`mpirun` in a step of Slurm).
    pub job: Vec<(&'static str, String)>,
    /// The allocations that the job is in: `jobs` may show one of them in its place.
    pub allocation: Vec<(&'static str, String)>,
}

impl Ids {
    /// Looks up each variable of each scheduler. An empty one counts as unset; half of a pair names
    /// nothing.
    pub fn find(variable: impl Fn(&str) -> Option<String>) -> Self {
        let value = |name: &&'static str| {
            variable(name).filter(|value| !value.is_empty()).map(|value| (*name, value))
        };
        let values = |names: &'static [&'static str]| -> Vec<_> {
            names.iter().map(value).collect::<Option<_>>().unwrap_or_default()
        };
        Ids {
            job: SCHEDULERS.iter().flat_map(|it| values(it.job)).collect(),
            allocation: SCHEDULERS.iter().flat_map(|it| values(it.allocation)).collect(),
        }
    }
}

/// What the environment says of the scheduler's job that a process is in, of whatever part of it:
/// at the end of that part the scheduler ends all its processes.
pub fn scheduler_ids(variable: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, String)> {
    let schedulers = SCHEDULERS.iter().filter(|it| !it.name.is_empty());
    let names = schedulers.flat_map(|it| it.job.iter().chain(it.allocation));
    let value = |name: &&'static str| Some((*name, variable(name).filter(|it| !it.is_empty())?));
    names.filter_map(value).collect()
}

/// Whether a process of this name (`comm`) starts all ranks of a job on a node.
pub fn is_launcher(process: &str) -> bool {
    SCHEDULERS.iter().any(|it| it.processes.contains(&process))
}

#[cfg(test)]
#[path = "../../tests/unit/schedulers.rs"]
mod tests;
