//! The arguments of `fdbroker clients` and their help. Must never do anything.

use crate::table::{self, ListArgs};

const EXAMPLES: &str = "\
Examples:
  fdbroker clients --sort FDS:desc                 who uses most fds
  fdbroker clients --filter 'SILENT == yes or PARKED_REQUESTS > 0'";

/// List the clients and what they are charged for
#[derive(Debug, clap::Args)]
#[command(after_long_help = table::after_help(EXAMPLES))]
pub struct Args {
    #[command(flatten)]
    pub list: ListArgs,
}
