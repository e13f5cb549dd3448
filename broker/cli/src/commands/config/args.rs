//! The arguments of `fdbroker config` and their help. Must never do anything.

use clap::Subcommand;
use std::path::PathBuf;

const HELP: &str = "\
The configuration is checked as if `fdbrokerd` were started here: with this environment and by this user.

Examples:
  fdbroker config check /etc/fdbroker/fdbrokerd.toml
  fdbroker config show
  fdbroker config show --json | jq '.settings[] | select(.from == \"file\")'

Exit status 1: the daemon would not start; stderr says why.";

/// Check the daemon's configuration, or show it with the origin of each value
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    pub action: Action,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Check whether the daemon would start with this file, and print what is wrong if not. Changes nothing: a missing
    /// directory is reported, not created
    Check {
        /// Default, as for the daemon: FDBROKER_CONFIG or /etc/fdbroker/fdbrokerd.toml if it exists
        file: Option<PathBuf>,
    },
    /// Print every setting in force as a configuration file, with its origin: environment, file or default
    Show {
        /// Default, as for the daemon: FDBROKER_CONFIG or /etc/fdbroker/fdbrokerd.toml if it exists
        file: Option<PathBuf>,
        /// One line of JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
}
