//! `fdbroker get`: writes the bytes of an object. Must never write bytes of two versions, nor bytes that a terminal would obey.

mod args;

pub use args::Args;

use crate::by_name::connect;
use crate::error::{Context, Error, Result};
use crate::output::{Output, write_error};
use fdbroker_client::{Deadline, Object};
use fdbroker_protocol::ErrorCode;
use serde::Serialize;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

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

/// Bytes copied at a time from memory that is not mapped for the CPU.
const PIECE_BYTES: usize = 1 << 20;

pub fn run(args: &Args) -> Result<()> {
    let to_file = args.output.as_deref().filter(|path| *path != Path::new("-"));
    if to_file.is_none() && args.output.is_some() && args.json {
        let what = "-O - and --json both write to standard output";
        return Err(Error::Usage(format!("{what}; name a file")));
    }
    let object = connect(args.job)?.get(&args.name, Deadline::after(args.timeout))?;
    if let Some(path) = to_file {
        let writing = || format!("write {}", path.display());
        let mut file = File::create(path).context(writing)?;
        write(&object, args.meta, &mut |bytes| file.write_all(bytes).context(writing))?;
    } else if !args.json {
        to_stdout(&object, args.meta)?;
    }
    if !args.json {
        return Ok(());
    }
    let mut out = Output::stdout();
    out.json_line(&GotView {
        name: object.name(),
        version: object.version(),
        size_bytes: object.len(),
        kind: object.kind().name(),
        metadata_bytes: object.metadata().len(),
        metadata: std::str::from_utf8(object.metadata()).ok(),
    })?;
    out.finish()
}

fn to_stdout(object: &Object, is_metadata: bool) -> Result<()> {
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
