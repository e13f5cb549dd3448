//! Brings ranks through their parts while it takes samples, shows progress and minds signals, deaths and the
//! clock. Must never wait without a bound, nor take a sample that the ledger does not explain for right.

use super::control::Report;
use super::ranks::Ranks;
use super::sampler::{Sample, Sampler, has_ended};
use crate::admin::Admin;
use crate::error::{Context, Error, Result};
use crate::output::say;
use crate::signals::Signals;
use indicatif::{ProgressBar, ProgressStyle};
use nix::unistd::Pid;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// What watches one way of sharing.
pub struct Watch<'a> {
    /// Ends the run.
    pub signals: &'a Signals,
    /// When the run has taken too long.
    pub deadline: Instant,
    /// The broker's process, where it is a child of this one.
    pub broker: Option<Pid>,
    /// Counts in /proc.
    pub sampler: Sampler,
    /// The broker's word, to compare with.
    pub ledger: Option<Admin>,
    /// Shows how far it is.
    pub bar: ProgressBar,
    /// Samples that exceeded the ledger's peak.
    pub unexplained: u64,
    progress: Vec<u64>,
}

impl<'a> Watch<'a> {
    /// Nothing has happened yet.
    pub fn new(
        signals: &'a Signals,
        deadline: Instant,
        sampler: Sampler,
        bar: ProgressBar,
    ) -> Self {
        let (broker, ledger, progress) = (None, None, Vec::new());
        Watch { signals, deadline, broker, sampler, ledger, bar, unexplained: 0, progress }
    }

    /// Waits until every rank has ended the part under way, or one has no free fd.
    pub fn part(&mut self, ranks: &mut Ranks, count: u32) -> Result<Part> {
        let mut ended: Vec<Option<Report>> = vec![None; count as usize];
        self.progress.resize(count as usize, 0);
        loop {
            for (rank, report) in self.next_reports(ranks)? {
                match report {
                    Report::OutOfFds => return Ok(Part::OutOfFds { rank }),
                    Report::Progress { opened } => self.show(rank, opened),
                    report if report.ends_a_part() => {
                        if let Report::Opened(opened) = &report {
                            self.show(rank, opened.buffers);
                        }
                        ended[rank as usize] = Some(report);
                    }
                    report => {
                        return Err(Error::Other(format!("rank {rank} reports {report:?}")));
                    }
                }
            }
            if ended.iter().all(Option::is_some) {
                self.sample()?;
                return Ok(Part::Ended(ended.into_iter().flatten().collect()));
            }
        }
    }

    /// Lets things stand for `time`, while ranks and signals are minded.
    pub fn hold(&mut self, ranks: &mut Ranks, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        self.deadline += time;
        while Instant::now() < until {
            self.check_surroundings()?;
            ranks.reports(self.signals.as_fd(), until)?;
        }
        Ok(())
    }

    fn next_reports(&mut self, ranks: &mut Ranks) -> Result<Vec<(u32, Report)>> {
        self.check_surroundings()?;
        let now = Instant::now();
        if now > self.deadline {
            return Err(Error::Other(
                "not finished in time; give more with --timeout, or see what the broker says with FDBROKER_LOG=debug".into(),
            ));
        }
        if now >= self.sampler.next_due() {
            self.sample()?;
        }
        let until = self.deadline.min(self.sampler.next_due());
        ranks.reports(self.signals.as_fd(), until)
    }

    /// Signals, and the broker's end, which comes with one.
    fn check_surroundings(&self) -> Result<()> {
        if let Some(received) = self.signals.next_end() {
            return Err(Error::Interrupted(received.signal));
        }
        match self.broker.is_some_and(has_ended) {
            true => Err(Error::Other("nobody holds the fds any more".into())),
            false => Ok(()),
        }
    }

    /// Counts, and asks the broker whether it knows of that many.
    pub fn sample(&mut self) -> Result<Option<Sample>> {
        let known = self.sampler.total_peak;
        let sample = self.sampler.sample().context(|| "count fds in /proc")?;
        if let (Some(sample), Some(ledger)) = (&sample, &mut self.ledger)
            // What was explained before needs no second question.
            && sample.total > known
        {
            let peak = ledger.status()?.fds.peak.get();
            if sample.total > peak {
                self.unexplained += 1;
                self.bar.suspend(|| {
                    say!(
                        "fdbroker: {} fds of shared memory were found open, and the broker's ledger knows of {peak} at most",
                        sample.total
                    );
                });
            }
        }
        Ok(sample)
    }

    fn show(&mut self, rank: u32, opened: u64) {
        self.progress[rank as usize] = opened;
        self.bar.set_position(self.progress.iter().sum());
    }
}

/// How a part ended.
pub enum Part {
    /// All ranks have ended it; their reports, by rank.
    Ended(Vec<Report>),
    /// One has no free fd.
    OutOfFds {
        /// Which.
        rank: u32,
    },
}

/// A progress bar on stderr; invisible when that is no terminal.
pub fn bar(what: &'static str, opens: u64) -> ProgressBar {
    let bar = ProgressBar::new(opens);
    let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} opened");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}
