//! `fdbroker get`: writes the bytes of an object. Must never write bytes of two versions, nor bytes
//! that a terminal would obey.

mod args;
mod several;

pub use args::Args;

use crate::by_name::{connect_within, soon, undone};
use crate::error::{Context, Error, Result};
use crate::output::{Output, human_size, printable, write_error};
use crate::std_fds;
use fdbroker_client::{Deadline, Object, Objects};
use fdbroker_protocol::ErrorCode;
use serde::Serialize;
use several::unhad;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

/// An object, in JSON.
#[derive(Serialize)]
struct GotView<'a> {
    name: &'a str,
    version: u64,
    size_bytes: usize,
    kind: &'static str,
    metadata_bytes: usize,
    /// `None`: it is no text.
    metadata: Option<&'a str>,
}

impl<'a> GotView<'a> {
    fn of(object: &'a Object) -> Self {
        GotView {
            name: object.name(),
            version: object.version(),
            size_bytes: object.len(),
            kind: object.kind().name(),
            metadata_bytes: object.metadata().len(),
            metadata: std::str::from_utf8(object.metadata()).ok(),
        }
    }
}

/// Bytes copied at a time from memory that is not mapped for the CPU.
const PIECE_BYTES: usize = 1 << 20;

/// A broker has so long for its answer even with `--timeout 0`: within no time nothing can be had,
/// also not what is there.
const SHORTEST_ANSWER: Duration = Duration::from_millis(50);

pub fn run(args: &Args) -> Result<()> {
    let is_several = several::is_meant(&args.names);
    let to = args.output.as_deref().filter(|path| *path != Path::new("-"));
    let wrong = match (is_several, args.meta, to) {
        (true, true, _) => Some("metadata is that of one NAME; name one object"),
        (true, _, None) => {
            Some("several objects need a folder: -O DIR; for one object, -O FILE names the file")
        }
        (false, _, None) if args.output.is_some() && args.json => {
            Some("-O - and --json both write to standard output; name a file")
        }
        _ => None,
    };
    if let Some(wrong) = wrong {
        return Err(Error::Usage(wrong.into()));
    }
    // An answer is waited for also where names are not. The broker takes the leases back from a
    // client that has gone.
    let until =
        args.timeout.map_or_else(|| soon().answered_within(Duration::ZERO), Deadline::after);
    let answered = match args.timeout {
        None => soon(),
        Some(timeout) => Deadline::after(timeout.max(SHORTEST_ANSWER)).min(soon()),
    };
    let objects = connect_within(args.job, answered)?;
    if let Some(folder) = to.filter(|_| is_several) {
        return into_folder(&objects, args, folder, until);
    }
    let name = &args.names[0];
    let object = objects.get(name, until);
    let object = undone(object.map_err(|error| unhad(&args.names, error)), &args.names, args.json)?;
    if let Some(path) = to {
        // As cp does it.
        let path =
            if path.is_dir() { path.join(several::base_name(name)?) } else { path.to_owned() };
        to_file(&object, args.meta, &path)?;
    } else if !args.json {
        to_stdout(&object, args.meta)?;
    }
    if !args.json {
        return Ok(());
    }
    let mut out = Output::stdout();
    out.json_line(&GotView::of(&object))?;
    out.finish()
}

/// Several objects of one moment, each to a file of its own.
fn into_folder(objects: &Objects, args: &Args, folder: &Path, until: Deadline) -> Result<()> {
    let got = several::get(objects, &args.names, until, args.json)?;
    let mut out = Output::stdout();
    for (object, file) in &got {
        let path = folder.join(file);
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).context(|| format!("make {}", parent.display()))?;
        to_file(object, false, &path)?;
        if args.json {
            out.json_line(&GotView::of(object))?;
        } else {
            let (name, size) = (printable(object.name()), human_size(object.len() as u64));
            out.text(&format!("{name}  version {}  {size}\n", object.version()))?;
        }
    }
    out.finish()
}

fn to_file(object: &Object, is_metadata: bool, path: &Path) -> Result<()> {
    let writing = || format!("write {}", path.display());
    let mut file = File::create(path).context(writing)?;
    write(object, is_metadata, &mut |bytes| file.write_all(bytes).context(writing))
}

fn to_stdout(object: &Object, is_metadata: bool) -> Result<()> {
    std_fds::check_stdout()?;
    let stdout = io::stdout();
    let is_terminal = stdout.is_terminal();
    let mut stdout = stdout.lock();
    write(object, is_metadata, &mut |bytes| {
        if is_terminal && !is_text(bytes) {
            let what = "these bytes are no text, and would be written to a terminal";
            return Err(Error::Usage(format!("{what}; use -O FILE, or a pipe")));
        }
        stdout.write_all(bytes).map_err(write_error)
    })?;
    stdout.flush().map_err(write_error)
}

/// Hands on the bytes, in pieces if they must be copied.
fn write(
    object: &Object,
    is_metadata: bool,
    to: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    if is_metadata {
        return to(object.metadata());
    }
    match object.bytes() {
        Ok(bytes) => return to(bytes),
        Err(error) if error.code != ErrorCode::NotSupported => return Err(error.into()),
        Err(_) => {}
    }
    let mut piece = vec![0; PIECE_BYTES.min(object.len())];
    for offset in (0..object.len()).step_by(PIECE_BYTES) {
        let length = PIECE_BYTES.min(object.len() - offset);
        object.read_at(offset, &mut piece[..length])?;
        to(&piece[..length])?;
    }
    Ok(())
}

/// Whether a terminal shows these bytes and does not obey them.
fn is_text(bytes: &[u8]) -> bool {
    let is_harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t' | '\r');
    std::str::from_utf8(bytes).is_ok_and(|text| text.chars().all(is_harmless))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_text_when_bytes_move_the_cursor_or_are_no_utf8_then_not() {
        assert!(is_text("lines\n\tand ümlauts\r\n".as_bytes()) && is_text(b""));
        assert!(!is_text(b"\x1b[2J") && !is_text(b"\xff") && !is_text(b"\0"));
    }
}
