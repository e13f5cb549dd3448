//! The metrics as a file for the textfile collector of Prometheus' node_exporter. Must never let a
//! reader see half a page, nor leave an old page in place of one that says that no broker answers.

use super::render;
use crate::error::{Context, Result};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// The file of the metrics; the collector reads all files that end so.
pub const METRICS: &str = "fdbroker.prom";
/// The file of an audit.
pub const AUDIT: &str = "fdbroker-audit.prom";

/// The collector runs as another user.
const MODE: u32 = 0o644;

/// Names of files that are not whole yet begin so, and end in so many letters and digits.
const PREFIX: &str = ".fdbroker-";
const RANDOM: usize = 6;

/// Such a file is left over when it is older: its writer was killed. A page is written in less than
/// a second.
const LEFT_OVER: Duration = Duration::from_secs(60);

/// Removes what calls that were killed have left: files of this user that this command names so. A
/// directory that cannot be read says so when the page is written.
fn remove_left_over(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Ok(about) = entry.metadata() else { continue };
        let is_old = about.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > LEFT_OVER));
        let is_own = about.is_file() && about.uid() == nix::unistd::geteuid().as_raw();
        if is_old && is_own && is_unfinished(entry.file_name().as_encoded_bytes()) {
            // Another call may have removed it.
            std::fs::remove_file(entry.path()).ok();
        }
    }
}

fn is_unfinished(name: &[u8]) -> bool {
    let random = name.strip_prefix(PREFIX.as_bytes());
    random.is_some_and(|it| it.len() == RANDOM && it.iter().all(u8::is_ascii_alphanumeric))
}

/// Replaces the file `name` in `dir` by a page in the older text format, which is the only one that
/// the collector reads.
pub fn write(dir: &Path, name: &str, page: &str) -> Result<()> {
    let path = dir.join(name);
    let what = || format!("write {}", path.display());
    remove_left_over(dir);
    // Its name does not end like those that the collector reads. When it is dropped it is removed.
    let mut file = tempfile::Builder::new()
        .prefix(PREFIX)
        .rand_bytes(RANDOM)
        .tempfile_in(dir)
        .context(what)?;
    file.write_all(render::plain(page).as_bytes()).context(what)?;
    // Whatever the umask.
    let permissions = std::fs::Permissions::from_mode(MODE);
    file.as_file().set_permissions(permissions).context(what)?;
    file.persist(&path).map_err(|error| error.error).context(what)?;
    Ok(())
}
