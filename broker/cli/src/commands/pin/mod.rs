//! `fdbroker pin`: pins objects, and unpins them. Must never change how long others stay.

mod args;

pub use args::Args;

use crate::by_name::{connect, say_ends_with_broker, soon, tell_with};
use crate::error::Result;
use fdbroker_client::{Objects, Touch};

/// Gives the exit status of the worst outcome; the others are pinned.
pub fn run(args: &Args) -> Result<u8> {
    let touch = Touch { pin: Some(!args.unpin), ..Touch::default() };
    let objects = connect(false)?;
    let outcomes = objects.touch(&args.names, touch, soon())?;
    let ends_with_broker = !args.unpin && is_any_to_end_with_broker(&objects, &args.names);
    let names = args.names.iter().map(String::as_str);
    let done = if args.unpin { "unpinned" } else { "pinned" };
    let mut more = serde_json::Map::new();
    if !args.unpin {
        more.insert("ends_with_broker".into(), ends_with_broker.into());
    }
    let status = tell_with(&names.zip(outcomes).collect::<Vec<_>>(), done, args.json, more)?;
    if ends_with_broker {
        say_ends_with_broker();
    }
    Ok(status)
}

/// Whether one of those that are pinned now ends with the broker. They are pinned, whether this can be told or not.
fn is_any_to_end_with_broker(objects: &Objects, names: &[String]) -> bool {
    let known = objects.stat_many(names, soon()).unwrap_or_default();
    known.iter().flatten().any(|info| info.pinned && info.ends_with_broker)
}
