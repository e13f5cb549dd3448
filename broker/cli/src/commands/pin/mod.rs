//! `fdbroker pin`: pins objects, and unpins them. Must never change how long others stay.

mod args;

pub use args::Args;

use crate::by_name::{connect, soon, tell};
use crate::error::Result;
use crate::output::{printable, say};
use fdbroker_client::{Objects, Touch};
use std::collections::BTreeMap;

/// Gives the exit status of the worst outcome; the others are pinned.
pub fn run(args: &Args) -> Result<u8> {
    let touch = Touch { pin: Some(!args.unpin), ..Touch::default() };
    let objects = connect(false)?;
    let outcomes = objects.touch(&args.names, touch, soon())?;
    let names = args.names.iter().map(String::as_str);
    let done = if args.unpin { "unpinned" } else { "pinned" };
    let status = tell(&names.zip(outcomes).collect::<Vec<_>>(), done, args.json)?;
    say_groups(&objects, &args.names, done);
    Ok(status)
}

/// Says which other objects it was done to: those of the same groups. It is done, whether this can be told or not.
fn say_groups(objects: &Objects, names: &[String], done: &str) {
    let mut groups = BTreeMap::new();
    for info in objects.stat_many(names, soon()).unwrap_or_default().into_iter().flatten() {
        groups.entry(info.id).or_insert((info, 0)).1 += 1;
    }
    for (info, named) in groups.into_values().filter(|(info, named)| info.group_names > *named) {
        let (name, all) = (printable(&info.name), info.group_names);
        say!(
            "fdbroker: {name} is of a group of {all} names ({named} given here): all of them are {done}"
        );
    }
}
