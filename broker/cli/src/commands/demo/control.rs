//! How the demo's parent and its ranks speak: one JSON object per line, commands on a rank's stdin, reports
//! on its stdout. Must never carry memory or fds: those go through what is being shown.

use serde::{Deserialize, Serialize};

/// From the parent: do the next part. A closed stdin means: end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Make the buffers and hand them in.
    Register,
    /// Open and check every buffer of every other rank, and leave the marks.
    Open,
    /// Check the marks in the own buffers.
    Check,
    /// Let go of everything and end.
    Release,
}

/// From a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// It is connected.
    Connected,
    /// Its buffers are there for the others.
    Registered,
    /// So many buffers are open by now.
    Progress {
        /// Buffers.
        opened: u64,
    },
    /// Every buffer of every other rank was opened, or counted as a failure.
    Opened(Opened),
    /// The own buffers' marks are checked.
    Checked {
        /// Words that were wrong.
        mismatches: u64,
    },
    /// Nothing is open any more.
    Released,
    /// The direct way: this process has no free fd.
    OutOfFds,
    /// It cannot go on.
    Failed {
        /// Why.
        message: String,
    },
}

/// What a rank has seen while it opened the others' buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Buffers opened.
    pub buffers: u64,
    /// Bytes read and compared.
    pub verified_bytes: u64,
    /// Words that were wrong.
    pub mismatches: u64,
    /// Buffers that could not be opened.
    pub failures: u64,
    /// Most fds of shared memory that it had at a time, by its own count.
    pub fds_peak: u64,
}

impl Report {
    /// Words that were wrong.
    pub fn mismatches(&self) -> u64 {
        match self {
            Report::Opened(opened) => opened.mismatches,
            Report::Checked { mismatches } => *mismatches,
            _ => 0,
        }
    }

    /// Whether it ends a part: every rank sends exactly one such report per part.
    pub fn ends_a_part(&self) -> bool {
        matches!(
            self,
            Report::Connected
                | Report::Registered
                | Report::Opened(_)
                | Report::Checked { .. }
                | Report::Released
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_when_written_and_read_then_the_same_and_on_one_line() {
        let opened = Opened { buffers: 1, verified_bytes: u64::MAX, ..Opened::default() };
        for report in [
            Report::Opened(opened),
            Report::Released,
            Report::Failed { message: "two\nlines".into() },
        ] {
            let line = serde_json::to_string(&report).expect("plain data");
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Report>(&line).expect("own format"), report);
        }
    }
}
