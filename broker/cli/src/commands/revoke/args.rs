//! The arguments of `fdbroker revoke` and their help. Must never do anything.

use crate::subject::Subject;

const HELP: &str = "\
Nobody gets an fd of it any more: its handle says STALE. Holders are told, and the owner is when the last of them has
given it back. A duplicate that was handed out already cannot be taken back: the memory stays until its holder closes
it, or ends. Who that is, is printed.

Examples:
  fdbroker revoke 12.3 --dry-run    who would be hit
  fdbroker revoke pid:4711          all that this process owns; asks first
  fdbroker revoke --job slurm:81    all that this job owns, and what it has left that is kept
  fdbroker revoke uid:1000 --yes    does not ask, as scripts must

Of several, those that are there are revoked, whether or not the others are. Where there is none at all, nothing is printed
but why.

Exit status 4: there is none of one that was named.";

/// End allocations for everybody, and say who has duplicates of their fds still
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// A handle (128 hex digits), SLOT.GENERATION as `ls` shows it, or pid:N, uid:N or job:NAME of the owner
    #[arg(value_name = "WHAT", required_unless_present = "jobs")]
    pub subjects: Vec<Subject>,
    /// All of a job, by its name as `jobs` shows it; the same as WHAT job:NAME
    #[arg(long = "job", value_name = "NAME")]
    pub jobs: Vec<String>,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask; needed when stdin is no terminal
    #[arg(short, long)]
    pub yes: bool,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
