//! The arguments of `fdbroker jobs` and their help. Must never do anything.

use crate::table::{self, ListArgs};

const EXAMPLES: &str = "\
A job is a cgroup that a scheduler made: slurm:ID, flux:ID, pbs:ID, or k8s: and the UID of a pod. A cgroup that no known
scheduler made is unit:NAME, by the nearest service or scope of systemd, else job:KEY. PALS makes no cgroups: its
processes belong to the PBS job, or to unit:palsd.service. Processes whose cgroup the broker cannot read, such as those
of other PID namespaces, belong to no job.

Examples:
  fdbroker jobs --sort FDS:desc
  fdbroker clients --filter 'JOB == slurm:4711'
  fdbroker ls -o +JOB";

/// List the jobs that use the broker, and what each is charged for
#[derive(Debug, clap::Args)]
#[command(after_long_help = table::after_help(EXAMPLES))]
pub struct Args {
    #[command(flatten)]
    pub list: ListArgs,
}
