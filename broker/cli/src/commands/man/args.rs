//! The arguments of `fdbroker man` and their help. Must never do anything.

use std::path::PathBuf;

/// Write the manual pages into a directory
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory, such as /usr/local/share/man/man1
    pub dir: PathBuf,
}
