//! What the demo says at the end: one JSON object, or one table that needs no manual. Must never round or
//! leave out a number that decides whether it went well.

use super::plan::Plan;
use crate::error::Result;
use crate::output::{Column, Columns, Output, Side, commas, human_size};
use serde::Serialize;

/// The result, in the order in which it is printed. The names are promised to scripts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DemoReport {
    /// Processes.
    pub ranks: u32,
    /// Buffers per rank.
    pub buffers: u32,
    /// Bytes per buffer.
    pub size_bytes: u64,
    /// memfd, udmabuf, cuda or level-zero.
    pub memory: &'static str,
    /// Bytes that readers have read and compared.
    pub verified_bytes: u64,
    /// 8-byte words that were wrong, data and marks.
    pub mismatches: u64,
    /// Buffers that could not be opened, and samples that the ledger does not explain.
    pub failures: u64,
    /// From the start of the ranks until all have let go, without `--hold`.
    pub elapsed_s: f64,
    /// With the broker.
    pub fds: Fds,
    /// Without it; `None` unless asked for.
    pub without_broker: Option<Direct>,
    /// Counts of /proc, all processes stopped, that the ledger explains.
    #[serde(skip)]
    pub samples: u64,
}

/// Fds of shared memory, with the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fds {
    /// The node's cap.
    pub cap: Option<u64>,
    /// Most in the broker.
    pub broker_peak: u64,
    /// Most in one rank.
    pub rank_peak: u64,
    /// Most in broker and ranks together, arenas included.
    pub node_peak: u64,
}

/// Fds of shared memory, without the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Direct {
    /// Most in one rank.
    pub rank_peak: u64,
    /// Most in all ranks together.
    pub node_peak: u64,
    /// Those on the node when a rank had no free fd; `None` = it did not come to that.
    pub failed_at: Option<u64>,
    /// The first rank without a free fd.
    #[serde(skip)]
    pub failed_rank: Option<u32>,
}

impl DemoReport {
    /// Whether everything that was to be shown was shown.
    pub fn is_success(&self) -> bool {
        self.mismatches == 0 && self.failures == 0
    }

    /// One object on one line.
    pub fn print_json(&self, out: &mut Output) -> Result<()> {
        out.json(self)?;
        out.text("\n")
    }

    /// Some plain sentences and a table.
    pub fn print_table(&self, plan: &Plan, out: &mut Output) -> Result<()> {
        const COLUMNS: &[Column] = &[
            Column("", Side::Left),
            Column("WITH FDBROKER", Side::Right),
            Column("DIRECTLY", Side::Right),
        ];
        const COLUMNS_WITHOUT_DIRECT: &[Column] = &[COLUMNS[0], COLUMNS[1]];
        out.text(&self.introduction(plan))?;
        let direct = self.without_broker.as_ref();
        let of_direct = |get: fn(&Direct) -> u64| direct.map_or("-".into(), |d| commas(get(d)));
        let mut rows = vec![
            row("fds needed on the node", self.needed(), commas(plan.opens())),
            row(
                "fds in one process, at most",
                commas(self.fds.rank_peak),
                of_direct(|d| d.rank_peak),
            ),
            row("fds in the broker, at most", commas(self.fds.broker_peak), "-".into()),
            row("fds on the node, at most", commas(self.fds.node_peak), of_direct(|d| d.node_peak)),
            row("outcome", self.outcome(), self.direct_outcome()),
        ];
        let columns = if direct.is_some() { COLUMNS } else { COLUMNS_WITHOUT_DIRECT };
        rows.iter_mut().for_each(|row| row.truncate(columns.len()));
        Columns::new(columns, true).write(rows, out)?;
        out.text(&self.conclusion(plan))
    }

    fn introduction(&self, plan: &Plan) -> String {
        let limit = self.fds.cap.map_or_else(
            || "The broker has no cap.".into(),
            |cap| {
                let cap = commas(cap);
                format!(
                    "With fdbroker at most {cap} fds may be open on the whole node; directly, up to {cap} in each process."
                )
            },
        );
        format!(
            "{} processes share memory: each has {} buffers of {} ({}), and opens, checks and marks every\n\
             buffer of every other: {} times in all. Counted are file descriptors (fds) of that memory.\n{limit}\n\n",
            self.ranks,
            commas(self.buffers.into()),
            human_size(self.size_bytes),
            self.memory,
            commas(plan.opens()),
        )
    }

    fn needed(&self) -> String {
        self.fds.cap.map_or_else(|| "any number".into(), |cap| format!("{} (cap)", commas(cap)))
    }

    fn outcome(&self) -> String {
        match self.is_success() {
            true => "complete".into(),
            false => format!(
                "{} words wrong, {} failures",
                commas(self.mismatches),
                commas(self.failures)
            ),
        }
    }

    fn direct_outcome(&self) -> String {
        match self.without_broker {
            None => "-".into(),
            Some(Direct { failed_at: None, .. }) => "complete".into(),
            Some(Direct { failed_rank: Some(rank), .. }) => format!("rank {rank} out of fds"),
            Some(_) => "out of fds".into(),
        }
    }

    fn conclusion(&self, plan: &Plan) -> String {
        let mut text = format!(
            "\nWith fdbroker: verified {} bytes, {} mismatches, {} failures, in {:.1} s. Counts in /proc, taken\n\
             {} times with all processes stopped, agree with the broker's.\n",
            commas(self.verified_bytes),
            commas(self.mismatches),
            commas(self.failures),
            self.elapsed_s,
            commas(self.samples),
        );
        match self.without_broker {
            None => {}
            Some(Direct { failed_at: Some(fds), .. }) => text.push_str(&format!(
                "Directly (SCM_RIGHTS from process to process, fds kept): ended after {} of {} fds.\n",
                commas(fds),
                commas(plan.opens()),
            )),
            Some(Direct { failed_at: None, node_peak, .. }) => text.push_str(&format!(
                "Directly (SCM_RIGHTS from process to process, fds kept): complete, with {} fds.\n",
                commas(node_peak),
            )),
        }
        text
    }
}

fn row(what: &str, with: String, without: String) -> Vec<String> {
    vec![what.into(), with, without]
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
