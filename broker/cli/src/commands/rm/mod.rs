//! `fdbroker rm`: takes the names from objects. Must never take a name from a version that was not meant.

mod args;

pub use args::Args;

use crate::by_name::{connect, soon, tell};
use crate::error::{Error, Result};

/// Gives the exit status of the worst outcome; the others are removed.
pub fn run(args: &Args) -> Result<u8> {
    if args.version.is_some() && args.names.len() > 1 {
        return Err(Error::Usage("a version belongs to one NAME; remove them one by one".into()));
    }
    let doomed: Vec<_> = args.names.iter().map(|name| (name.as_str(), args.version)).collect();
    let outcomes = connect(args.job)?.delete_many(&doomed, soon())?;
    let names = args.names.iter().map(String::as_str);
    tell(&names.zip(outcomes).collect::<Vec<_>>(), "removed", args.json)
}
