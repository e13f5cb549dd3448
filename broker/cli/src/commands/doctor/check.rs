//! One line of the report. Must never have a verdict other than ok without saying what to do.

use serde::Serialize;

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be, or of no account here.
    Ok,
    /// Sharing works, and something near it does not, or will not for long.
    Warn,
    /// Sharing does not work for this user here.
    Fail,
}

impl Verdict {
    /// As it is printed.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        }
    }

    /// What makes a terminal write in its colour (ECMA-48, SGR).
    pub fn colour(self) -> &'static str {
        match self {
            Verdict::Ok => "\x1b[32m",
            Verdict::Warn => "\x1b[33m",
            Verdict::Fail => "\x1b[31m",
        }
    }
}

/// What was looked at, and how it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Which part of the node: `broker`, `limits`, `kernel`, `namespaces`, `devices`, `service`.
    pub area: &'static str,
    /// What was looked at.
    pub name: &'static str,
    /// How it stands.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do; `None` when it is ok.
    pub remedy: Option<String>,
}

/// Checks of one area.
#[derive(Clone, Copy, Debug)]
pub struct Area(pub &'static str);

impl Area {
    /// As it should be.
    pub fn ok(self, name: &'static str, found: impl Into<String>) -> Check {
        let (area, found) = (self.0, found.into());
        Check { area, name, verdict: Verdict::Ok, found, remedy: None }
    }

    /// Not quite.
    pub fn warn(
        self,
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        let (area, found, remedy) = (self.0, found.into(), Some(remedy.into()));
        Check { area, name, verdict: Verdict::Warn, found, remedy }
    }

    /// In the way.
    pub fn fail(
        self,
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check { verdict: Verdict::Fail, ..self.warn(name, found, remedy) }
    }
}

/// The number in a file of /proc or /sys; `None` when there is none.
pub fn number_in(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.split_whitespace().next()?.parse().ok()
}
