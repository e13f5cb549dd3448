//! `fdbroker ls`: lists allocations. Must never decide how a list is printed: [`crate::table`]
//! does.

use crate::error::Result;
use crate::records::allocations::COLUMNS;
use crate::table::{self, List, ListArgs};

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

pub fn run(args: &Args) -> Result<()> {
    List::show("allocations", COLUMNS, &args.list)
}
