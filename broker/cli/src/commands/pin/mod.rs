//! `fdbroker pin`: pins objects, and unpins them. Must never change how long others stay.

mod args;

pub use args::Args;

use crate::by_name::{connect, soon, tell};
use crate::error::Result;
use fdbroker_client::Touch;

/// Gives the exit status of the worst outcome; the others are pinned.
pub fn run(args: &Args) -> Result<u8> {
    let touch = Touch { pin: Some(!args.unpin), ..Touch::default() };
    let outcomes = connect(false)?.touch(&args.names, touch, soon())?;
    let names = args.names.iter().map(String::as_str);
    let done = if args.unpin { "unpinned" } else { "pinned" };
    tell(&names.zip(outcomes).collect::<Vec<_>>(), done, args.json)
}
