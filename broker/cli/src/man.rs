//! `fdbroker man`: the manual pages, made from the command line itself. Must never describe what is hidden.

use crate::cli::Cli;
use crate::completions::visible;
use crate::error::{Context, Result};
use clap::{Args, Command, CommandFactory};
use fdbrokerd::cli::{ABOUT, AFTER_HELP};
use std::path::Path;

/// Writes fdbroker.1, a page of each command, and fdbrokerd.8 into `dir`, which is made if missing.
pub fn run(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).context(|| format!("make {}", dir.display()))?;
    let write = |page: clap_mangen::Man| {
        page.generate_to(dir).context(|| format!("write manual pages to {}", dir.display()))
    };
    // The commands have the flags of the whole with them then, and their names in full.
    let mut command = visible().disable_help_subcommand(true);
    command.build();
    for subcommand in command.get_subcommands() {
        let name = format!("fdbroker-{}", subcommand.get_name());
        write(clap_mangen::Man::new(subcommand.clone().display_name(name)))?;
    }
    let whole = Cli::command();
    let examples = whole.get_after_long_help().cloned().unwrap_or_default();
    write(clap_mangen::Man::new(command.after_long_help(examples)))?;
    let (about, _) = ABOUT.split_once(".\n").unwrap_or((ABOUT, ""));
    let daemon = Command::new("fdbrokerd")
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .long_about(ABOUT)
        .after_long_help(AFTER_HELP);
    let daemon = fdbrokerd::cli::Args::augment_args(daemon);
    write(clap_mangen::Man::new(daemon).section("8"))?;
    Ok(())
}
