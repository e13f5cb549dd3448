//! The command lines of evict, revoke, drain and watch: names, defaults and help. Must never do anything.

use crate::holders::Subject;
use clap::Args;

/// Of its help.
pub const EVICT_EXAMPLES: &str = "\
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

/// Arguments of `evict`.
#[derive(Debug, Args)]
pub struct EvictArgs {
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

impl From<EvictArgs> for crate::evict::Options {
    fn from(args: EvictArgs) -> Self {
        let EvictArgs { subjects, jobs, dry_run, json, .. } = args;
        let subjects = with_jobs(subjects, jobs);
        crate::evict::Options { subjects, dry_run, json }
    }
}

fn with_jobs(mut subjects: Vec<Subject>, jobs: Vec<String>) -> Vec<Subject> {
    subjects.extend(jobs.into_iter().map(Subject::Job));
    subjects
}

/// Of its help.
pub const REVOKE_EXAMPLES: &str = "\
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

/// Arguments of `revoke`.
#[derive(Debug, Args)]
pub struct RevokeArgs {
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

impl From<RevokeArgs> for crate::revoke::Options {
    fn from(args: RevokeArgs) -> Self {
        let RevokeArgs { subjects, jobs, dry_run, yes, json } = args;
        let subjects = with_jobs(subjects, jobs);
        crate::revoke::Options { subjects, dry_run, yes, json }
    }
}

/// Of its help.
pub const DRAIN_EXAMPLES: &str = "\
From now on clients that connect may not register allocations (SHUTTING_DOWN); those that are there go on. The broker
closes every fd that it can get again, and asks for all leases that are not in use, again and again. What is in use
stays until its processes end or give it back. A restart or takeover of the broker goes on with the drain; a crash
ends it.

The command waits until nothing is held: no fd in the broker, no lease. Ctrl-C ends the waiting, not the drain.

Examples:
  fdbroker drain --dry-run          what there is, and who has it
  fdbroker drain --wait 600         exit status 1 and who is left, if it takes longer
  fdbroker drain --wait 0           begin it, and say who has something
  fdbroker drain --undo             take new allocations again";

/// Arguments of `drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Longest time to wait [default: until nothing is held]
    #[arg(long, value_name = "SECONDS")]
    pub wait: Option<u64>,
    /// Say what there is, and change nothing
    #[arg(long, conflicts_with_all = ["wait", "undo"])]
    pub dry_run: bool,
    /// End the drain
    #[arg(long, conflicts_with = "wait")]
    pub undo: bool,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}

impl From<DrainArgs> for crate::drain::Options {
    fn from(args: DrainArgs) -> Self {
        let DrainArgs { wait, dry_run, undo, json } = args;
        let wait = wait.map(std::time::Duration::from_secs);
        crate::drain::Options { wait, dry_run, undo, json }
    }
}

/// Of its help.
pub const WATCH_EXAMPLES: &str = "\
Events: connected, gone (a client); deposit, grant, evict, recall, silent (a recall is not answered in time), end (of an
allocation, with why); refusal (with the cap that is full); drain, undrain, caps (of the node); lost (events that this
command was too slow for, and how many). Times are UTC.

When the broker ends, one in its place - after an upgrade or a restart - is waited for, for 10 s, and watched from then on. A
line on stderr says so; with --json it is an object in its place among the events:
  {\"time_seconds\":...,\"event\":\"reconnected\",\"broker_pid\":...,\"incarnation\":...,\"continued\":...,\"gap_seconds\":...}
What happened in the gap_seconds before is not told. `continued`: the ledger of the former one goes on; else it is a new one,
to which clients come back by themselves. A job of --filter is meant as it was at the start. time_seconds, of every object,
counts from 1970 (UTC).

A service that was stopped is not started for it, where the file `generations` beside the socket can be read, as root and the
broker's own user can.

Examples:
  fdbroker watch
  fdbroker watch --filter pid:4711
  fdbroker watch --json | jq -c 'select(.event == \"refusal\")'

Exit status: 0 after Ctrl-C, 3 when the broker has ended and none has come in its place.";
