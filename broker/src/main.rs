//! The program `fdbrokerd`: parses flags and runs the library. Must never do more: `fdbroker` runs
//! the same library from its own executable.

use clap::Parser;
use fdbrokerd::cli::{ABOUT, AFTER_HELP, Args, run, say};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "fdbrokerd", version, about = ABOUT, after_help = AFTER_HELP)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => run(&cli.args),
        Err(answer) => say(&answer),
    }
}
