//! The lock of an administrator's directory: one broker at a time serves from it. Must never be had twice while a broker lives, nor be
//! kept for ever by one that hangs in the kernel.

use crate::limits::{DEATH_PATIENCE, START_PATIENCE, START_RETRY};
use crate::node::directories::identity;
use crate::node::error::ListenError;
use crate::node::names::LOCK_NAME;
use std::fs::{File, OpenOptions, TryLockError};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

/// What is left of the broker before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predecessor {
    /// Nothing that runs.
    Gone,
    /// It was killed, and a thread of it is still in the kernel, maybe for ever: its fds stay open, sockets and lock included,
    /// and nobody serves them.
    Hangs,
}

/// Held during a start: of two brokers that start at once, the second looks at what is there only when the first one shows
/// that it is alive.
#[derive(Debug)]
pub struct StartLock(#[allow(dead_code)] File); // the kernel releases it when it is closed

impl StartLock {
    fn take(directory: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Directory { path: directory.into(), source };
        let file = File::open(directory).map_err(failed)?;
        let until = Instant::now() + START_PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(StartLock(file)),
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(START_RETRY);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(ListenError::InUse { path: directory.into() });
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
    }
}

/// The lock that one broker at a time holds on an administrator's directory. It is the open file's, so
/// a successor that is handed the fd has it too; the kernel releases it when the last of them closes.
#[derive(Debug)]
pub struct DirectoryLock(File);

impl DirectoryLock {
    /// Takes the lock of `directory`, without waiting.
    ///
    /// # Errors
    /// [`ListenError::InUse`] while another broker has it.
    pub fn take(directory: &Path) -> Result<Self, ListenError> {
        let path = directory.join(LOCK_NAME);
        let failed = |source| ListenError::Os { path: path.clone(), source };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            // Else it is that of a broker that hung, and another file has its place.
            Ok(()) if is_at(&file, &path) => Ok(DirectoryLock(file)),
            Ok(()) | Err(TryLockError::WouldBlock) => Err(ListenError::InUse { path }),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Takes the lock for a broker that starts. A broker before it that has been killed, which `was_killed` tells, may have
    /// the lock for ever: then a new file has its place.
    ///
    /// # Errors
    /// [`ListenError::InUse`] while another broker lives.
    pub fn take_at_start(
        directory: &Path,
        was_killed: impl Fn() -> bool,
    ) -> Result<(Self, StartLock, Predecessor), ListenError> {
        let start = StartLock::take(directory)?;
        let until = Instant::now() + DEATH_PATIENCE;
        loop {
            match Self::take(directory) {
                Ok(lock) => return Ok((lock, start, Predecessor::Gone)),
                Err(ListenError::InUse { .. }) if Instant::now() < until => {
                    std::thread::sleep(START_RETRY);
                }
                Err(ListenError::InUse { path }) if was_killed() => {
                    log::warn!(
                        "the broker before this one was killed and has not ended yet: it still closes its fds, or a call of it hangs, which `fdbroker doctor` names"
                    );
                    let failed = |source| ListenError::Os { path: path.clone(), source };
                    std::fs::remove_file(&path).map_err(failed)?;
                    return Ok((Self::take(directory)?, start, Predecessor::Hangs));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The lock that another broker has taken and handed over.
    pub fn adopt(fd: OwnedFd) -> Self {
        DirectoryLock(fd.into())
    }
}

impl AsFd for DirectoryLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether the path names this file.
fn is_at(file: &File, path: &Path) -> bool {
    let opened = file.metadata().ok().map(|found| (found.dev(), found.ino()));
    opened.is_some() && opened == identity(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_when_taken_then_no_second_until_released() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::take(dir.path()).unwrap();
        assert!(matches!(DirectoryLock::take(dir.path()), Err(ListenError::InUse { .. })));
        drop(lock);
        DirectoryLock::take(dir.path()).unwrap();
    }

    #[test]
    fn lock_when_its_broker_was_killed_and_hangs_then_taken_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let start = |was_killed: bool| DirectoryLock::take_at_start(dir.path(), || was_killed);
        let (hung, first, former) = start(false).unwrap();
        assert_eq!(former, Predecessor::Gone);
        drop(first);
        assert!(matches!(start(false), Err(ListenError::InUse { .. })), "it lives");
        let (lock, second, former) = start(true).unwrap();
        assert_eq!(former, Predecessor::Hangs);
        drop(hung);
        assert!(matches!(DirectoryLock::take(dir.path()), Err(ListenError::InUse { .. })));
        drop((lock, second));
        start(false).unwrap();
    }
}
