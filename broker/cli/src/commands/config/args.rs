//! The arguments of `fdbroker config` and their help. Must never do anything.

use clap::Subcommand;
use std::path::PathBuf;

const HELP: &str = "\
Both commands show what a daemon started here would use: with this environment, by this user, and with the limits of this
shell (RLIMIT_NOFILE). They ask no running broker: `fdbroker limits` shows the caps of a broker that runs.

Examples:
  fdbroker config check /etc/fdbroker/fdbrokerd.toml
  fdbroker config show
  fdbroker config show --json | jq '.settings[] | select(.from == \"file\")'

Exit status 1: the daemon would not start; stderr says why.";

/// Check the configuration that a daemon started here would use, or show it with the origin of each
/// value
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    pub action: Action,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Check whether the daemon would start with this file, and print what is wrong if not. Changes
    /// nothing: a missing directory is reported, not created
    #[command(after_long_help = HELP)]
    Check {
        /// Default, as for the daemon: FDBROKER_CONFIG or /etc/fdbroker/fdbrokerd.toml if it exists
        file: Option<PathBuf>,
    },
    /// Print every setting that a daemon started here would use, as a configuration file, with its
    /// origin: environment, file, default, or the limit that bounds it
    #[command(after_long_help = HELP)]
    Show {
        /// Default, as for the daemon: FDBROKER_CONFIG or /etc/fdbroker/fdbrokerd.toml if it exists
        file: Option<PathBuf>,
        /// One line of JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
}
