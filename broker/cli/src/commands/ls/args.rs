//! The arguments of `fdbroker ls` and their help. Must never do anything.

use crate::table::{self, ListArgs};

const EXAMPLES: &str = "\
Examples:
  fdbroker ls --sort SIZE:desc                     the largest first
  fdbroker ls --filter 'OWNER == none or SIZE >= 1GiB'
  fdbroker ls -o +BASE,SHARE --filter 'STATE == ended and MAPPED_LEASES > 0'
  fdbroker ls --json -o owner_pid,size_bytes | jq '.allocations[]'";

/// List the allocations
#[derive(Debug, clap::Args)]
#[command(after_long_help = table::after_help(EXAMPLES))]
pub struct Args {
    #[command(flatten)]
    pub list: ListArgs,
}
