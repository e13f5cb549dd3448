//! Prints findings: a table with remedies, or a line of JSON. Must never hide what could not be
//! looked at.

use super::finding::{Finding, Kind, first};
use super::limits::{MAX_LISTED, MAX_REPORTED};
use crate::error::{Result, exit};
use crate::output::{Column, Columns, Output, Side, commas, counted, human_size, human_time};
use crate::records;
use crate::table::Value;
use fdbroker_protocol::AllocationId;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

const COLUMNS: &[Column] = &[
    Column("FINDING", Side::Left),
    Column("PID", Side::Right),
    Column("FD", Side::Left),
    Column("COMMAND", Side::Left),
    Column("USER", Side::Left),
    Column("JOB", Side::Left),
    Column("ALLOCATION", Side::Left),
    Column("SIZE", Side::Right),
    Column("AGE", Side::Right),
    Column("WHAT", Side::Left),
];

/// Most characters of a job in the table: its end is shown, since paths of cgroups differ there.
const JOB_CHARS: usize = 32;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whose ledger was looked at: `node`, or `own`.
    pub scope: &'static str,
    /// What is wrong; `notes` are facts that need no act.
    pub findings: Vec<Finding>,
    /// Number of findings that are not listed.
    pub more_findings: u64,
    pub notes: Vec<Finding>,
    /// Number of notes that are not listed.
    pub more_notes: u64,
    /// Number of processes that were looked at.
    pub processes: u64,
    /// Number of fds that were read.
    pub fds: u64,
    /// What could not be looked at, with the reason: how often.
    pub not_looked_at: BTreeMap<String, u64>,
    /// Clients, and the broker, that could not be looked at.
    pub unread_parties: u64,
    /// Looks in which the findings held.
    pub looks: u64,
}

impl Report {
    /// Adds findings and notes, sorted by kind and process.
    pub fn add(&mut self, mut all: Vec<Finding>) {
        all.sort_by(|a, b| (a.kind, a.pid, &a.fds).cmp(&(b.kind, b.pid, &b.fds)));
        let (notes, findings): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|finding| finding.kind.is_note());
        (self.findings, self.more_findings) = cut(findings);
        (self.notes, self.more_notes) = cut(notes);
    }

    pub fn exit_status(&self) -> u8 {
        match (self.findings.len(), self.unread_parties) {
            (0, 0) => exit::OK,
            // That nothing is found says nothing.
            (0, _) => exit::ERROR,
            _ => exit::FINDINGS,
        }
    }

    pub fn print(&self, json: bool, verbose: bool) -> Result<()> {
        let mut out = Output::stdout();
        if json {
            out.json_line(self)?
        } else {
            self.print_text(verbose, &mut out)?
        }
        out.finish()
    }

    fn print_text(&self, verbose: bool, out: &mut Output) -> Result<()> {
        let shown_notes = if verbose { self.notes.as_slice() } else { &[] };
        let shown = || self.findings.iter().chain(shown_notes);
        if shown().next().is_some() {
            Columns::new(COLUMNS, true).write(shown().map(row).collect(), out)?;
            if shown().any(|finding| finding.fds.len() > MAX_LISTED) {
                out.text(&format!(
                    "FD has the first {MAX_LISTED} and +N for N more; --json has all\n"
                ))?;
            }
            out.text("\n")?;
        }
        let kinds: BTreeSet<Kind> = shown().map(|finding| finding.kind).collect();
        for kind in &kinds {
            out.text(&format!("{}: {}\n", kind.name(), kind.remedy()))?;
        }
        if !kinds.is_empty() {
            out.text("\n")?;
        }
        out.text(&self.summary(verbose))?;
        if self.more_findings > 0 || verbose && self.more_notes > 0 {
            out.text(&format!("of each at most {MAX_REPORTED} are listed\n"))?;
        }
        for (what, count) in &self.not_looked_at {
            out.text(&format!("not looked at ({}): {what}\n", commas(*count)))?;
        }
        if self.unread_parties > 0 {
            let parties = counted(self.unread_parties, "process");
            out.text(&format!(
                "incomplete: {parties} that the ledger is about could not be looked at\n"
            ))?;
        }
        Ok(())
    }

    /// How much there is.
    fn summary(&self, verbose: bool) -> String {
        let findings = self.findings.len() as u64 + self.more_findings;
        let notes = self.notes.len() as u64 + self.more_notes;
        let hint = if notes > 0 && !verbose { " (--verbose shows them)" } else { "" };
        format!(
            "{}, {}{hint}; {} with {} looked at\n",
            counted(findings, "finding"),
            counted(notes, "note"),
            counted(self.processes, "process"),
            counted(self.fds, "fd"),
        )
    }
}

fn cut(mut all: Vec<Finding>) -> (Vec<Finding>, u64) {
    let more = all.len().saturating_sub(MAX_REPORTED) as u64;
    all.truncate(MAX_REPORTED);
    (all, more)
}

fn row(finding: &Finding) -> Vec<String> {
    let optional = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let text = |text: &str| if text.is_empty() { "-".into() } else { text.to_owned() };
    vec![
        finding.kind.name().into(),
        optional(finding.pid.map(|pid| pid.to_string())),
        text(&fds(&finding.fds)),
        text(&finding.command),
        optional(finding.uid.map(user)),
        text(&short(&finding.job)),
        optional(finding.allocation.map(|id| named(id, finding.virtual_fd))),
        optional(finding.size_bytes.map(human_size)),
        optional(finding.age_ms.map(human_time)),
        finding.what.clone(),
    ]
}

/// The name of a user, or its number.
fn user(uid: u32) -> String {
    match records::user(uid) {
        Value::Text(name) => name.to_string(),
        _ => uid.to_string(),
    }
}

/// `5,7`; of many the first, and how many more there are: `5,7,8,9,10,11,12,13,+4`.
fn fds(fds: &[i32]) -> String {
    match first(fds, ",") {
        (shown, 0) => shown,
        (shown, more) => format!("{shown},+{more}"),
    }
}

/// An allocation, with the number by which programs under a layer know it.
fn named(id: AllocationId, virtual_fd: Option<u32>) -> String {
    match virtual_fd {
        Some(fd) => format!("{id} (virtual fd {fd})"),
        None => id.to_string(),
    }
}

/// The end of a job's path.
fn short(job: &str) -> String {
    let clean: Vec<char> = job.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if clean.len() <= JOB_CHARS {
        clean.into_iter().collect()
    } else {
        format!("...{}", clean[clean.len() + 3 - JOB_CHARS..].iter().collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_when_findings_and_notes_then_apart_sorted_and_bounded() {
        let mut report = Report::default();
        let mut all = vec![Finding::new(Kind::Orphan, "o"), Finding::new(Kind::Ended, "e")];
        all.extend((0..=MAX_REPORTED).map(|_| Finding::new(Kind::Leak, "l")));
        report.add(all);
        assert_eq!((report.findings.len(), report.more_findings), (MAX_REPORTED, 2));
        assert_eq!(report.findings[0].kind, Kind::Leak);
        assert_eq!((report.notes.len(), report.more_notes), (1, 0));
    }

    #[test]
    fn summary_when_one_of_each_then_no_plural() {
        let mut report = Report { processes: 1, fds: 1, ..Report::default() };
        report.add(vec![Finding::new(Kind::Ended, "e"), Finding::new(Kind::Leak, "l")]);
        assert_eq!(report.summary(true), "1 finding, 1 note; 1 process with 1 fd looked at\n");
        let report = Report { processes: 2, ..Report::default() };
        assert_eq!(
            report.summary(false),
            "0 findings, 0 notes; 2 processes with 0 fds looked at\n"
        );
    }

    #[test]
    fn short_when_long_then_the_end_of_it() {
        assert_eq!(short("/a/b"), "/a/b");
        let long = short(&format!("/{}/job_7", "x".repeat(50)));
        assert!(long.starts_with("...x") && long.ends_with("/job_7"), "{long}");
        assert_eq!(long.len(), JOB_CHARS);
        assert_eq!(short("a\x1bb"), "a?b");
    }

    #[test]
    fn fds_when_more_than_are_listed_then_counted_and_whole_in_json() {
        let many: Vec<i32> = (1..=11).collect();
        let finding = Finding::new(Kind::Leak, "what").fds(&many);
        assert_eq!(row(&finding)[2], "1,2,3,4,5,6,7,8,+3");
        assert_eq!(row(&Finding::new(Kind::Leak, "what").fds(&many[..8]))[2], "1,2,3,4,5,6,7,8");
        let json = serde_json::to_value(&finding).expect("plain data");
        assert_eq!(json["fds"], serde_json::json!(many));
    }

    #[test]
    fn exit_status_when_nothing_is_found_then_good_only_if_all_were_looked_at() {
        let mut report = Report::default();
        assert_eq!(report.exit_status(), exit::OK);
        report.unread_parties = 1;
        assert_eq!(report.exit_status(), exit::ERROR);
        report.add(vec![Finding::new(Kind::Leak, "l")]);
        assert_eq!(report.exit_status(), exit::FINDINGS);
    }

    #[test]
    fn row_when_little_is_known_then_dashes() {
        let row = row(&Finding::new(Kind::Drift, "what"));
        assert_eq!(row.len(), COLUMNS.len());
        assert_eq!(row[1..9], ["-"; 8]);
    }
}
