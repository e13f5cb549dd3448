//! `fdbroker completions`: scripts for shells, made from the command line itself. Must never name what is
//! hidden.

use crate::cli::Cli;
use crate::error::{Context, Result};
use crate::output::Output;
use clap::{Command, CommandFactory, ValueEnum};
use clap_complete::aot::{Bash, Fish, Generator, Zsh};

/// Shells that there are completions for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // their names
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the script of `shell`.
pub fn run(shell: Shell) -> Result<()> {
    let mut command = visible();
    command.build();
    let mut script = Vec::new();
    let made = match shell {
        Shell::Bash => Bash.try_generate(&command, &mut script),
        Shell::Zsh => Zsh.try_generate(&command, &mut script),
        Shell::Fish => Fish.try_generate(&command, &mut script),
    };
    made.context(|| "make the completions")?;
    let mut out = Output::stdout();
    out.text(&String::from_utf8_lossy(&script))?;
    out.finish()
}

/// The command without what is hidden in it: the generators would name it.
pub fn visible() -> Command {
    let whole = Cli::command();
    let subcommands: Vec<Command> =
        whole.get_subcommands().filter(|it| !it.is_hide_set()).cloned().collect();
    Command::new("fdbroker")
        .bin_name("fdbroker")
        .version(env!("CARGO_PKG_VERSION"))
        .about(whole.get_about().cloned().unwrap_or_default())
        .subcommands(subcommands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_when_made_then_every_subcommand_but_the_hidden() {
        let command = visible();
        let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        assert!(names.contains(&"ls") && names.contains(&"completions"), "{names:?}");
        assert!(!names.contains(&"keeper") && !names.contains(&"broker"), "{names:?}");
    }
}
