//! `fdbroker objects`: lists named objects. Must never hold more than a page of them, except for
//! `--sort`.

use crate::by_name::connect;
use crate::error::Result;
use crate::records::objects::COLUMNS;
use crate::table::{self, List, ListArgs};
use fdbroker_client::Deadline;

const EXAMPLES: &str = "\
Examples:
  fdbroker objects                                 all objects of this user
  fdbroker objects model/                          those whose names begin with model/
  fdbroker objects --sort SIZE:desc -o NAME,SIZE,LEASES
  fdbroker objects --filter 'STATE == making or LEASES == 0'
  fdbroker objects model/ --json | jq -r '.objects[].name'

An object is memory with a name. `fdbroker put` makes one, `fdbroker get` reads it, `fdbroker rm` takes its name away. The list is
that of the user who runs the command, in the order of the names; FDBROKER_SOCKET names the broker. In text, characters of a name that
a terminal would obey or not show, and backslashes, are written as in JSON (\\n, \\u202e): take such names from --json.";

/// List named objects
#[derive(Debug, clap::Args)]
#[command(after_long_help = table::after_help(EXAMPLES))]
pub struct Args {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// The names of this process's job (its cgroup), instead of the user's
    #[arg(long)]
    pub job: bool,
    #[command(flatten)]
    pub list: ListArgs,
}

/// Records handed on at a time.
const PAGE: usize = 256;

pub fn run(args: &Args) -> Result<()> {
    let Some(list) = List::new("objects", COLUMNS, &args.list)? else { return Ok(()) };
    let objects = connect(args.job)?;
    // Nobody is ever shown names of others, so no scope is said.
    list.print(None, |take| {
        let mut page = Vec::with_capacity(PAGE);
        // For all pages: the reader of stdout may take its time.
        for info in objects.list(&args.prefix, Deadline::longest()) {
            page.push(info?);
            if page.len() == PAGE {
                take(&page)?;
                page.clear();
            }
        }
        take(&page)
    })
}
