//! `fdbroker objects`: lists named objects. Must never hold more than a page of them, except for
//! `--sort`.

use crate::admin::{Selection, viewing};
use crate::by_name::{connect, each_page};
use crate::error::Result;
use crate::records::objects::{COLUMNS, OWNED, Owned};
use crate::table::{self, List, ListArgs};
use fdbroker_protocol::admin::OwnedObject;

const EXAMPLES: &str = "\
Examples:
  fdbroker objects                                 all objects of this user
  fdbroker objects model/                          those whose names begin with model/
  fdbroker objects --sort SIZE:desc -o NAME,SIZE,LEASES
  fdbroker objects --filter 'STATE == making or LEASES == 0'
  fdbroker objects model/ --json | jq -r '.objects[].name'
  fdbroker objects --all --filter 'JOB == slurm:4711'
  fdbroker objects --all --sort GROUP_SIZE:desc -o NAME,USER,GROUP_SIZE,FLAGS

An object is memory with a name. `fdbroker put` makes one, `fdbroker get` reads it, `fdbroker rm` takes its name away. The list is
that of the user who runs the command, in the order of the names; FDBROKER_SOCKET names the broker. With --all it is that of everybody
for administrators and monitors, else of this user and all of their jobs, with USER and JOB, in the broker's order; `fdbroker revoke`
with a GROUP ends the objects of one. In text, characters of a name that
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
    /// The names of all users and jobs, as far as you may see them, with USER and JOB
    #[arg(short, long, conflicts_with = "job")]
    pub all: bool,
    #[command(flatten)]
    pub list: ListArgs,
}

pub fn run(args: &Args) -> Result<()> {
    if args.all {
        return run_all(args);
    }
    let Some(list) = List::new("objects", &COLUMNS, &args.list)? else { return Ok(()) };
    let list = list.largest_first(&COLUMNS, "SIZE");
    let objects = connect(args.job)?;
    // Nobody is ever shown names of others, so no scope is said.
    list.print(None, |take| each_page(&objects, &args.prefix, take))
}

fn run_all(args: &Args) -> Result<()> {
    let Some(list) = List::new("objects", &OWNED, &args.list)? else { return Ok(()) };
    let list = list.largest_first(&OWNED, "SIZE");
    let mut admin = viewing::connect()?;
    list.print(Some(admin.scope_name()), |take| {
        admin.each_page(Selection::ALL, |page: &[OwnedObject]| {
            let all = page.iter().filter_map(Owned::of);
            take(&all.filter(|it| it.info.name.starts_with(&args.prefix)).collect::<Vec<_>>())
        })
    })
}
