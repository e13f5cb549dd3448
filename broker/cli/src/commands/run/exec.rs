//! Becomes the command that a job consists of, by exec(2). Must never leave a signal mask of ours to it.

use crate::error::{Error, Result};
use crate::output::say;
use crate::signals;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Exit status for a command that does not exist, and for one that cannot be executed: the shell's.
const COMMAND_NOT_FOUND: u8 = 127;
const COMMAND_NOT_EXECUTABLE: u8 = 126;

/// A variable for the command.
pub type Variable = (&'static str, OsString);

/// The job of `run`
#[derive(Debug, clap::Args)]
pub struct ExecArgs {
    /// Command and arguments
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// The hidden command that becomes the job: undoes our signal mask, then executes it.
pub fn run(args: &ExecArgs) -> Result<u8> {
    signals::restore();
    become_command(&args.command, Vec::new())
}

/// Replaces this process by `command`; returns an exit status only if that fails, as a shell does.
pub fn become_command(command: &[OsString], environment: Vec<Variable>) -> Result<u8> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| Error::Usage("no command was given".into()))?;
    // The signal mask is left alone. SIGPIPE, which Rust ignores, does again what it does by default.
    let cause = Command::new(program).args(arguments).envs(environment).exec();
    say!("fdbroker: cannot run {}: {cause}", program.display());
    Ok(match cause.kind() {
        std::io::ErrorKind::NotFound => COMMAND_NOT_FOUND,
        _ => COMMAND_NOT_EXECUTABLE,
    })
}
