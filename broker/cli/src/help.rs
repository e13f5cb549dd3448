//! Prints the answers of clap: help, the version, or an error in the arguments. Must never report success when help or
//! version could not be written.

use crate::error::{Result, exit};
use crate::output::write_error;
use std::io::{self, Write};
use std::process::ExitCode;

/// Prints the answer, an error on stderr; gives the exit status.
pub fn say(answer: &clap::Error) -> Result<ExitCode> {
    let written = answer.print().and_then(|()| io::stdout().flush());
    if answer.use_stderr() {
        // Usage is wrong even if the message could not be written.
        return Ok(ExitCode::from(exit::USAGE));
    }
    written.map_err(write_error)?;
    Ok(ExitCode::from(exit::OK))
}
