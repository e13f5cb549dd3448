//! The arguments of `fdbroker rm` and their help. Must never act on them.

use crate::by_name::name;

const HELP: &str = "\
The name is gone at once: nobody gets the object any more, and another may have the name. Readers keep what they have. The memory
goes with the last name of its group and with its last reader. With --version only that version is removed: if somebody has
replaced it meanwhile it stays, and that is an error (VERSION).

With --prefix all objects go whose names begin with NAME, pinned ones too, and the command says how many: look at them first with
`fdbroker objects NAME`. `model/` leaves `models` alone, `model` does not. What is replaced meanwhile or is in the making stays, and
that is an error. With --json there is a line for each NAME, with the numbers `removed` and `stay`, and the first 20 that stay.

Examples:
  fdbroker rm model/a
  fdbroker rm model/a model/b
  fdbroker rm model/a --version 12
  fdbroker rm model/ --prefix

Exit status 4: no such object, or no name begins so; the others are removed. 1: one of another version, or in the making.";

/// Take the names from objects; their memory goes with the last reader
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Names of the objects; with --prefix, what their names begin with
    #[arg(required = true, value_name = "NAME", value_parser = name)]
    pub names: Vec<String>,
    /// Remove all objects whose names begin with NAME
    #[arg(long, conflicts_with = "version")]
    pub prefix: bool,
    /// Only if it has this version; with a single NAME
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub version: Option<u64>,
    /// The names are those of this process's job (its cgroup), not of the user
    #[arg(long)]
    pub job: bool,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
