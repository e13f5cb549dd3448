//! `fdbroker rm`: takes the names from objects. Must never take a name from a version that was not
//! meant.

mod args;
mod prefix;

pub use args::Args;

use crate::by_name::{connect, soon, tell};
use crate::error::{Error, Result, exit};
use crate::output::say;

/// Gives the exit status of the worst outcome; the others are removed.
pub fn run(args: &Args) -> Result<u8> {
    if args.version.is_some() && args.names.len() > 1 {
        return Err(Error::Usage("a version belongs to one NAME; remove them one by one".into()));
    }
    if args.prefix {
        return prefix::run(&connect(args.job)?, &args.names, args.json);
    }
    let doomed: Vec<_> = args.names.iter().map(|name| (name.as_str(), args.version)).collect();
    let outcomes = connect(args.job)?.delete_many(&doomed, soon())?;
    let names = args.names.iter().map(String::as_str);
    let status = tell(&names.zip(outcomes).collect::<Vec<_>>(), "removed", args.json)?;
    if status != exit::OK && args.names.iter().any(|name| name.ends_with('/')) {
        say!(
            "fdbroker: a NAME is a whole name here; --prefix removes all objects whose names begin so"
        );
    }
    Ok(status)
}
