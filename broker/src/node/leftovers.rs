//! Directories that private brokers have left beside this one's: of owners and brokers that were
//! all killed, with the records of their brokers. Must never remove what a living process uses, nor
//! what is another user's or was not marked for removal.
//!
//! The owner of a directory that goes with it marks it by a file named after the boot, which it
//! locks before the file has that name. The broker inherits the lock. Whoever gets it later knows
//! that all of them have ended.

use crate::limits::{LEFTOVER_LOOKS, LEFTOVERS_REMOVED};
use nix::unistd::Uid;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// What the name of a directory of a private broker begins with.
pub const PREFIX: &str = "fdbroker-";

/// The name of the mark: of this boot, as an earlier one's locks are gone, and another node's may
/// be invisible here. What an earlier boot has left is the temporary directory's to clear.
pub fn mark_name() -> io::Result<String> {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(format!("owner-{}", boot_id.trim()))
}

/// Marks a new directory as one that goes with the processes that have this file.
pub fn mark(dir: &Path) -> io::Result<File> {
    let unnamed = dir.join("owner");
    let mark = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unnamed)?;
    mark.lock()?;
    std::fs::rename(unnamed, dir.join(mark_name()?))?;
    Ok(mark)
}

/// Removes what others have left beside `dir`, up to a bound: the next broker goes on.
pub(crate) fn sweep(dir: &Path) {
    let Some(parent) = dir.parent().filter(|it| is_safe(it)) else { return };
    let (Ok(mark), Ok(entries)) = (mark_name(), std::fs::read_dir(parent)) else { return };
    let ours = entries.take(LEFTOVER_LOOKS).flatten().filter(|entry| {
        entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && entry.metadata().is_ok_and(|it| it.is_dir() && is_own(&it))
    });
    let left = ours.filter_map(|entry| {
        let path = entry.path();
        abandoned(&path.join(&mark)).map(|lock| (path, lock))
    });
    for (path, _lock) in left.take(LEFTOVERS_REMOVED) {
        match std::fs::remove_dir_all(&path) {
            Ok(()) => log::info!("removed {}, which a killed broker had left", path.display()),
            Err(error) => log::info!("{} stays: {error}", path.display()),
        }
    }
}

/// The lock of a mark that no process has any more.
fn abandoned(mark: &Path) -> Option<File> {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(mark).ok()?;
    let found = file.metadata().ok()?;
    (found.is_file() && is_own(&found) && file.try_lock().is_ok()).then_some(file)
}

fn is_own(found: &Metadata) -> bool {
    found.uid() == Uid::effective().as_raw()
}

/// Whether no other user can put anything in the place of what is ours there.
fn is_safe(parent: &Path) -> bool {
    std::fs::metadata(parent).is_ok_and(|it| it.mode() & 0o022 == 0 || it.mode() & 0o1000 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::{env, fs};

    /// A parent with a sticky bit, as /tmp has, and a directory that sweeps.
    fn parent() -> (PathBuf, PathBuf) {
        let parent = nix::unistd::mkdtemp(&env::temp_dir().join("left-XXXXXX")).expect("a parent");
        let own = parent.join("fdbroker-self");
        fs::create_dir(&own).expect("a directory");
        (parent, own)
    }

    fn made(parent: &Path, name: &str) -> (PathBuf, File) {
        let dir = parent.join(name);
        fs::create_dir_all(dir.join("fdbroker-admin")).expect("a directory");
        fs::write(dir.join("fdbroker-admin/record"), "died").expect("a record");
        let lock = mark(&dir).expect("a mark");
        (dir, lock)
    }

    #[test]
    fn leftovers_when_their_owner_has_ended_then_they_go_and_others_stay() {
        let (parent, own) = parent();
        let (dead, lock) = made(&parent, "fdbroker-dead");
        drop(lock);
        let (alive, _lock) = made(&parent, "fdbroker-alive");
        let _of_own = mark(&own).expect("a mark");
        let (named, lock) = made(&parent, "mine");
        drop(lock);
        let (unmarked, lock) = made(&parent, "fdbroker-unmarked");
        drop(lock);
        fs::rename(unmarked.join(mark_name().expect("a name")), unmarked.join("owner-of-old"))
            .expect("a mark of another boot");
        std::os::unix::fs::symlink(&named, parent.join("fdbroker-link")).expect("a link");
        sweep(&own);
        assert!(!dead.exists());
        for stays in [&own, &alive, &named, &unmarked] {
            assert!(stays.exists(), "{}", stays.display());
        }
        assert!(named.join("fdbroker-admin/record").exists());
        fs::remove_dir_all(parent).expect("removed");
    }

    #[test]
    fn leftovers_when_there_are_more_than_the_bound_then_the_next_broker_goes_on() {
        let (parent, own) = parent();
        for number in 0..=LEFTOVERS_REMOVED {
            made(&parent, &format!("fdbroker-{number}"));
        }
        let left = || fs::read_dir(&parent).expect("a list").count() - 1;
        sweep(&own);
        assert_eq!(left(), 1);
        sweep(&own);
        assert_eq!(left(), 0);
        fs::remove_dir_all(parent).expect("removed");
    }

    #[test]
    fn leftovers_when_all_may_write_to_the_parent_then_nothing_is_removed() {
        let (parent, own) = parent();
        let (dead, lock) = made(&parent, "fdbroker-dead");
        drop(lock);
        let mode = |bits| std::os::unix::fs::PermissionsExt::from_mode(bits);
        fs::set_permissions(&parent, mode(0o777)).expect("a mode");
        sweep(&own);
        assert!(dead.exists());
        fs::set_permissions(&parent, mode(0o1777)).expect("a mode");
        sweep(&own);
        assert!(!dead.exists());
        fs::remove_dir_all(parent).expect("removed");
    }
}
