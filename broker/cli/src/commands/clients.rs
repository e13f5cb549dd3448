//! `fdbroker clients`: lists clients with their charges. Must never decide how a list is printed:
//! [`crate::table`] does.

use crate::error::Result;
use crate::records::clients::COLUMNS;
use crate::table::{self, List, ListArgs};

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

pub fn run(args: &Args) -> Result<()> {
    List::show("clients", &COLUMNS, &args.list)
}
