//! The daemon's command line: what it prints, and its exit status. Must never decide what a flag
//! means: `settings` does.

use crate::limits::REFUSED_PAUSE;
use crate::manager::notify::Manager;
use crate::settings::{Environment, Host, Settings};
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

pub use crate::settings::args::Args;

/// Runs the daemon, or checks its configuration, as the flags say. Errors go to stderr with their
/// remedy.
pub fn run(args: &Args) -> ExitCode {
    let environment = Environment::of_this_process();
    if args.check_config {
        return match Settings::load(args, &environment, &Host::to_check()) {
            Ok(settings) => show(&settings),
            Err(error) => refused(&error),
        };
    }
    let settings = Settings::load_or_last_good(args, &environment, &Host::of_this_process());
    let settings = match settings {
        Ok(settings) => settings,
        Err(error) => {
            let status = refused(&error);
            // A service manager tries again at once, and for ever.
            if Manager::of_this_process().is_there() {
                std::thread::sleep(REFUSED_PAUSE);
            }
            return status;
        }
    };
    crate::log::start(settings.log);
    if let Some(why) = &settings.refused {
        log::error!(
            "{why}; serving with the settings of the last good start until a reload or restart"
        );
    }
    if let Some(dir) = &args.private {
        crate::node::leftovers::sweep(dir);
    }
    match crate::start::run(settings, || {}) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the settings, and what a look does not tell.
fn show(settings: &Settings) -> ExitCode {
    let untold: String = settings.untold.lines().map(|line| format!("# {line}\n")).collect();
    let mut out = std::io::stdout();
    match write!(out, "{settings}{untold}").and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refused(&format!("the configuration cannot be written: {error}")),
    }
}

/// Prints help, the version, or what is wrong with the arguments. What was asked for and could not
/// be written is a failure.
pub fn say(answer: &clap::Error) -> ExitCode {
    let written = answer.print().and_then(|()| std::io::stdout().flush());
    match written {
        Err(error) if !answer.use_stderr() => refused(&format!("help cannot be written: {error}")),
        _ => ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(1)),
    }
}

/// Says why it does not run, before there is a log. Where stderr cannot be written, the exit status
/// alone tells.
fn refused(why: &dyn Display) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}{why}", crate::log::prefix(log::Level::Error));
    ExitCode::FAILURE
}

/// Examples and the environment, shown at the end of `--help`.
pub const AFTER_HELP: &str = "\
Settings come from: flag, then environment, then configuration file, then default.

Environment:
  FDBROKER_SOCKET         socket for clients, as --socket
  FDBROKER_ADMIN_SOCKET   socket for administrators, as --admin-socket
  FDBROKER_CONFIG         configuration file, as --config
  FDBROKER_MAX_FDS        as --max-fds
  FDBROKER_TABLE_FDS      as --table-fds
  FDBROKER_LOG            as --log

Examples:
  Show what this machine would run with, and from where each value comes:
    fdbrokerd --check-config
  Replace a running broker by this program, its clients go on:
    fdbrokerd --private /tmp/job-17 --takeover
  A broker for one job, in a directory of its own, with at most 4096 fds:
    fdbrokerd --private /tmp/job-17 --max-fds 4096
    FDBROKER_SOCKET=/tmp/job-17/fdbroker/broker.sock ./rank
  Any key of the configuration file can be set for one start:
    fdbrokerd --set limits.recall_timeout_ms=500 --set caps.client.open_leases=1000

Exit status: 0 ended by SIGTERM or SIGINT, or the configuration is good; 1 error; 2 usage.
Under a service manager with a store for fds (FileDescriptorStoreMax= of systemd), clients go on over a restart.
Signals: SIGTERM, SIGINT end it (a second one at once). SIGHUP has it read the configuration file again: caps of
every level and the log level change at once, the log names what needs a restart; a file with an error changes nothing.
What is above a lowered cap stays until it is given back, and nothing is added to it.";

/// What `--help` says first.
pub const ABOUT: &str = "\
The per-node broker for GPU-memory file descriptors.

Clients deposit the fd of an allocation once and get a 64-byte handle that can be copied by value; whoever
presents the handle gets a duplicate fd. The broker keeps every count of fds under a cap.";
