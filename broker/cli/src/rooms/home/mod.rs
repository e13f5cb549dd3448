//! The directory of all of a user's jobs on a node: all ranks find the same one, whatever other
//! users put beside it. Must never be one that another user could have made or could change.
//!
//! It is `fdbroker-UID`, or the next of [`NAMES`] names that no other user has taken. Others may
//! take and give up names at any time, so that ranks which start together make directories at
//! several names. They settle on one of them, for good, by its sticky bit: a rank that sets it has
//! locked all directories of the user that there were when it looked, and found none with the bit.
//! Two can never have it. Our directories do not go away, so of two ranks that set it the one that
//! looked later had to lock what the other one settled on, and found the bit there.

use super::room::{GATE, GONE, Room, check_directory, try_lock};
use crate::error::{Context, Error, Result};
use nix::unistd::Uid;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How many names are tried. Each costs a rank a system call while another user has those before
/// it, and a user who takes them all has its inodes on record: then ranks say so.
const NAMES: usize = 64;

/// The bit of the mode by which ranks know the directory that they have settled on. It means
/// nothing else there: nobody but its owner may write to it.
const SETTLED: u32 = 0o1000;

/// Pause between two tries while another rank settles, which takes it some system calls.
const SETTLE_INTERVAL: Duration = Duration::from_millis(2);

/// Longest path of a Unix socket (`sun_path`, unix(7)), its closing zero included.
const SOCKET_PATH_MAX: usize = 108;

/// The longest path below a job's directory.
const LONGEST_SOCKET: &str = "fdbroker-admin/admin.sock";

/// How many directories one job checks for what killed keepers have left. No user has as many jobs
/// at once on a node; the next job checks the rest.
const SWEEP_LIMIT: usize = 256;

/// The directory of all of this user's jobs.
#[derive(Debug)]
pub struct Home(pub(super) PathBuf);

/// What this user has at the names.
#[derive(Debug, PartialEq, Eq)]
enum Own {
    Settled(PathBuf),
    /// Directories of which one is to be settled on, in the order of their names.
    Unsettled(Vec<PathBuf>),
}

/// The lock of a directory that is not settled on. Its file goes with it.
#[derive(Debug)]
struct Held {
    file: PathBuf,
    _lock: File,
}

impl Drop for Held {
    fn drop(&mut self) {
        // A rank that waits for it finds that it is not current, and looks again.
        let _ = std::fs::remove_file(&self.file);
    }
}

impl Home {
    /// Makes or finds it in $TMPDIR, else in /tmp.
    ///
    /// $XDG_RUNTIME_DIR will not do: it is removed with the user's last login session, while ranks
    /// may still run (`mpirun` over ssh leaves no session behind), and it comes back with the next
    /// login, in the middle of a launch.
    pub fn open(room_name: &str, until: Instant) -> Result<Self> {
        let mut refused = Vec::new();
        for parent in parents(std::env::var_os("TMPDIR")) {
            let names = names(&parent, room_name);
            if names.is_empty() {
                refused.push(format!("{}: too long for a socket's path", parent.display()));
                continue;
            }
            match Self::agree(&parent, &names, until) {
                Err(Error::Os { cause, .. }) if is_unusable(&cause) => {
                    refused.push(format!("{}: {cause}", parent.display()));
                }
                outcome => return outcome,
            }
        }
        Err(Error::Other(format!(
            "no place for the job's directory ({}); set TMPDIR to a short path that you may write to, the same for all ranks of the node",
            refused.join(", ")
        )))
    }

    /// The one that [`Home::open`] has made, if it has; `temporary` is $TMPDIR.
    pub fn find(temporary: Option<OsString>, room_name: &str) -> Option<Self> {
        parents(temporary).find_map(|parent| match own(&names(&parent, room_name)) {
            Ok(Own::Settled(home)) if check_parent(&parent).is_ok() => Some(Home(home)),
            _ => None,
        })
    }

    /// The one of these names at which all ranks of this user meet.
    fn agree(parent: &Path, names: &[PathBuf], until: Instant) -> Result<Self> {
        loop {
            match own(names)? {
                Own::Settled(home) => {
                    check_parent(parent)?;
                    return Ok(Home(home));
                }
                Own::Unsettled(none) if none.is_empty() => make_one(names)?,
                Own::Unsettled(homes) => {
                    check_parent(parent)?;
                    if !settle(names, &homes)? {
                        std::thread::sleep(SETTLE_INTERVAL);
                    }
                }
            }
            if Instant::now() >= until {
                let problem = format!(
                    "{} stays locked; find the process with `lslocks`, and end it",
                    names[0].join(GATE).display()
                );
                return Err(Error::Other(problem));
            }
        }
    }

    /// The room of a job, made if it is missing. `None`: another process removes it, try again.
    pub fn room(&self, name: &str) -> Result<Option<Room>> {
        let path = self.0.join(name);
        make_directory(&path).context(|| format!("make {}", path.display()))?;
        match check_directory(&path) {
            Ok(()) => Ok(Some(Room::at(&path))),
            Err(Error::Os { cause, .. }) if cause.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The room of a job if it is there.
    pub fn existing_room(&self, name: &str) -> Option<Room> {
        let path = self.0.join(name);
        check_directory(&path).is_ok().then(|| Room::at(&path))
    }

    /// Removes the rooms that killed keepers have left. Their names begin with one of `prefixes`,
    /// which stand for this node and boot: locks of another node may be invisible here.
    pub fn sweep(&self, prefixes: &[String]) {
        // The next job tries again what fails here.
        let Ok(entries) = std::fs::read_dir(&self.0) else { return };
        for entry in entries.take(SWEEP_LIMIT).flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            }
            if name.ends_with(GONE) {
                let _ = std::fs::remove_dir_all(entry.path());
            } else {
                let _ = Room::at(&entry.path()).remove_if_abandoned();
            }
        }
    }
}

/// Where a home may be, in the order in which it is looked for.
fn parents(temporary: Option<OsString>) -> impl Iterator<Item = PathBuf> {
    let temporary = temporary.map(PathBuf::from);
    temporary.into_iter().chain([PathBuf::from("/tmp")]).filter(|dir| dir.is_absolute())
}

/// The names in `parent` that leave room for the paths of a room's sockets.
fn names(parent: &Path, room_name: &str) -> Vec<PathBuf> {
    let uid = Uid::effective();
    let name = |number| match number {
        0 => parent.join(format!("fdbroker-{uid}")),
        _ => parent.join(format!("fdbroker-{uid}-{number}")),
    };
    let fits = |home: &PathBuf| {
        home.join(room_name).join(LONGEST_SOCKET).as_os_str().len() < SOCKET_PATH_MAX
    };
    (0..NAMES).map(name).filter(fits).collect()
}

/// Whether somebody else may have put it there: another user's, or a file of ours, which others can
/// link or move.
fn is_foreign(found: &std::fs::Metadata) -> bool {
    found.uid() != Uid::effective().as_raw() || found.is_file()
}

fn own(names: &[PathBuf]) -> Result<Own> {
    let mut homes = Vec::new();
    for path in names {
        let Ok(found) = path.symlink_metadata() else { continue };
        if is_foreign(&found) {
            continue;
        }
        check_directory(path)?;
        if found.mode() & SETTLED != 0 {
            return Ok(Own::Settled(path.clone()));
        }
        homes.push(path.clone());
    }
    Ok(Own::Unsettled(homes))
}

/// Makes a directory at the first name that is free, unless this user has one by now.
fn make_one(names: &[PathBuf]) -> Result<()> {
    let mut takers = Vec::new();
    for path in names {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(cause) if cause.kind() == ErrorKind::AlreadyExists => match path.symlink_metadata()
            {
                Ok(found) if is_foreign(&found) => takers.push(found.uid().to_string()),
                // Another rank's; or nobody's by now, which another look tells.
                _ => return Ok(()),
            },
            outcome => return outcome.context(|| format!("make {}", path.display())),
        }
    }
    takers.dedup();
    Err(Error::Other(format!(
        "no place for the job's directory: {} and the {} names after it belong to uid {}; have them removed, or set TMPDIR to a directory of yours, the same for all ranks of the node",
        names[0].display(),
        names.len() - 1,
        takers.join(", ")
    )))
}

/// Settles on one of these directories, unless another rank is at it or has done so: `false`.
fn settle(names: &[PathBuf], homes: &[PathBuf]) -> Result<bool> {
    let mut all = Vec::new();
    for home in homes {
        let room = Room::at(home);
        let Some(lock) = room.open(GATE)? else { return Ok(false) };
        if !try_lock(&lock)? || !room.is_current(&lock, GATE) {
            return Ok(false);
        }
        all.push(Held { file: home.join(GATE), _lock: lock });
    }
    let is_all = own(names)? == Own::Unsettled(homes.to_vec());
    if is_all {
        std::fs::set_permissions(&homes[0], Permissions::from_mode(SETTLED | 0o700))
            .context(|| format!("settle on {}", homes[0].display()))?;
    }
    Ok(is_all)
}

/// Makes a directory of ours in one that nobody else may change.
fn make_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    }
}

/// Whether to try another parent directory. Only for causes that all ranks of the node meet alike,
/// and that stay.
fn is_unusable(cause: &io::Error) -> bool {
    matches!(
        cause.kind(),
        ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
    )
}

/// Refuses a parent directory in which other users could replace ours: writable for all, without
/// the sticky bit.
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

#[cfg(test)]
mod tests;
