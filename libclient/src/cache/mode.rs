//! What an import is for. Must never say how the memory is opened.

use crate::map::Access;

/// What an import may do with the memory, and whether the cache keeps what the import opens. An
/// [`Access`] alone keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportMode {
    /// Reading, or reading and writing.
    pub access: Access,
    /// Whether memory that this import opens stays open after its last release. Memory that is open
    /// already serves this import, too, and stays as it is.
    pub keep: bool,
}

impl From<Access> for ImportMode {
    fn from(access: Access) -> Self {
        ImportMode { access, keep: true }
    }
}
