//! The arguments of `fdbroker drain` and their help. Must never do anything.

const HELP: &str = "\
From now on, clients that connect cannot register allocations (SHUTTING_DOWN); clients that are connected already can. The
broker closes every fd that it can get again, and keeps asking its clients to give back the leases that they do not use.
Leases in use stay until their processes end or give them back. A broker that takes over, as at an upgrade or a restart of
the service, continues the drain; one that starts anew does not.

The command waits until the broker holds no fd and no client has a lease. Ctrl-C ends the waiting, not the drain.

Examples:
  fdbroker drain --dry-run          what is left, and who has it
  fdbroker drain --wait 600         after 600 s: exit status 1, and a list of who has what
  fdbroker drain --wait 0           begin the drain, and list who has what
  fdbroker drain --undo             accept new allocations again";

/// Empty the broker before maintenance, and wait until it is empty
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Longest time to wait [default: until nothing is held]
    #[arg(long, value_name = "SECONDS")]
    pub wait: Option<u64>,
    /// Print what is left, and change nothing
    #[arg(long, conflicts_with_all = ["wait", "undo"])]
    pub dry_run: bool,
    /// End the drain
    #[arg(long, conflicts_with = "wait")]
    pub undo: bool,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
