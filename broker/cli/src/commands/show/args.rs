//! The arguments of `fdbroker show` and their help. Must never do anything.

use crate::subject::Subject;

const HELP: &str = "\
Examples:
  fdbroker show 12.3
  fdbroker show 12.3 --json | jq .allocation.size_bytes

Exit status 4: the broker knows no such allocation.";

/// Show everything about one allocation, and its holders
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// A handle (128 hex digits), or SLOT.GENERATION or a virtual fd as `ls` shows them
    #[arg(value_name = "WHAT")]
    pub subject: Subject,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
