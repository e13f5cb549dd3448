//! The arguments of `fdbroker status` and their help. Must never do anything.

/// Show the node at a glance: counts, peaks and caps
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
