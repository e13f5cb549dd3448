//! The arguments of `fdbroker drain` and their help. Must never do anything.

const HELP: &str = "\
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

/// Empty the broker before maintenance, and wait until it is empty
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
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
