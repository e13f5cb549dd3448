//! Runs a program for its answer on stdout. Must never wait without a bound, nor leave the program
//! running.

use crate::private_broker::{end_now, wait_bounded};
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// Most bytes of an answer that are read; it must fit into a pipe, which nobody reads before the
/// end.
const MOST_BYTES: u64 = 4096;

/// The program's exit status and answer, or the reason why there is none.
pub fn answer(
    command: &mut Command,
    patience: Duration,
) -> std::result::Result<(ExitStatus, String), String> {
    let (input, output, errors) = (Stdio::null(), Stdio::piped(), Stdio::null());
    let child = command.stdin(input).stdout(output).stderr(errors).spawn();
    let mut child = child.map_err(|error| format!("cannot be asked: {error}"))?;
    let Some(status) = wait_bounded(&mut child, patience) else {
        end_now(&mut child);
        return Err(format!("it hangs: no answer in {} s", patience.as_secs()));
    };
    let mut text = String::new();
    if let Some(stdout) = child.stdout.take() {
        // Bytes that are not text are no answer.
        let _ = stdout.take(MOST_BYTES).read_to_string(&mut text);
    }
    Ok((status, text))
}
