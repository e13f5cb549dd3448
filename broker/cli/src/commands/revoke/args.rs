//! The arguments of `fdbroker revoke` and their help. Must never do anything.

use crate::subject::Subject;

const HELP: &str = "\
Nobody gets an fd of the allocation any more, and its handle is STALE. The holders are told. The owner is told when the
last holder has given the allocation back. Duplicates that holders have already cannot be taken back: the memory stays until
every holder has closed it or has ended. The command prints these holders.

Examples:
  fdbroker revoke 12.3 --dry-run    who holds it
  fdbroker revoke pid:4711          everything that this process owns; asks first
  fdbroker revoke --job slurm:81    everything that this job owns, and kept memory that it has left
  fdbroker revoke uid:1000 --yes    does not ask; for scripts

A job's named objects with keep or pin outlive it: --job and job:NAME leave them and list them, unless the broker's configuration has
`end_with_job = true`. By 12.3, pid:N and uid:N they end as everything else does.

With several arguments, each one that names an allocation is revoked, and the others are reported. If no argument names
an allocation, nothing is done.

Exit status 4: an argument names no allocation.";

/// End allocations for everybody, and list the processes that still have duplicates of their fds
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// A handle (128 hex digits), SLOT.GENERATION or a virtual fd as `ls` shows them, or pid:N,
    /// uid:N or job:NAME of the owner
    #[arg(value_name = "WHAT", required_unless_present = "jobs")]
    pub subjects: Vec<Subject>,
    /// Everything that a job owns, by the name in `fdbroker jobs`; the same as WHAT job:NAME
    #[arg(long = "job", value_name = "NAME")]
    pub jobs: Vec<String>,
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask; required when stdin is not a terminal
    #[arg(short, long)]
    pub yes: bool,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
