//! The directory in which the processes of a job on a node meet: its place, its locks, its removal.
//! Must never use a directory that another user could have made or could change.
//!
//! Three files in it are locked with flock(2), so that the kernel releases the locks of a killed
//! process:
//!
//! | file | shared lock | exclusive lock |
//! |---|---|---|
//! | `gate` | - | a process that joins the broker or ends it, meanwhile |
//! | `members` | each process of the job, for its life | the keeper, when it ends the broker |
//! | `keeper` | - | the keeper and its broker, for their lives; the joiner passes the lock on |
//!
//! A fourth, `stop`, asks the keeper of programs that start their broker themselves to end it.
//!
//! A process that wants several locks takes `gate` last, or takes `gate` first and only tries the
//! others: so there is no deadlock. Only a process that holds all three exclusively may remove the
//! directory. So a process that holds one of them knows that the directory stays, once
//! [`Room::is_current`] has confirmed that the file is still at its path.

use crate::error::{Context, Error, Result};
use nix::unistd::Uid;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// File that a process locks while it joins or ends the broker.
pub const GATE: &str = "gate";
/// File that each process of the job locks.
pub const MEMBERS: &str = "members";
/// File that the keeper locks.
pub const KEEPER: &str = "keeper";

/// File that asks the keeper to end the broker, whoever uses it.
const STOP: &str = "stop";

/// How often the removal of a directory is tried. A try fails only if a late joiner puts a file
/// there meanwhile.
const REMOVE_TRIES: usize = 8;

/// Ends the name of a directory that is being removed.
pub const GONE: &str = ".gone";

/// The directory of one job.
#[derive(Debug)]
pub struct Room {
    path: PathBuf,
}

impl Room {
    /// The room at a path that a joiner has given to its keeper.
    pub fn at(path: &Path) -> Self {
        Room { path: path.to_owned() }
    }

    /// Absolute path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the broker's clients connect.
    pub fn socket(&self) -> PathBuf {
        self.path.join("fdbroker/broker.sock")
    }

    /// Where administrators of the broker connect.
    pub fn admin_socket(&self) -> PathBuf {
        fdbrokerd::settings::sockets::admin_socket_of(&self.socket())
    }

    /// Standard error of the keeper and its broker.
    pub fn log(&self) -> PathBuf {
        self.path.join("broker.log")
    }

    /// Opens one of the files to lock. `None`: the room has been removed.
    pub fn open(&self, name: &str) -> Result<Option<File>> {
        let path = self.path.join(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW);
        match options.open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(cause).context(|| format!("open {}", path.display())),
        }
    }

    /// Whether `file` is still the file `name` of this room: false if the room has been removed
    /// since, or made anew.
    pub fn is_current(&self, file: &File, name: &str) -> bool {
        let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
        let of_path = std::fs::symlink_metadata(self.path.join(name)).map(identity).ok();
        of_path.is_some() && of_path == file.metadata().map(identity).ok()
    }

    /// Asks the keeper to end the broker.
    pub fn ask_to_stop(&self) -> Result<()> {
        self.open(STOP).map(drop)
    }

    /// Whether the keeper was asked.
    pub fn is_to_stop(&self) -> bool {
        self.path.join(STOP).exists()
    }

    /// Takes back what a keeper that was killed had been asked. The caller has locked `keeper`.
    pub fn go_on(&self) {
        // There is none as a rule.
        let _ = std::fs::remove_file(self.path.join(STOP));
    }

    /// Removes the directory. The caller has locked all three files exclusively.
    pub fn remove(&self) {
        // Renamed first: a process that joins from now on makes a new room.
        let mut gone = self.path.clone().into_os_string();
        gone.push(GONE);
        let gone = PathBuf::from(gone);
        let _ = std::fs::remove_dir_all(&gone);
        if std::fs::rename(&self.path, &gone).is_err() {
            return;
        }
        for _ in 0..REMOVE_TRIES {
            if std::fs::remove_dir_all(&gone).is_ok() {
                return;
            }
        }
    }

    /// Removes the directory if no process has locked any of the files.
    pub fn remove_if_abandoned(&self) -> Result<()> {
        let Some(gate) = self.open(GATE)? else { return Ok(()) };
        if !try_lock(&gate)? || !self.is_current(&gate, GATE) {
            return Ok(());
        }
        let (Some(members), Some(keeper)) = (self.open(MEMBERS)?, self.open(KEEPER)?) else {
            return Ok(());
        };
        if try_lock(&members)? && try_lock(&keeper)? {
            self.remove();
        }
        Ok(())
    }
}

/// Locks `file` exclusively if it is free. The lock lasts until the last duplicate of the fd is
/// closed, in any process.
pub fn try_lock(file: &File) -> Result<bool> {
    came(file.try_lock())
}

/// Locks `file` for reading if no process has locked it exclusively.
pub fn try_lock_shared(file: &File) -> Result<bool> {
    came(file.try_lock_shared())
}

fn came(outcome: std::result::Result<(), TryLockError>) -> Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(cause)) => Err(cause).context(
            || "lock a file of the job's directory (set TMPDIR to a file system that supports flock)",
        ),
    }
}

/// Refuses a directory that another user could have made or could write to. `home.rs` makes sure
/// that it stays ours.
pub fn check_directory(path: &Path) -> Result<()> {
    let found =
        std::fs::symlink_metadata(path).context(|| format!("look at {}", path.display()))?;
    let us = Uid::effective().as_raw();
    let mode = found.mode() & 0o777;
    let problem = if !found.is_dir() {
        "it is not a directory, or a symbolic link".to_owned()
    } else if found.uid() != us {
        format!("it belongs to uid {}, not to uid {us}", found.uid())
    } else if mode != 0o700 {
        format!("its mode is {mode:04o}, not 0700")
    } else {
        return Ok(());
    };
    Err(Error::Other(format!(
        "{} is not safe: {problem}; remove it, or set TMPDIR to a directory of yours, the same for all ranks of the node",
        path.display()
    )))
}

#[cfg(test)]
mod tests;
