//! The hidden command that is the daemon, started by `run` and `demo`. Must never hold logic of the
//! daemon's own.

use crate::error::Result;
use crate::private_broker::Lifeline;
use crate::signals;
use std::path::PathBuf;
use std::process::ExitCode;

/// The daemon; `run` and `demo` start it
#[derive(Debug, clap::Args)]
// clap names a group of arguments after its type, and the daemon's type has this name, too.
#[group(skip)]
pub struct Args {
    /// A directory to remove at the end if the lifeline on stdin has ended
    #[arg(long)]
    pub remove: Option<PathBuf>,
    #[command(flatten)]
    pub args: fdbrokerd::cli::Args,
}

/// Runs the daemon until it ends.
pub fn run(args: &Args) -> Result<ExitCode> {
    // Before the daemon starts: it closes its lifeline when it ends.
    let lifeline = Lifeline::of_stdin();
    // The parent has blocked signals that the daemon waits for.
    signals::restore();
    // As `ps` shows it; it would be "exe". Nothing depends on it.
    let _ = nix::sys::prctl::set_name(c"fdbroker-broker");
    let status = fdbrokerd::cli::run(&args.args);
    if let Some(dir) = &args.remove {
        lifeline?.remove_if_ended(dir);
    }
    Ok(status)
}
