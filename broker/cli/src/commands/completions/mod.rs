//! `fdbroker completions`: makes shell scripts from the command line's definition. Must never name a hidden command.

mod args;

pub use args::Args;

use crate::error::{Context, Result};
use crate::output::Output;
use args::Shell;
use clap::Command;
use clap_complete::aot::{Bash, Fish, Generator, Zsh};

/// Prints a shell's script for `command`.
pub fn run(args: &Args, mut command: Command) -> Result<()> {
    command.build();
    let mut script = Vec::new();
    let made = match args.shell {
        Shell::Bash => Bash.try_generate(&command, &mut script),
        Shell::Zsh => Zsh.try_generate(&command, &mut script),
        Shell::Fish => Fish.try_generate(&command, &mut script),
    };
    made.context(|| "make the completions")?;
    let mut out = Output::stdout();
    out.text(&String::from_utf8_lossy(&script))?;
    out.finish()
}
