//! The arguments of `fdbroker completions` and their help. Must never do anything.

use clap::ValueEnum;

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
