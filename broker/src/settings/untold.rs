//! What the look at the places of a broker does not tell. Must never look itself.

use std::path::PathBuf;

/// What a look does not tell, by directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Untold {
    /// Not there: the daemon makes them, and whether it can shows only then.
    pub missing: Vec<PathBuf>,
    /// Not for this user to see.
    pub unseen: Vec<PathBuf>,
    /// What is served otherwise than the configuration reads.
    pub warnings: Vec<String>,
}

impl Untold {
    /// A sentence for each directory; none: nothing is in the daemon's way, its own rights apart.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let missing = "not tried, since it changes the machine: making the directory";
        let unseen = "not looked at, since this user may not: the directory";
        let line = |what: &str, path: &PathBuf| format!("{what} {}", path.display());
        let missing = self.missing.iter().map(move |path| line(missing, path));
        let lines = missing.chain(self.unseen.iter().map(move |path| line(unseen, path)));
        lines.chain(self.warnings.iter().map(|warning| format!("warning: {warning}")))
    }
}
