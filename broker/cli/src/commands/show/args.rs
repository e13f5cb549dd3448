//! The arguments of `fdbroker show` and their help. Must never do anything.

use crate::by_name::named::Named;

const HELP: &str = "\
Examples:
  fdbroker show 12.3
  fdbroker show model/a                 an object of this user, and the memory of its group
  fdbroker show 12.3 --json | jq .allocation.size_bytes

The form of WHAT decides: 12.3 is an allocation, even if an object is called so. object:12.3 is that object. Of an object its own values
come first, in the words of `fdbroker objects -H`, then those of the memory of its group, in the words of `fdbroker ls -H`: KEEP and
OWNER there are about allocations that programs register, and say nothing of how long an object stays. Of the objects of a job take
the column GROUP of `fdbroker objects --job`.

Exit status 4: the broker knows no such allocation or object.";

/// Show everything about one allocation or object, and its holders
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// A handle (128 hex digits), SLOT.GENERATION or a virtual fd as `ls` shows them, or the name
    /// of an object
    #[arg(value_name = "WHAT")]
    pub subject: Named,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
