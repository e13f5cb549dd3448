//! The metrics as a file for the textfile collector of Prometheus' node_exporter. Must never let a reader see half a page, nor leave an
//! old page in place of one that says that no broker answers.

use super::render;
use crate::error::{Context, Result};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The collector reads all files that end so.
const NAME: &str = "fdbroker.prom";

/// The collector runs as another user.
const MODE: u32 = 0o644;

/// Replaces the file in `dir` by a page in the older text format, which is the only one that the collector reads.
pub fn write(dir: &Path, page: &str) -> Result<()> {
    let path = dir.join(NAME);
    let what = || format!("write {}", path.display());
    // Its name does not end like those that the collector reads. When it is dropped it is removed.
    let mut file = tempfile::Builder::new().prefix(".fdbroker-").tempfile_in(dir).context(what)?;
    file.write_all(render::plain(page).as_bytes()).context(what)?;
    // Whatever the umask.
    let permissions = std::fs::Permissions::from_mode(MODE);
    file.as_file().set_permissions(permissions).context(what)?;
    file.persist(&path).map_err(|error| error.error).context(what)?;
    Ok(())
}
