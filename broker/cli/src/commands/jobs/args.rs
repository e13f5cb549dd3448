//! The arguments of `fdbroker jobs` and their help. Must never do anything.

use crate::table::{self, ListArgs};

const EXAMPLES: &str = "\
A job is the cgroup that its launcher made: slurm:ID, pbs:ID, k8s:UID of the pod; else unit:NAME of the nearest service
or scope of systemd; job:KEY where the cgroup says none of these. Processes whose cgroup the broker cannot read, such as
those of other PID namespaces, are of no job.

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
