//! `fdbroker completions`: makes shell scripts from the command line's definition. Must never name
//! a hidden command.

use crate::error::{Context, Result};
use crate::output::Output;
use crate::records::{allocations, clients, jobs, leases, objects};
use crate::table::names;
use clap::builder::PossibleValuesParser;
use clap::{Command, ValueEnum};
use clap_complete::aot::{Bash, Fish, Generator, Zsh};

const HELP: &str = "\
Examples:
  fdbroker completions bash > ~/.local/share/bash-completion/completions/fdbroker
  fdbroker completions zsh > ~/.zfunc/_fdbroker                 with ~/.zfunc in fpath
  fdbroker completions fish > ~/.config/fish/completions/fdbroker.fish";

/// Print the completions of a shell
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The shell
    pub shell: Shell,
}

/// A shell that completions can be made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // their names
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// The options of a list that take columns.
const OPTIONS: [&str; 2] = ["output", "sort"];

/// The lists, each with its columns.
fn lists() -> [(&'static str, Vec<&'static str>); 5] {
    [
        ("ls", names(allocations::COLUMNS)),
        ("clients", names(&clients::COLUMNS)),
        ("holders", names(leases::COLUMNS)),
        ("jobs", names(&jobs::COLUMNS)),
        ("objects", names(&objects::OWNED)),
    ]
}

/// The command whose lists know the names of their columns. To be completed, not to be parsed by:
/// the options take more.
fn with_columns(command: Command) -> Command {
    lists().into_iter().fold(command, |command, (list, columns)| {
        command.mut_subcommand(list, |list| {
            OPTIONS.into_iter().fold(list, |list, option| {
                list.mut_arg(option, |it| it.value_parser(PossibleValuesParser::new(&columns)))
            })
        })
    })
}

/// Lets bash complete each column of `SIZE,NAME` and `+SIZE`, where it would complete the first
/// alone.
fn with_each_column(script: String) -> String {
    lists().into_iter().fold(script, |script, (_, columns)| {
        let words = format!("compgen -W \"{}\"", columns.join(" "));
        let first = format!(r#"{words} -- "${{cur}}""#);
        let each = format!(r#"{words} -P "${{cur%"${{cur##*[,+]}}"}}" -- "${{cur##*[,+]}}""#);
        script.replace(&first, &each)
    })
}

/// Prints a shell's script for `command`.
pub fn run(args: &Args, command: Command) -> Result<()> {
    let mut command = with_columns(command);
    command.build();
    let mut script = Vec::new();
    let made = match args.shell {
        Shell::Bash => Bash.try_generate(&command, &mut script),
        Shell::Zsh => Zsh.try_generate(&command, &mut script),
        Shell::Fish => Fish.try_generate(&command, &mut script),
    };
    made.context(|| "make the completions")?;
    let mut out = Output::stdout();
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if args.shell == Shell::Bash {
        script = with_each_column(script);
    }
    out.text(&script)?;
    out.finish()
}
