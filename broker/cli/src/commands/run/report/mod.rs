//! `fdbroker run --report FILE.svg`: the job's fd counts over time, asked of its broker while it runs. Must never hold the job
//! up, nor end it because the report cannot be made; what is kept of a long job is bounded.

mod svg;

use crate::admin::Admin;
use crate::error::{Context, Result};
use crate::output::say;
use crate::records::StatusView;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two samples of a job that has just begun; each costs the broker some 10 us.
const FIRST_INTERVAL: Duration = Duration::from_millis(10);

/// Samples kept: more than a screen has columns. Beyond them every second one is dropped, and the interval doubles.
const MOST_SAMPLES: usize = 2048;

/// The counts at one moment, in fds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Since the start of the job.
    pub at: Duration,
    /// Of shared memory on the node, all together: what the cap is for.
    pub node: u64,
    /// Held by the broker, or promised a place there.
    pub broker: u64,
    /// Open in the ranks: duplicates on lease, and what they keep of their own memory.
    pub ranks: u64,
    /// What the same sharing takes without a broker: an fd of each allocation in its owner, and one of each lease in who
    /// has it, mapped or not.
    pub direct: u64,
    /// The node's cap; `None` = none.
    pub cap: Option<u64>,
}

impl Sample {
    fn of(status: &StatusView, at: Duration) -> Sample {
        let StatusView { fds, held_fds, open_leases, own_fds, allocations, mapped_leases, .. } =
            status;
        Sample {
            at,
            node: fds.now,
            broker: held_fds.now,
            ranks: open_leases.now + own_fds.now,
            direct: allocations.now + open_leases.now + mapped_leases.now,
            cap: fds.cap,
        }
    }
}

/// Samples at equal distances, never more than a bounded number of them.
#[derive(Debug)]
struct Series {
    samples: Vec<Sample>,
    interval: Duration,
}

impl Series {
    fn new() -> Self {
        Series { samples: Vec::with_capacity(MOST_SAMPLES), interval: FIRST_INTERVAL }
    }

    fn push(&mut self, sample: Sample) {
        if self.samples.len() == MOST_SAMPLES {
            let mut is_kept = false;
            self.samples.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.interval *= 2;
        }
        self.samples.push(sample);
    }
}

/// A report that is being made.
#[derive(Debug)]
pub struct Report {
    path: PathBuf,
    end: SyncSender<()>,
    sampler: JoinHandle<Series>,
}

impl Report {
    /// Samples the broker at `admin_socket` from now on.
    ///
    /// # Errors
    /// `path` cannot be written: said before the job begins.
    pub fn start(path: &Path, admin_socket: PathBuf) -> Result<Report> {
        std::fs::write(path, "").context(|| format!("write {}", path.display()))?;
        let (end, ended) = sync_channel(0);
        let began = Instant::now();
        let sampler = std::thread::Builder::new().name("report".into());
        let sampler = sampler.spawn(move || sample(&admin_socket, &ended, began));
        let sampler = sampler.context(|| "start a thread for the report")?;
        Ok(Report { path: path.to_owned(), end, sampler })
    }

    /// The job is over: draws what was seen of it.
    pub fn finish(self, command: &str) -> Result<()> {
        // The sampler waits for this; nothing is sent.
        drop(self.end);
        let series = self.sampler.join().unwrap_or_else(|_| Series::new());
        let picture = svg::draw(&series.samples, command);
        std::fs::write(&self.path, picture).context(|| format!("write {}", self.path.display()))?;
        say!("fdbroker: {} shows its fds over time", self.path.display());
        Ok(())
    }
}

/// Until the other end of `ended` is dropped, or the broker is gone: then the report shows what there was.
fn sample(admin_socket: &Path, ended: &Receiver<()>, began: Instant) -> Series {
    let mut series = Series::new();
    let Ok(mut admin) = Admin::connect(admin_socket) else { return series };
    loop {
        match admin.status() {
            Ok(status) => series.push(Sample::of(&StatusView::from(&status), began.elapsed())),
            Err(_) => return series,
        }
        if ended.recv_timeout(series.interval) == Err(RecvTimeoutError::Disconnected) {
            return series;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_when_more_than_are_kept_then_half_as_many_of_the_whole_time() {
        let mut series = Series::new();
        let sample =
            |number: u64| Sample { at: Duration::from_millis(number), ..Sample::default() };
        (0..=MOST_SAMPLES as u64).for_each(|number| series.push(sample(number)));
        assert_eq!(series.samples.len(), MOST_SAMPLES / 2 + 1);
        assert_eq!(series.interval, FIRST_INTERVAL * 2);
        assert_eq!(series.samples[1].at, Duration::from_millis(2));
        assert_eq!(
            series.samples.last().map(|it| it.at),
            Some(Duration::from_millis(MOST_SAMPLES as u64))
        );
    }
}
