//! `fdbroker pin`: pins objects, and unpins them. Must never change how long others stay.

mod args;

pub use args::Args;

use crate::by_name::{connect, say_ends_with_broker, soon, tell_with};
use crate::error::Result;
use crate::output::{printable, say};
use fdbroker_client::{ObjectInfo, Touch};
use std::collections::BTreeMap;

/// Gives the exit status of the worst outcome; the others are pinned.
pub fn run(args: &Args) -> Result<u8> {
    let touch = Touch::default().pin(!args.unpin);
    let objects = connect(false)?;
    let outcomes = objects.touch(&args.names, touch, soon())?;
    let names = args.names.iter().map(String::as_str);
    let done = if args.unpin { "unpinned" } else { "pinned" };
    // They are pinned, whether this can be told or not.
    let known: Vec<ObjectInfo> =
        objects.stat_many(&args.names, soon()).unwrap_or_default().into_iter().flatten().collect();
    let ends_with_broker =
        !args.unpin && known.iter().any(|info| info.pinned && info.ends_with_broker);
    let mut more = serde_json::Map::new();
    if !args.unpin {
        more.insert("ends_with_broker".into(), ends_with_broker.into());
    }
    let status = tell_with(&names.zip(outcomes).collect::<Vec<_>>(), done, args.json, more)?;
    say_groups(known, done);
    if ends_with_broker {
        say_ends_with_broker();
    }
    Ok(status)
}

/// Says which other objects it was done to: those of the same groups.
fn say_groups(known: Vec<ObjectInfo>, done: &str) {
    let mut groups = BTreeMap::new();
    for info in known {
        groups.entry(info.id).or_insert((info, 0)).1 += 1;
    }
    for (info, named) in groups.into_values().filter(|(info, named)| info.group_names > *named) {
        let (name, all) = (printable(&info.name), info.group_names);
        say!(
            "fdbroker: {name} is of a group of {all} names ({named} given here): all of them are {done}"
        );
    }
}
