//! Brings ranks through their parts, one way of sharing at a time. Takes samples, shows progress,
//! and looks for signals, deaths and the end of the time. Must never wait without a bound, nor
//! believe a sample that the ledger does not explain.

use crate::control::{Command, Report};
use crate::error::{Error, Result, os, other};
use crate::host::{Broker, Host, Ledger};
use crate::plan::{Plan, Way};
use crate::ranks::Ranks;
use crate::report::{DemoReport, Direct};
use crate::sampler::{Sampler, has_ended};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// How often signals and the broker's process are looked at, while nothing comes from the ranks.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Shares memory through `broker`, and keeps everything open for `hold` before the end.
///
/// # Errors
/// A rank or the broker failed or ended, the time is over, or a signal came.
pub fn through_broker(
    plan: &Plan,
    hold: Duration,
    broker: &mut dyn Broker,
    host: &dyn Host,
) -> Result<DemoReport> {
    let begin = Instant::now();
    let mut run = Run::start(plan, Way::Broker, Some(broker), host)?;
    let mut report = DemoReport::new(plan);
    run.connect()?;
    for command in [Command::Register, Command::Open, Command::Check] {
        let Part::Ended(reports) = run.part(command)? else {
            return other("a rank has no free fd, in spite of the broker");
        };
        for (rank, one) in (0..).zip(reports) {
            report.mismatches += one.mismatches();
            let Report::Opened(opened) = one else { continue };
            report.verified_bytes += opened.verified_bytes;
            report.failures += opened.failures;
            report.fds.rank_peak = report.fds.rank_peak.max(opened.fds_peak);
            if let Some(first) = opened.first_failure {
                let count = opened.failures;
                run.say(&format!("rank {rank} could not open {count} buffers; the first: {first}"));
            }
        }
    }
    if !hold.is_zero() {
        run.hold(hold)?;
    }
    run.part(Command::Release)?;
    run.ranks.finish()?;

    report.elapsed_s = round_to_ms(begin.elapsed().saturating_sub(hold));
    report.failures += run.unexplained;
    report.samples = run.sampler.samples - run.unexplained;
    if report.samples == 0 {
        run.say("no count in /proc confirms the broker's: the processes could not be stopped");
        report.failures += 1;
    }
    let rank_peaks = run.sampler.peaks.iter().take(plan.ranks as usize);
    report.fds.rank_peak = rank_peaks.copied().fold(report.fds.rank_peak, u64::max);
    drop(run);
    let ledger = broker.ledger()?;
    report.fds.broker_peak = ledger.broker_peak;
    report.fds.node_peak = ledger.node_peak;
    Ok(report)
}

/// Shares memory from rank to rank, until everything is shared or a process has no free fd.
///
/// # Errors
/// As [`through_broker`]; a wrong word is one, too.
pub fn directly(plan: &Plan, host: &dyn Host) -> Result<Direct> {
    let mut run = Run::start(plan, Way::Direct, None, host)?;
    run.connect()?;
    let mut failed = None;
    for command in [Command::Register, Command::Open, Command::Check, Command::Release] {
        match run.part(command)? {
            Part::Ended(reports) => {
                let wrong: u64 = reports.iter().map(Report::mismatches).sum();
                if wrong > 0 {
                    return other(format!("the direct way has shown {wrong} wrong words"));
                }
            }
            Part::OutOfFds { rank } => {
                let sample = run.sample()?;
                failed = Some((rank, sample.unwrap_or(run.sampler.total_peak)));
                break;
            }
        }
    }
    if failed.is_none() {
        run.ranks.finish()?;
    }
    Ok(Direct {
        rank_peak: run.sampler.peaks.iter().max().copied().unwrap_or(0),
        node_peak: run.sampler.total_peak,
        failed_at: failed.map(|(_, fds)| fds),
        failed_rank: failed.map(|(rank, _)| rank),
    })
}

fn round_to_ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

/// How a part of the demo ended.
enum Part {
    /// All ranks have ended it; their reports, by rank.
    Ended(Vec<Report>),
    /// This rank has no free fd.
    OutOfFds { rank: u32 },
}

/// One way of sharing, while it runs.
struct Run<'a> {
    host: &'a dyn Host,
    ranks: Ranks,
    /// For the way through it: its ledger is compared with the samples.
    broker: Option<&'a mut dyn Broker>,
    /// The broker's process, where that is a child of this one.
    broker_pid: Option<Pid>,
    sampler: Sampler,
    deadline: Instant,
    bar: ProgressBar,
    /// Buffers that each rank has opened.
    progress: Vec<u64>,
    /// Samples that exceeded the ledger's peak.
    unexplained: u64,
}

impl<'a> Run<'a> {
    fn start(
        plan: &Plan,
        way: Way,
        broker: Option<&'a mut dyn Broker>,
        host: &'a dyn Host,
    ) -> Result<Self> {
        let deadline = Instant::now() + Duration::from_millis(plan.timeout_ms);
        let socket = broker.as_ref().map(|broker| broker.socket());
        let ranks = Ranks::start(plan, way, socket, host)?;
        let broker_pid = broker.as_ref().and_then(|broker| broker.pid());
        let mut processes = ranks.pids();
        // Another user of an outer broker must not be disturbed: without a pid only the ranks are
        // stopped and counted.
        processes.extend(broker_pid);
        let sampler = Sampler::new(processes, plan.memory.look());
        let (bar, progress) = (bar(way, plan.opens()), vec![0; plan.ranks as usize]);
        Ok(Run {
            host,
            ranks,
            broker,
            broker_pid,
            sampler,
            deadline,
            bar,
            progress,
            unexplained: 0,
        })
    }

    /// The first part, which needs no command.
    fn connect(&mut self) -> Result<()> {
        self.wait_for_all()?;
        self.sampler.take_base().map_err(os("count fds in /proc"))
    }

    fn part(&mut self, command: Command) -> Result<Part> {
        self.ranks.tell(command)?;
        self.wait_for_all()
    }

    /// Waits until every rank has ended the part under way, or one has no free fd.
    fn wait_for_all(&mut self) -> Result<Part> {
        let mut ended: Vec<Option<Report>> = vec![None; self.progress.len()];
        while ended.iter().any(Option::is_none) {
            let Some((rank, report)) = self.next_report()? else { continue };
            match report {
                Report::OutOfFds => return Ok(Part::OutOfFds { rank }),
                Report::Progress(opened) => self.show(rank, opened),
                report => {
                    if let Report::Opened(opened) = &report {
                        self.show(rank, opened.buffers);
                    }
                    ended[rank as usize] = Some(report);
                }
            }
        }
        self.sample()?;
        Ok(Part::Ended(ended.into_iter().flatten().collect()))
    }

    fn next_report(&mut self) -> Result<Option<(u32, Report)>> {
        self.check_surroundings()?;
        let now = Instant::now();
        if now > self.deadline {
            return other(
                "not finished in time; give more with --timeout, or see what the broker says with FDBROKER_LOG=debug",
            );
        }
        if now >= self.sampler.next_due {
            self.sample()?;
        }
        self.ranks.next_report(self.deadline.min(self.sampler.next_due).min(now + LOOK_INTERVAL))
    }

    /// Keeps everything open for `time`.
    fn hold(&mut self, time: Duration) -> Result<()> {
        if let Some(broker) = &self.broker {
            self.bar.suspend(|| broker.note_hold(time));
        }
        let until = Instant::now() + time;
        self.deadline += time;
        while Instant::now() < until {
            self.check_surroundings()?;
            self.ranks.next_report(until.min(Instant::now() + LOOK_INTERVAL))?;
        }
        Ok(())
    }

    /// Signals, and the broker's end.
    fn check_surroundings(&self) -> Result<()> {
        if let Some(signal) = self.host.interrupted() {
            return Err(Error::Interrupted(signal));
        }
        if self.broker_pid.is_some_and(has_ended) {
            other("the fds that it held are closed")
        } else {
            Ok(())
        }
    }

    /// Counts, and asks the broker whether it knows of that many.
    fn sample(&mut self) -> Result<Option<u64>> {
        let known = self.sampler.total_peak;
        let sample = self.sampler.sample().map_err(os("count fds in /proc"))?;
        // A number that was explained before needs no second question.
        let (Some(total), Some(broker)) = (sample, &mut self.broker) else {
            return Ok(sample);
        };
        if total > known {
            let Ledger { node_peak, reserved_peak, .. } = broker.ledger()?;
            let peak = node_peak + reserved_peak;
            if total > peak {
                self.unexplained += 1;
                self.say(&format!(
                    "{total} fds of shared memory were found open, and the broker's ledger knows of {peak} at most"
                ));
            }
        }
        Ok(sample)
    }

    fn show(&mut self, rank: u32, opened: u64) {
        self.progress[rank as usize] = opened;
        self.bar.set_position(self.progress.iter().sum());
    }

    fn say(&self, line: &str) {
        self.bar.suspend(|| self.host.say(line));
    }
}

/// A progress bar on stderr; invisible where stderr is no terminal.
fn bar(way: Way, opens: u64) -> ProgressBar {
    let bar = ProgressBar::new(opens).with_finish(ProgressFinish::AndClear);
    let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} opened");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_message(match way {
        Way::Broker => "with fdbroker",
        Way::Direct => "directly     ",
    });
    bar
}
