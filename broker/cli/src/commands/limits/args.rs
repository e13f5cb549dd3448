//! The arguments of `fdbroker limits` and their help. Must never do anything.

use super::cap::Assignment;
use clap::Subcommand;

const HELP: &str = "\
A domain is a user on one listener; a job is a part of it (see `fdbroker jobs`); a client is one connection. A lowered cap
takes nothing away by force: what is above it is evicted or asked for, and nothing is added until it is below.

A change with `set` is in force at once, is logged with who made it, and is lost when the broker restarts or reads its
configuration again. To keep it, write it into [caps.SCOPE] of the configuration. Only root and the broker's user may.

Examples:
  fdbroker limits
  fdbroker limits set node.fds=4096 job.held_bytes=8Gi
  fdbroker limits set --dry-run client.open_leases=none";

/// Show the caps of every level, or change one at run time
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    pub action: Option<Action>,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}

/// What to do with caps.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Change caps until the broker restarts or reads its configuration again
    #[command(after_long_help = HELP)]
    Set(SetArgs),
}

/// Arguments of `limits set`.
#[derive(Debug, clap::Args)]
pub struct SetArgs {
    /// node, domain, job or client; fds, held_fds, held_bytes, open_leases, mapped_leases, allocations or
    /// kept_allocations; a number, also with K, M, G, T, Ki, Mi, Gi or Ti, or none
    #[arg(required = true, value_name = "SCOPE.RESOURCE=VALUE")]
    pub assignments: Vec<Assignment>,
    /// Only say what would change
    #[arg(long)]
    pub dry_run: bool,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
