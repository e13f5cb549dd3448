//! The daemon's flags. Must never decide anything else: what a flag means, and what wins over it,
//! is in [`crate::settings`].

use crate::settings::{Environment, Host, Settings};
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs the daemon, or checks its configuration, as the flags say. Errors go to stderr with their
/// remedy.
pub fn run(args: &Args) -> ExitCode {
    let settings = Settings::load(args, &Environment::of_this_process(), &Host::of_this_process());
    let settings = match settings {
        Ok(settings) => settings,
        Err(error) => return refused(&error),
    };
    if args.check_config {
        let untold = match settings.preflight() {
            Ok(untold) => untold,
            Err(error) => return refused(&error),
        };
        let untold: String = untold.lines().map(|line| format!("# {line}\n")).collect();
        let mut out = std::io::stdout();
        return match write!(out, "{settings}{untold}").and_then(|()| out.flush()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => refused(&format!("the configuration cannot be written: {error}")),
        };
    }
    crate::log::start(settings.log);
    match crate::run(settings, || {}) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints help, the version, or what is wrong with the arguments. What was asked for and could not be written is a failure.
pub fn say(answer: &clap::Error) -> ExitCode {
    let written = answer.print().and_then(|()| std::io::stdout().flush());
    match written {
        Err(error) if !answer.use_stderr() => refused(&format!("help cannot be written: {error}")),
        _ => ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(1)),
    }
}

/// Says why it does not run, before there is a log. Where stderr cannot be written, the exit status alone tells.
fn refused(why: &dyn Display) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "fdbrokerd: {why}");
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

// A plain comment: a doc comment would become the help of the command that flattens this.
#[allow(missing_docs)]
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Configuration file (TOML). Default: /etc/fdbroker/fdbrokerd.toml if it exists; none with
    /// --private
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the effective settings, or what is wrong with them, and end
    #[arg(long)]
    pub check_config: bool,

    /// Socket for clients. Default: /run/fdbroker/broker.sock as root, else
    /// $XDG_RUNTIME_DIR/fdbroker/broker.sock
    #[arg(long, value_name = "PATH", conflicts_with = "private")]
    pub socket: Option<PathBuf>,

    /// Socket for administrators; the node key and the generation page stand beside it. Default:
    /// admin.sock in the directory of the clients' socket with "-admin" appended
    #[arg(long, value_name = "PATH", conflicts_with = "private")]
    pub admin_socket: Option<PathBuf>,

    /// Serve one user or job from DIR (made if missing, mode 0700): DIR/fdbroker/broker.sock,
    /// DIR/fdbroker-admin/admin.sock
    #[arg(long, value_name = "DIR")]
    pub private: Option<PathBuf>,

    /// Most fds of shared memory on the node: held here and granted to clients. Default: the size
    /// of the fd table
    #[arg(long, value_name = "N")]
    pub max_fds: Option<u64>,

    /// Size of the broker's own fd table. Default: the hard RLIMIT_NOFILE, at most 1048576
    #[arg(long, value_name = "N")]
    pub table_fds: Option<u64>,

    /// Set any key of the configuration file; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Log level: error, warn, info, debug. Default: info
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<log::LevelFilter>,

    /// Write "READY" and a newline to fd N when clients can connect, then close it
    #[arg(long, value_name = "N")]
    pub ready_fd: Option<i32>,

    /// End, as by SIGTERM, when fd N (a pipe or socket) reports the end of its file
    #[arg(long, value_name = "N")]
    pub until_eof: Option<i32>,

    /// Take over from the broker that serves the same place now: its clients go on and notice nothing,
    /// and it ends. For upgrades of a broker that no service manager restarts
    #[arg(long)]
    pub takeover: bool,

    /// Kernel features to do without, for tests: peer_pidfd, pidfd_open, dupfd_query, pass_rights
    #[arg(long, value_name = "LIST", hide = true)]
    pub without_kernel_features: Option<String>,
}
