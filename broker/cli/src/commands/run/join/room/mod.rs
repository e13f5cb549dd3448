//! The directory in which the processes of a job on a node meet: its place, its locks, its removal.
//! Must never use a directory that another user could have made or could change.
//!
//! Three files in it are locked with flock(2), so that the kernel releases the locks of a killed process:
//!
//! | file | shared lock | exclusive lock |
//! |---|---|---|
//! | `gate` | - | a process that joins the broker or ends it, meanwhile |
//! | `members` | each process of the job, for its life | the keeper, when it ends the broker |
//! | `keeper` | - | the keeper, for its life; its joiner passes the lock on |
//!
//! A process that wants several locks takes `gate` last, or takes `gate` first and only tries the others: so there is no
//! deadlock. Only a process that holds all three exclusively may remove the directory. So a process that holds one of
//! them knows that the directory stays, once [`Room::is_current`] has confirmed that the file is still at its path.

use crate::error::{Context, Error, Result};
use nix::unistd::Uid;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// File that a process locks while it joins or ends the broker.
pub const GATE: &str = "gate";
/// File that each process of the job locks.
pub const MEMBERS: &str = "members";
/// File that the keeper locks.
pub const KEEPER: &str = "keeper";

/// Longest path of a Unix socket (`sun_path`, unix(7)), its closing zero included.
const SOCKET_PATH_MAX: usize = 108;

/// The longest path below a job's directory.
const LONGEST_SOCKET: &str = "fdbroker-admin/admin.sock";

/// How many directories one job checks for what killed keepers have left. No user has as many jobs at once on a node;
/// the next job checks the rest.
const SWEEP_LIMIT: usize = 256;

/// How often the removal of a directory is tried. A try fails only if a late joiner puts a file there meanwhile.
const REMOVE_TRIES: usize = 8;

/// The directory of all of this user's jobs.
#[derive(Debug)]
pub struct Home(PathBuf);

impl Home {
    /// Makes or finds it: `fdbroker-UID` in $TMPDIR, else in /tmp.
    ///
    /// $XDG_RUNTIME_DIR will not do: it is removed with the user's last login session, while ranks may still run
    /// (`mpirun` over ssh leaves no session behind), and it comes back with the next login, in the middle of a launch.
    pub fn open(room_name: &str) -> Result<Self> {
        let temporary = std::env::var_os("TMPDIR").map(PathBuf::from);
        let candidates = temporary.into_iter().chain([PathBuf::from("/tmp")]);
        let mut refused = Vec::new();
        for parent in candidates.filter(|dir| dir.is_absolute()) {
            let home = parent.join(format!("fdbroker-{}", Uid::effective()));
            let longest = home.join(room_name).join(LONGEST_SOCKET);
            if longest.as_os_str().len() >= SOCKET_PATH_MAX {
                refused.push(format!("{}: too long for a socket's path", parent.display()));
                continue;
            }
            match make_directory(&home) {
                Ok(()) => {
                    check_parent(&parent)?;
                    check_directory(&home)?;
                    return Ok(Home(home));
                }
                Err(cause) if is_unusable(&cause) => {
                    refused.push(format!("{}: {cause}", parent.display()));
                }
                Err(cause) => return Err(cause).context(|| format!("make {}", home.display())),
            }
        }
        Err(Error::Other(format!(
            "no place for the job's directory ({}); set TMPDIR to a short path that you may write to, the same for all ranks of the node",
            refused.join(", ")
        )))
    }

    /// The room of a job, made if it is missing. `None`: another process removes it, try again.
    pub fn room(&self, name: &str) -> Result<Option<Room>> {
        let path = self.0.join(name);
        make_directory(&path).context(|| format!("make {}", path.display()))?;
        match check_directory(&path) {
            Ok(()) => Ok(Some(Room { path })),
            Err(Error::Os { cause, .. }) if cause.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes the rooms that killed keepers have left. Their names begin with `prefix`, which stands for this node and
    /// boot: locks of another node may be invisible here.
    pub fn sweep(&self, prefix: &str) {
        // The next job tries again what fails here.
        let Ok(entries) = std::fs::read_dir(&self.0) else { return };
        for entry in entries.take(SWEEP_LIMIT).flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with(prefix) {
                continue;
            }
            if name.ends_with(GONE) {
                let _ = std::fs::remove_dir_all(entry.path());
            } else {
                let _ = Room { path: entry.path() }.remove_if_abandoned();
            }
        }
    }
}

/// Ends the name of a directory that is being removed.
const GONE: &str = ".gone";

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
        crate::admin::beside(&self.socket())
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

    /// Whether `file` is still the file `name` of this room: false if the room has been removed since, or made anew.
    pub fn is_current(&self, file: &File, name: &str) -> bool {
        let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
        let of_path = std::fs::symlink_metadata(self.path.join(name)).map(identity).ok();
        of_path.is_some() && of_path == file.metadata().map(identity).ok()
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

    fn remove_if_abandoned(&self) -> Result<()> {
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

/// Locks `file` exclusively if it is free. The lock lasts until the last duplicate of the fd is closed, in any process.
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

fn make_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    }
}

/// Whether to try another parent directory. Only for causes that all ranks of the node meet alike, and that stay.
fn is_unusable(cause: &io::Error) -> bool {
    matches!(
        cause.kind(),
        ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
    )
}

/// Refuses a parent directory in which other users could replace ours: writable for all, without the sticky bit.
fn check_parent(path: &Path) -> Result<()> {
    let found = std::fs::metadata(path).context(|| format!("look at {}", path.display()))?;
    let mode = found.mode() & 0o7777;
    if mode & 0o002 != 0 && mode & 0o1000 == 0 {
        return Err(Error::Other(format!(
            "{} is not safe: all users may replace files there (mode {mode:04o}); `chmod +t` it, or set TMPDIR to a directory of yours, the same for all ranks of the node",
            path.display()
        )));
    }
    Ok(())
}

/// Refuses a directory that another user could have made or could write to. [`check_parent`] makes sure that it stays ours.
fn check_directory(path: &Path) -> Result<()> {
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
