//! What clap says itself: help, the version, or what is wrong with the arguments. Must never end well when what was asked
//! for could not be written.

use crate::error::{Result, exit};
use crate::output::write_error;
use std::io::{self, Write};
use std::process::ExitCode;

/// Prints it, to stderr if it is about wrong arguments.
pub fn say(answer: &clap::Error) -> Result<ExitCode> {
    let written = answer.print().and_then(|()| io::stdout().flush());
    if answer.use_stderr() {
        // Whether or not anybody could read why.
        return Ok(ExitCode::from(exit::USAGE));
    }
    written.map_err(write_error)?;
    Ok(ExitCode::from(exit::OK))
}
