//! `fdbroker demo`: gives the demo a broker and its rank processes, and prints the outcome. Must
//! never leave a broker or a folder behind. What the demo does is in the crate `fdbroker-demo`.

mod args;
mod table;

pub use args::{Args, RankArgs};

use crate::admin::{self, Admin};
use crate::error::{Error, Result, exit};
use crate::output::{Output, say};
use crate::private_broker::{PrivateBroker, RuntimeDir, SELF};
use crate::signals::{self, Signals};
use fdbroker_demo::{DemoReport, Host, Ledger, Plan, Wishes};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The hidden command of a rank.
const RANK: &str = "demo-rank";

/// Runs the demo; returns the exit status to end with.
pub fn run(args: &Args) -> Result<u8> {
    let command = ThisCommand(Signals::take_over()?);
    let named = Broker::named(args)?;
    let mut wishes = Wishes {
        ranks: args.ranks,
        buffers: args.buffers,
        size_bytes: args.size,
        memory: args.memory,
        cap: args.max_fds,
        timeout_ms: args.timeout * 1000,
    };
    if let Some((_, cap)) = &named {
        wishes.cap = *cap;
    } else if wishes.cap.is_none() {
        wishes.cap = Some(fdbroker_demo::default_max_fds(&wishes, &command)?);
    }
    let mut plan = Plan::new(wishes)?;
    if plan.size_bytes != args.size {
        let (size, granules) = (plan.size_bytes, plan.memory.granules());
        say!("fdbroker: --size {} is made {size}, whole {granules}", args.size);
    }
    let mut report = {
        let broker = named.map_or_else(|| Broker::start(wishes.cap), |(broker, _)| Ok(broker))?;
        with_broker(&mut plan, broker, Duration::from_secs(args.hold), &command)?
    };
    if args.without_broker || !args.json {
        let dir = RuntimeDir::create()?;
        plan.dir = dir.path().to_owned();
        report.without_broker = Some(fdbroker_demo::directly(&plan, &command)?);
    }
    let mut out = Output::stdout();
    if args.json {
        out.json_line(&report)?;
    } else {
        table::print(&report, &plan, &mut out)?;
    }
    out.finish()?;
    Ok(if report.is_success() { exit::OK } else { exit::ERROR })
}

fn with_broker(
    plan: &mut Plan,
    mut broker: Broker,
    hold: Duration,
    command: &ThisCommand,
) -> Result<DemoReport> {
    plan.dir = broker.dir.clone();
    let outcome = fdbroker_demo::through_broker(plan, hold, &mut broker, command);
    outcome.map_err(|error| broker.explain(error.into()))
}

/// Runs one rank; its parent gives it its assignment.
pub fn run_rank(args: &RankArgs) -> Result<()> {
    signals::restore();
    Ok(fdbroker_demo::rank_main(&args.assignment)?)
}

/// This program, as the demo sees it.
struct ThisCommand(Signals);

impl Host for ThisCommand {
    fn rank(&self, assignment: &str) -> Command {
        let mut command = Command::new(SELF);
        command.arg0("fdbroker").args([RANK, assignment]);
        // Out of the terminal's foreground group: on Ctrl-C the parent ends the ranks in order.
        command.process_group(0);
        signals::wake_when_orphaned(&mut command);
        command
    }

    fn interrupted(&self) -> Option<Signal> {
        self.0.next_end().map(|received| received.signal)
    }

    fn say(&self, line: &str) {
        say!("fdbroker: {line}");
    }
}

/// The broker of this run.
struct Broker {
    socket: PathBuf,
    admin_socket: PathBuf,
    admin: Admin,
    /// A folder for the handles.
    dir: PathBuf,
    /// `Some` if it was started for the demo; else it is somebody else's.
    private: Option<PrivateBroker>,
    /// Goes away with this value. A private broker has one of its own.
    _own_dir: Option<RuntimeDir>,
}

impl Broker {
    /// The broker that runs already and that the environment names, and its cap. `None` with
    /// `--max-fds`, too, which asks for a broker of the demo's own.
    fn named(args: &Args) -> Result<Option<(Self, Option<u64>)>> {
        let named = std::env::var_os("FDBROKER_SOCKET").filter(|value| !value.is_empty());
        let (Some(socket), None) = (named, args.max_fds) else { return Ok(None) };
        let admin_socket = admin::find_socket(|name| std::env::var_os(name));
        let mut admin = Admin::connect(&admin_socket)?;
        let cap = admin.status()?.uses.fds.cap.get();
        let dir = RuntimeDir::create()?;
        let broker = Broker {
            socket: socket.into(),
            admin_socket,
            admin,
            dir: dir.path().to_owned(),
            private: None,
            _own_dir: Some(dir),
        };
        Ok(Some((broker, Some(cap).filter(|cap| *cap != u64::MAX))))
    }

    fn start(cap: Option<u64>) -> Result<Self> {
        let private = PrivateBroker::start(cap, false)?;
        Ok(Broker {
            socket: private.socket(),
            admin_socket: private.admin_socket(),
            admin: Admin::connect(&private.admin_socket())?,
            dir: private.dir().to_owned(),
            private: Some(private),
            _own_dir: None,
        })
    }

    /// Adds the broker's end to an error, if it has ended.
    fn explain(&mut self, error: Error) -> Error {
        if let Error::Interrupted(_) = error {
            return error;
        }
        match self.private.as_mut().and_then(PrivateBroker::ended_by_now) {
            Some(end) => Error::Other(format!("the broker has ended ({end}): {error}")),
            None => error,
        }
    }
}

impl fdbroker_demo::Broker for Broker {
    fn socket(&self) -> &Path {
        &self.socket
    }

    fn pid(&self) -> Option<Pid> {
        self.private.as_ref().map(PrivateBroker::pid)
    }

    fn ledger(&mut self) -> fdbroker_demo::Result<Ledger> {
        let failed = |error| fdbroker_demo::Error::Host(Box::new(error));
        let uses = self.admin.status().map_err(failed)?.uses;
        Ok(Ledger {
            broker_peak: uses.held_fds.peak.get(),
            node_peak: uses.fds.peak.get() + uses.own_fds.peak.get(),
            reserved_peak: uses.reserved_places.peak.get(),
        })
    }

    fn note_hold(&self, time: Duration) {
        say!(
            "fdbroker: all is open and mapped for {} s. Look at it from another terminal:\n  FDBROKER_ADMIN_SOCKET={} fdbroker ls      (or: status, holders)",
            time.as_secs_f64(),
            self.admin_socket.display(),
        );
    }
}
