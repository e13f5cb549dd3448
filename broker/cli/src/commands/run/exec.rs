//! Becomes the command of a job by exec(2). Must never pass a signal mask of ours on to the
//! command.

use crate::error::{Error, Result};
use crate::output::say;
use crate::signals;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Exit status for a command that does not exist, and for one that cannot be executed, as in a
/// shell.
const COMMAND_NOT_FOUND: u8 = 127;
const COMMAND_NOT_EXECUTABLE: u8 = 126;

/// Name and value of a variable for the command.
pub type Variable = (&'static str, OsString);

/// The job of `run`
#[derive(Debug, clap::Args)]
pub struct ExecArgs {
    /// Command and arguments
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// The hidden command that `run` starts: restores the signal mask, then becomes the job.
pub fn run(args: &ExecArgs) -> Result<u8> {
    signals::restore();
    become_command(&args.command, Vec::new())
}

/// Replaces this process by `command`. Returns only if that fails, with the exit status of a shell.
pub fn become_command(command: &[OsString], environment: Vec<Variable>) -> Result<u8> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| Error::Usage("no command was given".into()))?;
    // The signal mask stays as it is. SIGPIPE, which Rust ignores, gets its default action back.
    let cause = Command::new(program).args(arguments).envs(environment).exec();
    say!("fdbroker: cannot run {}: {cause}", program.display());
    Ok(match cause.kind() {
        std::io::ErrorKind::NotFound => COMMAND_NOT_FOUND,
        _ => COMMAND_NOT_EXECUTABLE,
    })
}
