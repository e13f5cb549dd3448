//! The samples of one job, never more than a bounded number of them, and the lines that are made of
//! them. Must never call a job idle that was not looked at.

use crate::error::Error;
use fdbroker_protocol::admin::NodeStatus;
use std::time::Duration;

/// Time between two looks at first: a short job shall have a picture, too.
const FIRST_INTERVAL: Duration = Duration::from_millis(10);

/// Most samples: more than a screen has columns. Beyond them every second one is dropped, and the
/// interval doubles.
const MOST_SAMPLES: usize = 2048;

/// The counts at one moment, in fds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Since the start of the job.
    pub at: Duration,
    /// Of shared memory on the node, all together: the cap is for these, and for what is reserved.
    pub node: u64,
    /// Open in the broker.
    pub broker: u64,
    /// Open in the ranks: duplicates on lease.
    pub ranks: u64,
    /// Open in the ranks if each of them kept an fd of every buffer that it uses, as without a
    /// broker.
    pub direct: u64,
    /// The node's cap; `None`: there is none.
    pub cap: Option<u64>,
}

impl Sample {
    /// From the broker's answer.
    pub fn new(status: &NodeStatus, at: Duration) -> Sample {
        Sample {
            at,
            node: status.uses.fds.now.get(),
            broker: status.uses.held_fds.now.get(),
            ranks: status.uses.open_leases.now.get(),
            direct: status.uses.open_leases.now.get() + status.uses.mapped_leases.now.get(),
            cap: status.uses.fds.known_cap(),
        }
    }
}

/// One line of the report: a line in the picture, a column of the table.
#[derive(Debug)]
pub struct Line {
    /// In the picture's legend.
    pub name: &'static str,
    /// The heading in the table.
    pub column: &'static str,
    /// Red, green, blue.
    pub colour: (u8, u8, u8),
    /// Its number in a sample.
    pub value: fn(&Sample) -> Option<u64>,
}

/// Every line, in the order of the columns.
pub const LINES: [Line; 5] = [
    Line {
        name: "direct way",
        column: "direct_way_fds",
        colour: (176, 122, 161),
        value: |it| Some(it.direct),
    },
    Line { name: "node", column: "fds", colour: (34, 34, 34), value: |it| Some(it.node) },
    Line {
        name: "broker",
        column: "held_fds",
        colour: (31, 119, 180),
        value: |it| Some(it.broker),
    },
    Line { name: "ranks", column: "rank_fds", colour: (44, 160, 44), value: |it| Some(it.ranks) },
    Line { name: "cap", column: "fds_cap", colour: (214, 39, 40), value: |it| it.cap },
];

/// Samples at equal distances.
#[derive(Debug)]
pub struct Series {
    /// In the order of their times.
    pub samples: Vec<Sample>,
    /// Time between two of them.
    pub interval: Duration,
    /// Why the sampling ended before the job did.
    pub end: Option<Error>,
}

impl Default for Series {
    fn default() -> Self {
        Series { samples: Vec::new(), interval: FIRST_INTERVAL, end: None }
    }
}

impl Series {
    pub fn push(&mut self, sample: Sample) {
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

    /// The reason, if there is nothing to draw.
    pub fn nothing_to_draw(&self) -> Option<String> {
        let is_idle = |it: &Sample| it.node == 0 && it.direct == 0;
        match (&self.end, self.samples.len()) {
            (Some(error), 0) => Some(format!("the broker gave no numbers: {error}")),
            (None, 0) => Some("the broker was not looked at".into()),
            (_, looks) if self.samples.iter().all(is_idle) => Some(format!(
                "the broker had no fds of the job in {looks} looks, one every {} ms; the job shared no memory, or ended too soon",
                self.interval.as_millis()
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_when_more_than_are_kept_then_half_as_many_of_the_whole_time() {
        let mut series = Series::default();
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

    #[test]
    fn nothing_to_draw_when_there_is_no_number_then_the_reason() {
        let mut series = Series::default();
        assert!(series.nothing_to_draw().is_some_and(|reason| reason.contains("not looked at")));
        series.end = Some(Error::Other("gone".into()));
        assert!(series.nothing_to_draw().is_some_and(|reason| reason.ends_with("gone")));
        series.push(Sample { cap: Some(64), ..Sample::default() });
        assert!(series.nothing_to_draw().is_some_and(|reason| reason.contains("1 looks")));
        series.push(Sample { node: 1, ..Sample::default() });
        assert_eq!(series.nothing_to_draw(), None);
    }
}
