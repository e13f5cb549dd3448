//! The outcome of the demo. Must never round or leave out a number that decides whether it went
//! well.

use crate::plan::Plan;
use serde::Serialize;

/// The outcome, in the order of its JSON. The names are promised to scripts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DemoReport {
    /// Number of processes.
    pub ranks: u32,
    /// Number of buffers of each rank.
    pub buffers: u32,
    /// Bytes of each buffer, as rounded up.
    pub size_bytes: u64,
    /// memfd, udmabuf, cuda or level-zero.
    pub memory: &'static str,
    /// Bytes that readers have read and compared.
    pub verified_bytes: u64,
    /// 8-byte words that were wrong, data and marks.
    pub mismatches: u64,
    /// Buffers that could not be opened, and samples that the ledger does not explain.
    pub failures: u64,
    /// From the start of the ranks until all have let go, without the time that everything was kept
    /// open.
    pub elapsed_s: f64,
    /// Fds with the broker.
    pub fds: Fds,
    /// Without it; `None` unless asked for.
    pub without_broker: Option<Direct>,
    /// Counts in /proc, taken with all processes stopped, that the ledger explains.
    #[serde(skip)]
    pub samples: u64,
}

/// Fds of shared memory, with the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fds {
    /// The node's cap; `None`: there is none.
    pub cap: Option<u64>,
    /// Most fds in the broker at a time.
    pub broker_peak: u64,
    /// Most fds in one rank at a time.
    pub rank_peak: u64,
    /// Most in broker and ranks together, arenas included.
    pub node_peak: u64,
}

/// Fds of shared memory, without the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Direct {
    /// Most fds in one rank at a time.
    pub rank_peak: u64,
    /// Most in all ranks together.
    pub node_peak: u64,
    /// Open on the node when a rank had no free fd; `None`: every rank had one to the end.
    pub failed_at: Option<u64>,
    /// The first rank without a free fd.
    #[serde(skip)]
    pub failed_rank: Option<u32>,
}

impl DemoReport {
    /// With the numbers of the plan; nothing is counted yet.
    pub(crate) fn new(plan: &Plan) -> Self {
        DemoReport {
            ranks: plan.ranks,
            buffers: plan.buffers,
            size_bytes: plan.size_bytes,
            memory: plan.memory.name(),
            fds: Fds { cap: plan.max_fds, ..Fds::default() },
            ..DemoReport::default()
        }
    }

    /// Whether everything that was to be shown was shown.
    pub fn is_success(&self) -> bool {
        self.mismatches == 0 && self.failures == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_when_written_then_exactly_the_promised_fields_in_order() {
        let fds = Fds { cap: Some(256), broker_peak: 120, rank_peak: 17, node_peak: 256 };
        let mut report = DemoReport {
            ranks: 8,
            buffers: 200,
            size_bytes: 65536,
            memory: "memfd",
            verified_bytes: 734_003_200,
            mismatches: 0,
            failures: 0,
            elapsed_s: 1.5,
            fds,
            without_broker: None,
            samples: 12,
        };
        let json = serde_json::to_string(&report).expect("plain data");
        assert_eq!(
            json,
            r#"{"ranks":8,"buffers":200,"size_bytes":65536,"memory":"memfd","verified_bytes":734003200,"mismatches":0,"failures":0,"elapsed_s":1.5,"fds":{"cap":256,"broker_peak":120,"rank_peak":17,"node_peak":256},"without_broker":null}"#
        );
        report.without_broker = Some(Direct {
            rank_peak: 250,
            node_peak: 1957,
            failed_at: Some(1957),
            failed_rank: Some(2),
        });
        let json = serde_json::to_string(&report).expect("plain data");
        assert!(
            json.ends_with(
                r#""without_broker":{"rank_peak":250,"node_peak":1957,"failed_at":1957}}"#
            ),
            "{json}"
        );
    }
}
