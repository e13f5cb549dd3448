//! The lock of an administrator's directory: one broker at a time serves from it. Must never be had
//! twice while a broker lives, nor be kept for ever by one that hangs in the kernel.

use crate::limits::{DEATH_PATIENCE, START_PATIENCE, START_RETRY};
use crate::node::directories::identity;
use crate::node::error::ListenError;
use crate::node::mark::Mark;
use crate::node::names::LOCK_NAME;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What is left of the broker before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predecessor {
    /// It has ended, with all its threads.
    Gone,
    /// It was killed, and a thread of it is still in the kernel, maybe for ever: its fds stay open,
    /// sockets and lock included, and nobody serves them.
    Hangs,
}

/// A predecessor, and the sockets that it has made.
#[derive(Debug)]
pub struct Remains {
    /// What is left of it.
    pub former: Predecessor,
    /// Its lock file names them, and the lock was to be had: whatever takes connections there, no
    /// broker serves it.
    pub sockets: Vec<Mark>,
    /// The directory in which it had further links of its sockets, and this broker is to have its
    /// own; `None`: nobody else may write where they stand.
    pub links: Option<PathBuf>,
}

impl Remains {
    /// There was no broker before this one.
    pub const NONE: Remains =
        Remains { former: Predecessor::Gone, sockets: Vec::new(), links: None };
}

/// What the liveness word of the broker before this one says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// It lives, as far as the word knows.
    Alive,
    /// It was killed.
    Killed,
    /// Nobody has the word: a broker has left, none has come as far, or there is no page.
    Nobody,
}

/// The longest text that is read of a lock file: a thousand sockets.
const MAX_TEXT: u64 = 64 << 10;

/// Held during a start: of two brokers that start at once, the second looks at what is there only
/// when the first one shows that it is alive.
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

/// The lock that one broker at a time holds on an administrator's directory. It is the open file's,
/// so a successor that is handed the fd has it too; the kernel releases it when the last of them
/// closes.
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
            .read(true)
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

    /// Takes the lock for a broker that starts. A broker before it that has been killed, which
    /// `shown` tells, may have the lock for ever: then a new file has its place.
    ///
    /// # Errors
    /// [`ListenError::InUse`] while another broker lives.
    pub fn take_at_start(
        directory: &Path,
        shown: impl Fn() -> Shown,
    ) -> Result<(Self, StartLock, Remains), ListenError> {
        let start = StartLock::take(directory)?;
        let until = Instant::now() + DEATH_PATIENCE;
        loop {
            match Self::take(directory) {
                Ok(lock) => {
                    // Where lock and word disagree, the sockets that accept decide.
                    let is_dead = shown() != Shown::Alive;
                    let sockets = if is_dead { read_marks(&lock.0) } else { Vec::new() };
                    return Ok((lock, start, Remains { sockets, ..Remains::NONE }));
                }
                Err(ListenError::InUse { .. }) if Instant::now() < until => {
                    std::thread::sleep(START_RETRY);
                }
                Err(ListenError::InUse { path }) if shown() == Shown::Killed => {
                    log::warn!(
                        "the broker before this one was killed and has not ended yet: it still closes its fds, or a call of it hangs, which `fdbroker doctor` names"
                    );
                    let failed = |source| ListenError::Os { path: path.clone(), source };
                    let sockets = File::open(&path).map(|it| read_marks(&it)).unwrap_or_default();
                    std::fs::remove_file(&path).map_err(failed)?;
                    let lock = Self::take(directory)?;
                    // This start may fail, and the next one finds the new file.
                    lock.note(&sockets);
                    let former = Predecessor::Hangs;
                    return Ok((lock, start, Remains { former, sockets, links: None }));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Names the sockets that this broker has made, for the next one if this one is killed.
    pub fn note(&self, sockets: &[Mark]) {
        let text = Mark::write_all(sockets);
        let write = || -> io::Result<()> {
            // The old text goes last: the file system may be full.
            self.0.write_all_at(text.as_bytes(), 0)?;
            self.0.set_len(text.len() as u64)
        };
        if let Err(error) = write() {
            log::warn!(
                "if this broker is killed and others hold its sockets, none can be started in its place: {error}"
            );
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

/// The sockets that a lock file names.
fn read_marks(file: &File) -> Vec<Mark> {
    let mut text = String::new();
    let read = file.take(MAX_TEXT).read_to_string(&mut text);
    read.map(|_| Mark::read_all(&text)).unwrap_or_default()
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
        let start = |was_killed: bool| {
            let shown = if was_killed { Shown::Killed } else { Shown::Alive };
            DirectoryLock::take_at_start(dir.path(), || shown)
        };
        let (hung, first, remains) = start(false).unwrap();
        assert_eq!(remains.former, Predecessor::Gone);
        drop(first);
        assert!(matches!(start(false), Err(ListenError::InUse { .. })), "it lives");
        let marks = [Mark::of(dir.path()).unwrap()];
        hung.note(&marks);
        let (lock, second, remains) = start(true).unwrap();
        assert_eq!(remains.sockets, marks);
        assert_eq!(remains.former, Predecessor::Hangs);
        drop(hung);
        assert!(matches!(DirectoryLock::take(dir.path()), Err(ListenError::InUse { .. })));
        drop((lock, second));
        start(false).unwrap();
    }

    #[test]
    fn lock_when_free_then_its_sockets_are_a_dead_brokers_unless_the_word_says_alive() {
        let dir = tempfile::tempdir().unwrap();
        let start = |shown| DirectoryLock::take_at_start(dir.path(), || shown).unwrap();
        let marks = [Mark::of(dir.path()).unwrap()];
        let (lock, ..) = start(Shown::Nobody);
        lock.note(&[marks[0], marks[0]]);
        lock.note(&marks);
        drop(lock);
        assert_eq!(start(Shown::Alive).2.sockets, []);
        assert_eq!(start(Shown::Killed).2.sockets, marks);
        assert_eq!(start(Shown::Nobody).2.sockets, marks);
    }
}
