//! `fdbroker put`: makes objects from files. Must never show a part of what was asked for: all
//! files are read before a name appears.

mod args;
mod input;

pub use args::Args;

use crate::by_name::{at, connect, name, say_ends_with_broker, soon, time, undone};
use crate::error::{Error, Result};
use crate::output::{Output, human_size, human_time, printable, say};
use fdbroker_client::{Deadline, ErrorCode, NewObject, ObjectOptions, Place};
use fdbroker_protocol::limits::MAX_GROUP;
use input::Input;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// What was made, in JSON.
#[derive(Serialize)]
struct PutView<'a> {
    version: u64,
    ttl_seconds: Option<f64>,
    /// The broker does not allow the time that was asked for.
    ttl_is_cut: bool,
    pinned: bool,
    /// Because a version that was replaced was.
    pin_is_inherited: bool,
    ends_with_broker: bool,
    /// As in `objects`; `None`: another put has replaced it already.
    group: Option<String>,
    objects: Vec<MadeView<'a>>,
}

#[derive(Serialize)]
struct MadeView<'a> {
    name: &'a str,
    size_bytes: u64,
}

/// Longest wait for room under a cap, and for the broker's look at what was made.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(args: &Args) -> Result<()> {
    let names = names(args)?;
    let mut inputs = Vec::new();
    for file in &args.files {
        inputs.push(Input::open(file)?);
    }
    let objects = connect(false)?;
    let members: Vec<NewObject<'_>> = names
        .iter()
        .zip(&inputs)
        .map(|(name, input)| {
            NewObject::new(name, input.size_bytes())
                .metadata(args.meta.as_bytes())
                .expect(args.expect)
        })
        .collect();
    let options = ObjectOptions::default()
        .replace(args.replace)
        .keep(args.keep)
        .pin((args.pin || args.no_pin).then_some(args.pin))
        .outlive(true)
        .evictable(args.evictable);
    let group = objects.create(&members, Place::Host, options, Deadline::after(PATIENCE));
    let mut group = undone(group.map_err(|error| explained(error, &names)), &names, args.json)?;
    for (index, input) in inputs.iter_mut().enumerate() {
        input.read_into(group.bytes_mut(index)?)?;
    }
    let ends_with_broker = group.ends_with_broker();
    let before_seal = Instant::now();
    let version = group.seal(Deadline::after(PATIENCE));
    let version = version.map_err(|failed| explained(failed.error, &names));
    let version = undone(version, &names, args.json)?;
    // What the broker made of the time that was asked for. Another put may have replaced it.
    let info = objects.stat(&names[0], soon()).ok().filter(|info| info.version == version);
    let ttl = info.as_ref().and_then(|info| info.ttl_left);
    let pinned = info.as_ref().map_or(args.pin, |info| info.pinned);
    let group = info.map(|info| info.id.to_string());
    // The time counts from the seal.
    let passed = before_seal.elapsed() + Duration::from_millis(1);
    let ttl_is_cut = ttl.zip(args.keep).is_some_and(|(ttl, wanted)| wanted > ttl + passed);

    let each = names.iter().zip(&inputs);
    let made: Vec<MadeView<'_>> =
        each.map(|(name, input)| MadeView { name, size_bytes: input.size_bytes() }).collect();
    let mut out = Output::stdout();
    if args.json {
        let ttl_seconds = ttl.map(|it| it.as_secs_f64());
        out.json_line(&PutView {
            version,
            ttl_seconds,
            ttl_is_cut,
            pinned,
            pin_is_inherited: pinned && !args.pin,
            ends_with_broker,
            group,
            objects: made,
        })?;
    } else {
        for it in &made {
            let (name, size) = (printable(it.name), human_size(it.size_bytes));
            out.text(&format!("{name}  version {version}  {size}\n"))?;
        }
    }
    out.finish()?;
    if pinned && !args.pin && !args.json {
        say!("fdbroker: pinned, as the version was that it replaces (--no-pin: not)");
    }
    if let Some(ttl) = ttl.filter(|_| !args.json) {
        say_how_long(ttl, args.keep, ttl_is_cut, ends_with_broker);
    }
    // Whoever asked for no time expects none.
    if ends_with_broker && (args.pin || args.keep.is_some()) {
        say_ends_with_broker();
    }
    Ok(())
}

/// Says what the user did not ask for.
fn say_how_long(ttl: Duration, wanted: Option<Duration>, is_cut: bool, ends_with_broker: bool) {
    // As it was when the group was sealed.
    let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
    let time = human_time(if ms < 1000 { ms } else { ms.div_ceil(1000).saturating_mul(1000) });
    let lasts = if ends_with_broker {
        format!("it ends {time} after the last use, or with the broker")
    } else {
        format!("kept for {time} after the last use")
    };
    match wanted {
        None => say!("fdbroker: {lasts}; --keep=TTL sets another time, --pin makes it stay"),
        Some(_) if is_cut => say!(
            "fdbroker: {lasts}, the most that the broker allows (limits.object_ttl_ms of the daemon); --pin makes it stay"
        ),
        Some(_) => {}
    }
}

/// An error whose remedy is a flag of this command.
fn explained(mut error: fdbroker_client::Error, names: &[String]) -> fdbroker_client::Error {
    let only = names.first().filter(|_| names.len() == 1);
    let of_one = at(&error).and_then(|index| names.get(index)).or(only);
    let value = error.status.map(|status| status.value);
    match (error.code, of_one, value) {
        (ErrorCode::Exists, Some(name), _) => {
            error.context = printable(name);
            error.because(
                "an object has this name, or is being made under it; remove it (`fdbroker rm`), or take its place with --replace",
            )
        }
        (ErrorCode::Version, of_one, Some(now)) => {
            error.context = of_one.map_or_else(|| "one of the names".into(), |it| printable(it));
            let now = match now {
                0 => "no object has this name now".into(),
                now => format!("it has version {now} now"),
            };
            error.because(format!("{now}, which is not what --expect says; nothing is put"))
        }
        // Whether it was in making or sealing them is of no use to anybody.
        (ErrorCode::NoQuota, _, Some(_)) => {
            error.context = "nothing is put".into();
            error
        }
        _ => error,
    }
}

/// The name of each object.
fn names(args: &Args) -> Result<Vec<String>> {
    if args.files.len() > MAX_GROUP {
        return Err(Error::Usage(format!(
            "{} files, and a group has {MAX_GROUP} objects at most; put them in several calls (`xargs -n {MAX_GROUP}`)",
            args.files.len()
        )));
    }
    check_keep(args)?;
    let is_prefix = args.name.ends_with('/');
    if args.files.len() > 1 && !is_prefix {
        let what = "with several files NAME is what their names begin with";
        return Err(Error::Usage(format!("{what}; end it with `/`")));
    }
    if !is_prefix {
        return Ok(vec![args.name.clone()]);
    }
    let of = |file: &std::path::PathBuf| {
        let base = base_name(file)?;
        name(&format!("{}{base}", args.name))
            .map_err(|why| Error::Usage(format!("{}: {why}", file.display())))
    };
    let names = args.files.iter().map(of).collect::<Result<Vec<_>>>()?;
    let mut sorted = names.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(Error::Usage(format!("two files would be called {}", two[0]))),
        None => Ok(names),
    }
}

/// A bare --keep takes no time, so a time after a blank would be a file.
fn check_keep(args: &Args) -> Result<()> {
    let is_bare = args.keep == Some(Duration::ZERO);
    let is_time = |text: &&str| time(text).is_ok() && !Path::new(text).exists();
    match args.files.iter().filter_map(|file| file.to_str()).find(is_time) {
        Some(text) if is_bare => Err(Error::Usage(format!(
            "`{text}` is taken for a FILE, and there is none; write --keep={text}"
        ))),
        _ => Ok(()),
    }
}

/// A file's own name, as the end of an object's.
fn base_name(file: &Path) -> Result<&str> {
    let wrong = |why: &str| Error::Usage(format!("{}: {why}", file.display()));
    if file == Path::new("-") {
        return Err(wrong("standard input has no name; give it a NAME that does not end with `/`"));
    }
    let base = file.file_name().ok_or_else(|| wrong("it is no file"))?;
    base.to_str()
        .ok_or_else(|| wrong("its name is not UTF-8; put it alone, with a NAME of its own"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn names_of(words: &[&str]) -> Result<Vec<String>> {
        let line = ["put"].iter().chain(words);
        names(&Line::try_parse_from(line).expect("the form is right").args)
    }

    #[test]
    fn names_when_one_file_or_several_then_as_cp_would_call_them() {
        assert_eq!(names_of(&["model/a", "x/y.bin"]).expect("one"), ["model/a"]);
        assert_eq!(names_of(&["model/", "x/y.bin"]).expect("one"), ["model/y.bin"]);
        assert_eq!(names_of(&["m/", "a", "/b/c"]).expect("two"), ["m/a", "m/c"]);
        assert_eq!(names_of(&["a", "-"]).expect("stdin"), ["a"]);
    }

    #[test]
    fn names_when_they_cannot_be_told_apart_then_usage() {
        let error = names_of(&["w1", "FILE", "--keep", "2h"]).expect_err("a time is no file");
        assert!(error.to_string().contains("write --keep=2h"), "{error}");
        for words in [&["a", "b", "c"][..], &["m/", "x/a", "y/a"], &["m/", "-"], &["m/", ".."]] {
            let error = names_of(words).expect_err("refused");
            assert_eq!(error.exit_status(), crate::error::exit::USAGE, "{error}");
        }
    }
}
