//! A check: one line of the report. Must never have a verdict other than ok without a remedy.

use serde::Serialize;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing to do.
    Ok,
    /// Sharing works, but something is missing or will soon run out.
    Warn,
    /// Sharing does not work for this user on this node.
    Fail,
}

impl Verdict {
    /// The word in the report.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        }
    }

    /// The sequence for its colour on a terminal (ECMA-48, SGR).
    pub fn colour(self) -> &'static str {
        match self {
            Verdict::Ok => "\x1b[32m",
            Verdict::Warn => "\x1b[33m",
            Verdict::Fail => "\x1b[31m",
        }
    }
}

/// A checked thing and the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Part of the node: `broker`, `limits`, `kernel`, `namespaces`, `devices`, `layers`,
    /// `service`.
    pub area: &'static str,
    pub name: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// The remedy; `None` if ok.
    pub remedy: Option<String>,
}

/// The name of an area. Makes its checks.
#[derive(Clone, Copy, Debug)]
pub struct Area(pub &'static str);

impl Area {
    /// A check with the verdict ok.
    pub fn ok(self, name: &'static str, found: impl Into<String>) -> Check {
        let (area, found) = (self.0, found.into());
        Check { area, name, verdict: Verdict::Ok, found, remedy: None }
    }

    /// A check with the verdict warn.
    pub fn warn(
        self,
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        let (area, found, remedy) = (self.0, found.into(), Some(remedy.into()));
        Check { area, name, verdict: Verdict::Warn, found, remedy }
    }

    /// A check with the verdict fail.
    pub fn fail(
        self,
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check { verdict: Verdict::Fail, ..self.warn(name, found, remedy) }
    }
}

/// The number in a file of /proc or /sys; `None` if there is no number.
pub fn number_in(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.split_whitespace().next()?.parse().ok()
}
