//! The arguments of `fdbroker show` and their help. Must never do anything.

use crate::subject::named::Named;

const HELP: &str = "\
Examples:
  fdbroker show 12.3
  fdbroker show model/a                 the memory of an object of this user, with that of its group
  fdbroker show 12.3 --json | jq .allocation.size_bytes

The form of WHAT decides: 12.3 is an allocation, even if an object is called so. object:12.3 is that object. `fdbroker objects` shows
version and time to live of an object, and the allocation of its group (the column GROUP); take that for the objects of a job.

Exit status 4: the broker knows no such allocation or object.";

/// Show everything about one allocation, and its holders
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// A handle (128 hex digits), SLOT.GENERATION or a virtual fd as `ls` shows them, or the name of an object
    #[arg(value_name = "WHAT")]
    pub subject: Named,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
