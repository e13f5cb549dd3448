//! The arguments of `fdbroker status` and their help. Must never do anything.

/// Show the node at a glance: counts, peaks and caps
///
/// NOW is what there is: fds that are open, leases that were granted. RESERVED is what is kept for
/// fds and leases to come. A cap bounds both together. PEAK is the most that there was, without
/// what is reserved.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
