//! The arguments of `fdbroker evict` and their help. Must never do anything.

use crate::subject::Subject;

const HELP: &str = "\
Leases and handles stay good: the next acquire asks the owner for the fd again. What the owner cannot give again
(resident, kept), what is being asked for, and what belongs to an owner that does not answer stays, and is named.

Examples:
  fdbroker evict 12.3               this allocation of `fdbroker ls`
  fdbroker evict pid:4711 pid:4712  all that these processes own
  fdbroker evict --job slurm:81     all that this job owns
  fdbroker evict --all --dry-run    what could be closed now, and what not, and why

Of several, those that are there are evicted, whether or not the others are. Where there is none at all, nothing is printed
but why.

Exit status: 4 when there is none of one that was named; else 1 when an allocation that was named by itself stays.";

/// Have the broker close fds that it can get again when they are needed
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// A handle (128 hex digits), SLOT.GENERATION as `ls` shows it, or pid:N, uid:N or job:NAME of the owner
    #[arg(value_name = "WHAT", required_unless_present_any = ["all", "jobs"])]
    pub subjects: Vec<Subject>,
    /// All of a job, by its name as `jobs` shows it; the same as WHAT job:NAME
    #[arg(long = "job", value_name = "NAME")]
    pub jobs: Vec<String>,
    /// Every allocation
    #[arg(long, conflicts_with_all = ["subjects", "jobs"])]
    pub all: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
