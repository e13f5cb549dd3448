//! `fdbroker demo`: real processes share memory all-to-all, through the broker and directly, and every byte
//! is checked. Must never call anything right that was not looked at, nor leave a process or file behind.

pub mod args;
mod control;
mod device;
mod direct;
mod link;
mod mapping;
mod memory;
mod pattern;
pub mod plan;
pub mod rank;
mod ranks;
mod report;
mod sampler;
mod watch;

use crate::admin::{self, Admin};
use crate::error::{Context, Error, Result, exit};
use crate::output::Output;
use crate::output::say;
use crate::private_broker::{PrivateBroker, RuntimeDir};
use crate::signals::Signals;
use control::{Command, Report};
use indicatif::ProgressBar;
use nix::unistd::Pid;
use plan::{Memory, Plan, Way, Wishes, default_max_fds};
use ranks::Ranks;
use report::{DemoReport, Direct, Fds};
use sampler::Sampler;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use watch::{Part, Watch};

/// What the command line says.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Processes.
    pub ranks: u32,
    /// Buffers per rank.
    pub buffers: u32,
    /// Bytes per buffer.
    pub size_bytes: u64,
    /// What they are.
    pub memory: Memory,
    /// The cap; `None` = not given.
    pub max_fds: Option<u64>,
    /// Also the direct way, even with `json`.
    pub without_broker: bool,
    /// How long everything stays open.
    pub hold: Duration,
    /// Longest time for each way.
    pub timeout: Duration,
    /// One object instead of the table.
    pub json: bool,
}

/// Runs the demo; returns the exit status to end with.
pub fn run(options: Options) -> Result<u8> {
    let signals = Signals::take_over()?;
    let outer = Outer::find(&options)?;
    let Options { ranks, buffers, size_bytes, memory, .. } = options;
    let cap = match (&outer, options.max_fds) {
        (Some(outer), _) => outer.cap,
        (None, Some(cap)) => Some(cap),
        (None, None) => Some(default_max_fds(memory, ranks, buffers)?),
    };
    let mut plan =
        Plan::new(Wishes { ranks, buffers, size_bytes, memory, cap }, options.timeout_ms())?;
    if plan.size_bytes != size_bytes {
        say!(
            "fdbroker: --size {size_bytes} is made {}, whole {}",
            plan.size_bytes,
            plan.memory.granules()
        );
    }
    let mut report = {
        let mut broker = Broker::start(outer, cap)?;
        plan.dir = broker.dir().to_owned();
        with_broker(&plan, &mut broker, &options, &signals)?
    };
    if options.without_broker || !options.json {
        let dir = RuntimeDir::create()?;
        plan.dir = dir.path().to_owned();
        report.without_broker = Some(directly(&plan, &options, &signals)?);
    }
    let mut out = Output::stdout();
    match options.json {
        true => report.print_json(&mut out)?,
        false => report.print_table(&plan, &mut out)?,
    }
    out.finish()?;
    Ok(if report.is_success() { exit::OK } else { exit::ERROR })
}

impl Options {
    fn timeout_ms(&self) -> u64 {
        u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A broker that runs already and that the environment names.
struct Outer {
    socket: PathBuf,
    admin: PathBuf,
    cap: Option<u64>,
}

impl Outer {
    /// `--max-fds` asks for a broker of the demo's own.
    fn find(options: &Options) -> Result<Option<Self>> {
        let named = std::env::var_os("FDBROKER_SOCKET").filter(|value| !value.is_empty());
        let (Some(socket), None) = (named, options.max_fds) else { return Ok(None) };
        let admin = admin::find_socket(|name| std::env::var_os(name));
        let cap = Admin::connect(&admin)?.status()?.fds.cap.get();
        let cap = Some(cap).filter(|cap| *cap != u64::MAX);
        Ok(Some(Outer { socket: socket.into(), admin, cap }))
    }
}

/// The broker of this run.
enum Broker {
    /// Its own.
    Private(PrivateBroker),
    /// Another's, and a directory for the handles.
    Outer(Outer, RuntimeDir),
}

impl Broker {
    fn start(outer: Option<Outer>, cap: Option<u64>) -> Result<Self> {
        Ok(match outer {
            Some(outer) => Broker::Outer(outer, RuntimeDir::create()?),
            None => Broker::Private(PrivateBroker::start(cap)?),
        })
    }

    fn dir(&self) -> &Path {
        match self {
            Broker::Private(broker) => broker.dir(),
            Broker::Outer(_, dir) => dir.path(),
        }
    }

    fn socket(&self) -> PathBuf {
        match self {
            Broker::Private(broker) => broker.socket(),
            Broker::Outer(outer, _) => outer.socket.clone(),
        }
    }

    fn admin(&self) -> Result<Admin> {
        Admin::connect(&self.admin_socket())
    }

    fn admin_socket(&self) -> PathBuf {
        match self {
            Broker::Private(broker) => broker.admin_socket(),
            Broker::Outer(outer, _) => outer.admin.clone(),
        }
    }

    /// Its process, if it is ours to stop.
    fn pid(&self) -> Option<Pid> {
        match self {
            Broker::Private(broker) => Some(broker.pid()),
            Broker::Outer(..) => None,
        }
    }

    /// An error with its cause, if that was the broker's end.
    fn explain(&mut self, error: Error) -> Error {
        match (self, &error) {
            (_, Error::Interrupted(_)) => error,
            (Broker::Private(broker), _) => match broker.ended_by_now() {
                Some(end) => Error::Other(format!("the broker has ended ({end}): {error}")),
                None => error,
            },
            _ => error,
        }
    }
}

/// The way through the broker.
fn with_broker(
    plan: &Plan,
    broker: &mut Broker,
    options: &Options,
    signals: &Signals,
) -> Result<DemoReport> {
    let bar = watch::bar("with fdbroker", plan.opens());
    let outcome = share_by(plan, broker, options, signals, &bar);
    bar.finish_and_clear();
    outcome.map_err(|error| broker.explain(error))
}

fn share_by(
    plan: &Plan,
    broker: &Broker,
    options: &Options,
    signals: &Signals,
    bar: &ProgressBar,
) -> Result<DemoReport> {
    let start = Instant::now();
    let mut ranks = Ranks::start(plan, Way::Broker, Some(&broker.socket()))?;
    let mut processes = ranks.pids();
    // A broker of others is not ours to stop: then only the ranks are counted.
    processes.extend(broker.pid());
    let sampler = Sampler::new(processes, plan.memory.look());
    let mut watch = Watch::new(signals, start + options.timeout, sampler, bar.clone());
    watch.broker = broker.pid();
    watch.ledger = Some(broker.admin()?);

    let mut report = share(plan, &mut ranks, &mut watch)?;
    if !options.hold.is_zero() {
        bar.suspend(|| note_hold(broker, options.hold));
        watch.hold(&mut ranks, options.hold)?;
    }
    ranks.tell(Command::Release)?;
    watch.part(&mut ranks, plan.ranks)?;
    ranks.finish()?;

    let status = broker.admin()?.status()?;
    let rank_peaks = watch.sampler.peaks.iter().take(plan.ranks as usize);
    report.elapsed_s = round_to_ms(start.elapsed().saturating_sub(options.hold));
    report.failures += watch.unexplained;
    report.samples = watch.sampler.samples - watch.unexplained;
    if report.samples == 0 {
        say!(
            "fdbroker: no count in /proc confirms the broker's: the processes could not be stopped"
        );
        report.failures += 1;
    }
    report.fds.broker_peak = status.held_fds.peak.get();
    report.fds.rank_peak = rank_peaks.copied().fold(report.fds.rank_peak, u64::max);
    report.fds.node_peak = status.fds.peak.get();
    Ok(report)
}

fn note_hold(broker: &Broker, time: Duration) {
    say!(
        "fdbroker: all is open and mapped for {} s. Look at it from another terminal:\n  FDBROKER_ADMIN_SOCKET={} fdbroker ls      (or: status, holders)",
        time.as_secs_f64(),
        broker.admin_socket().display(),
    );
}

fn round_to_ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

/// Register, open and check, check the marks. The fds are filled in later, but for the ranks' own word.
fn share(plan: &Plan, ranks: &mut Ranks, watch: &mut Watch<'_>) -> Result<DemoReport> {
    let mut report = DemoReport {
        ranks: plan.ranks,
        buffers: plan.buffers,
        size_bytes: plan.size_bytes,
        memory: plan.memory.name(),
        verified_bytes: 0,
        mismatches: 0,
        failures: 0,
        elapsed_s: 0.0,
        fds: Fds { cap: plan.max_fds, broker_peak: 0, rank_peak: 0, node_peak: 0 },
        without_broker: None,
        samples: 0,
    };
    watch.part(ranks, plan.ranks)?;
    watch.sampler.take_base().context(|| "count fds in /proc")?;
    for command in [Command::Register, Command::Open, Command::Check] {
        ranks.tell(command)?;
        let Part::Ended(reports) = watch.part(ranks, plan.ranks)? else {
            return Err(Error::Other("a rank has no free fd, in spite of the broker".into()));
        };
        for one in reports {
            report.mismatches += one.mismatches();
            if let Report::Opened(opened) = one {
                report.verified_bytes += opened.verified_bytes;
                report.failures += opened.failures;
                report.fds.rank_peak = report.fds.rank_peak.max(opened.fds_peak);
            }
        }
    }
    Ok(report)
}

/// The direct way: until all is shared or a process has no free fd.
fn directly(plan: &Plan, options: &Options, signals: &Signals) -> Result<Direct> {
    let ranks = Ranks::start(plan, Way::Direct, None)?;
    let sampler = Sampler::new(ranks.pids(), plan.memory.look());
    let bar = watch::bar("directly     ", plan.opens());
    let deadline = Instant::now() + options.timeout;
    let mut watch = Watch::new(signals, deadline, sampler, bar.clone());
    let outcome = share_directly(plan, ranks, &mut watch);
    bar.finish_and_clear();
    let failed = outcome?;
    Ok(Direct {
        rank_peak: watch.sampler.peaks.iter().max().copied().unwrap_or(0),
        node_peak: watch.sampler.total_peak,
        failed_at: failed.map(|(_, fds)| fds),
        failed_rank: failed.map(|(rank, _)| rank),
    })
}

/// `Some`: which rank ran out of fds, and how many there were on the node then.
fn share_directly(
    plan: &Plan,
    mut ranks: Ranks,
    watch: &mut Watch<'_>,
) -> Result<Option<(u32, u64)>> {
    watch.part(&mut ranks, plan.ranks)?;
    watch.sampler.take_base().context(|| "count fds in /proc")?;
    for command in [Command::Register, Command::Open, Command::Check, Command::Release] {
        ranks.tell(command)?;
        let reports = match watch.part(&mut ranks, plan.ranks)? {
            Part::Ended(reports) => reports,
            Part::OutOfFds { rank } => {
                let sample = watch.sample()?;
                let fds = sample.map_or(watch.sampler.total_peak, |sample| sample.total);
                return Ok(Some((rank, fds)));
            }
        };
        let wrong: u64 = reports.iter().map(Report::mismatches).sum();
        if wrong > 0 {
            return Err(Error::Other(format!("the direct way has shown {wrong} wrong words")));
        }
    }
    ranks.finish()?;
    Ok(None)
}
