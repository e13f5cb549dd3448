//! The arguments of `fdbroker evict` and their help. Must never do anything.

use crate::subject::Subject;

const HELP: &str = "\
Leases and handles stay good: the next acquire asks the owner for the fd again. An allocation stays in the broker, and is
listed, if its owner cannot give the fd again (resident or kept memory), if a client is asking for it, or if its owner does
not answer.

Examples:
  fdbroker evict 12.3               the allocation 12.3 of `fdbroker ls`
  fdbroker evict pid:4711 pid:4712  everything that these processes own
  fdbroker evict --job slurm:81     everything that this job owns
  fdbroker evict --all --dry-run    what could be closed now, what could not, and why

With several arguments, each one that names an allocation is evicted, and the others are reported. If no argument names
an allocation, nothing is done.

Exit status: 4 if an argument names no allocation; else 1 if an allocation that was named by its handle or id stays.";

/// Close fds that the broker can get again when they are needed
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// A handle (128 hex digits), SLOT.GENERATION or a virtual fd as `ls` shows them, or pid:N,
    /// uid:N or job:NAME of the owner
    #[arg(value_name = "WHAT", required_unless_present_any = ["all", "jobs"])]
    pub subjects: Vec<Subject>,
    /// Everything that a job owns, by the name in `fdbroker jobs`; the same as WHAT job:NAME
    #[arg(long = "job", value_name = "NAME")]
    pub jobs: Vec<String>,
    /// Every allocation
    #[arg(long, conflicts_with_all = ["subjects", "jobs"])]
    pub all: bool,
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
