//! The arguments of `fdbroker pin` and their help. Must never act on them.

use crate::by_name::name;

const HELP: &str = "\
A pinned object ends neither by time nor to make room, and outlives its creator. The whole group is pinned, and its bytes count
under a cap of their own (permanent_bytes). --unpin undoes it: from then on time counts again, from this use on. Nothing outlives
a broker of `fdbroker run`: `pin` says so then, and so does `ends_with_broker` with --json.

Examples:
  fdbroker pin model/a
  fdbroker pin model/a model/b --unpin
  fdbroker objects --filter 'FLAGS =~ pinned' -o NAME,GROUP_SIZE

Exit status 4: no such object; the others are pinned. 1: the cap is full (NO_QUOTA), or one is in the making.";

/// Pin objects: neither time nor lack of room ends them
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Names of the objects
    #[arg(required = true, value_name = "NAME", value_parser = name)]
    pub names: Vec<String>,
    /// Undo it
    #[arg(long)]
    pub unpin: bool,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
