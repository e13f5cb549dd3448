//! `fdbroker holders`: lists leases. Must never print an empty list for a subject that does not
//! exist.

use crate::admin::{Selection, viewing};
use crate::by_name::named::Named;
use crate::error::Result;
use crate::records::leases::COLUMNS;
use crate::table::{self, List, ListArgs};

const EXAMPLES: &str = "\
Examples:
  fdbroker holders                  everyone
  fdbroker holders 12.3             who has the allocation 12.3 of `fdbroker ls`
  fdbroker holders model/a          who reads an object of this user, or another one of its group
  fdbroker holders pid:4711         what a process has
  fdbroker holders uid:1000 --json
  fdbroker holders --filter 'STATE == open and AGE > 5m'

The form of WHAT decides: 12.3 is an allocation, even if an object is called so. object:12.3 is that object.

Exit status 4: the broker knows no such allocation, object, process, user or job.";

/// List the leases: which process has which allocation open or mapped
#[derive(Debug, clap::Args)]
#[command(after_long_help = table::after_help(EXAMPLES))]
pub struct Args {
    /// Only leases of this: a handle (128 hex digits), SLOT.GENERATION or a virtual fd as `ls`
    /// shows them, pid:N, uid:N, job:NAME, or the name of an object
    #[arg(value_name = "WHAT")]
    pub subject: Option<Named>,
    #[command(flatten)]
    pub list: ListArgs,
}

/// Prints the leases of a subject, or all leases.
pub fn run(args: Args) -> Result<()> {
    let Some(list) = List::new("holders", COLUMNS, &args.list)? else { return Ok(()) };
    let list = list.largest_first(COLUMNS, "SIZE");
    let mut admin = viewing::connect()?;
    let selection = match args.subject {
        None => Selection::ALL,
        Some(subject) => subject.known(&mut admin)?.0,
    };
    list.run(&mut admin, selection)
}
