//! `fdbroker run -- CMD`: a private broker for one job. Passes signals on to CMD, ends with CMD's
//! exit status, and prints a summary on stderr. Must never leave the broker or its directory
//! behind.

mod args;
pub mod exec;
pub mod join;
mod report;

pub use args::Args;

use crate::admin::Admin;
use crate::error::{Context, Result};
use crate::layers::{cuda, level_zero};
use crate::output::{aside, commas, counted, human_time, say};
use crate::private_broker::{PrivateBroker, SELF, pid_of};
use crate::records::StatusView;
use crate::signals::Signals;
use args::Cuda;
use exec::Variable;
use fdbrokerd::settings::assignment;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::kill;
use report::{Report, ReportFile};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};

/// A job has no time limit.
const FOR_EVER: PollTimeout = PollTimeout::NONE;

/// What is said beside what the job says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    Words,
    Json,
    Nothing,
}

/// Runs the command with a broker of its own, or joins the job's; returns the exit status to end
/// with.
pub fn run(args: Args) -> Result<u8> {
    let Args { command, max_fds, json, quiet, join, job, report, level_zero, cuda } = args;
    let telling = match (json, quiet) {
        (true, _) => Telling::Json,
        (_, true) => Telling::Nothing,
        _ => Telling::Words,
    };
    let mut layers = Vec::new();
    if level_zero {
        layers.extend(level_zero::environment()?);
        if let Some(name) = level_zero::switched_off() {
            say!(
                "fdbroker: {name}=1 has no effect: the loader has one place for a validation layer, and --level-zero takes it; \
                 check the program without --level-zero"
            );
        }
    }
    if let Some(what) = cuda {
        // Its LD_PRELOAD takes the place of the other's: only one library can stand before the C
        // library.
        layers.extend(cuda::environment(&command, what == Cuda::Malloc)?);
    }
    if join {
        join::run(&command, max_fds, job.as_deref(), layers)
    } else {
        alone(&command, max_fds, telling, report.as_ref(), layers)
    }
}

/// Runs `command` with a private broker and with `more` in its environment, and writes a `report`
/// if wanted. Returns the exit status to end with.
fn alone(
    command: &[OsString],
    max_fds: Option<u64>,
    telling: Telling,
    report: Option<&ReportFile>,
    more: Vec<Variable>,
) -> Result<u8> {
    let signals = Signals::take_over()?;
    let mut broker = PrivateBroker::start(max_fds, telling == Telling::Nothing)?;
    if telling == Telling::Words {
        let socket = assignment("FDBROKER_SOCKET", &broker.socket());
        aside(&format!("to look at this broker from another terminal: export {socket}"));
    }
    let report = report.map(|file| Report::start(file, broker.admin_socket())).transpose()?;
    let mut job = Command::new(SELF)
        .arg("exec")
        .arg("--")
        .args(command)
        .env("FDBROKER_SOCKET", broker.socket())
        .env("FDBROKER_ADMIN_SOCKET", broker.admin_socket())
        .envs(more)
        .spawn()
        .context(|| "start the command")?;
    let status = wait(&mut job, &signals, &mut broker)?;
    if telling != Telling::Nothing {
        summary(&broker, telling == Telling::Json);
    }
    if let Some(report) = report {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        // The job's exit status counts, not the picture's.
        if let Err(error) = report.finish(&words.join(" ")) {
            say!("fdbroker: no report: {error}");
        }
    }
    Ok(exit_status(status))
}

/// Waits for the end of the job, and passes on each signal that the job has not received itself.
fn wait(job: &mut Child, signals: &Signals, broker: &mut PrivateBroker) -> Result<ExitStatus> {
    let mut broker_lost = false;
    loop {
        if let Some(status) = job.try_wait().context(|| "wait for the command")? {
            return Ok(status);
        }
        if !broker_lost && let Some(end) = broker.ended() {
            broker_lost = !broker.start_again(end, "the command goes on without it");
        }
        let mut entries = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut entries, FOR_EVER) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(cause) => return Err(cause).context(|| "wait for signals"),
        }
        while let Some(received) = signals.next_end() {
            // The terminal has sent its signals to the whole process group, and so to the job.
            if !received.by_terminal {
                // ESRCH: the job has just ended, which the next round finds.
                let _ = kill(pid_of(job), received.signal);
            }
        }
    }
}

/// The exit status as a shell reports it: 128 and the signal's number if a signal ended the job.
fn exit_status(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(crate::error::exit::ERROR)
}

fn summary(broker: &PrivateBroker, json: bool) {
    let asked = Admin::connect(&broker.admin_socket()).and_then(|mut admin| admin.status());
    let status = match asked {
        Ok(status) => StatusView::from(&status),
        Err(error) => return say!("fdbroker: no summary: {error}"),
    };
    if json {
        // Plain data: cannot fail.
        if let Ok(line) = serde_json::to_string(&status) {
            say!("{line}");
        }
        return;
    }
    if status.uses.allocations.peak > 0 {
        say!("fdbroker: {}", in_words(&status));
    }
}

/// How a job has shared memory. All else is in `--json`.
fn in_words(StatusView { uses, counters, uptime_ms, .. }: &StatusView) -> String {
    let cap = uses.fds.cap.map_or("no cap".into(), |cap| format!("the cap is {}", commas(cap)));
    let counters = counters.unwrap_or_default();
    format!(
        "the job shared memory: at most {} at a time, with {} open ({cap}); handed out {}, asked for again {}, in {}",
        counted(uses.allocations.peak, "allocation"),
        counted(uses.fds.peak, "fd"),
        times(counters.grants),
        times(counters.recalls),
        human_time(*uptime_ms),
    )
}

fn times(count: u64) -> String {
    match count {
        1 => "once".into(),
        count => format!("{} times", commas(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_status_when_code_or_signal_then_as_a_shell_says() {
        assert_eq!(exit_status(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_status(ExitStatus::from_raw(15)), 143);
    }
}
