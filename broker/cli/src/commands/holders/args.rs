//! The arguments of `fdbroker holders` and their help. Must never do anything.

use crate::subject::Subject;
use crate::table::{self, ListArgs};

const EXAMPLES: &str = "\
Examples:
  fdbroker holders                  everyone
  fdbroker holders 12.3             who has the allocation 12.3 of `fdbroker ls`
  fdbroker holders pid:4711         what a process has
  fdbroker holders uid:1000 --json
  fdbroker holders --filter 'STATE == open and AGE > 5m'

Exit status 4: the broker knows no such allocation, process or user.";

/// List the leases: which process has which allocation open or mapped
#[derive(Debug, clap::Args)]
#[command(after_long_help = table::after_help(EXAMPLES))]
pub struct Args {
    /// Only leases of this subject: a handle (128 hex digits), SLOT.GENERATION or a virtual fd as `ls` shows them, pid:N, uid:N or job:NAME
    #[arg(value_name = "WHAT")]
    pub subject: Option<Subject>,
    #[command(flatten)]
    pub list: ListArgs,
}
