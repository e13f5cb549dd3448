//! The directories that the broker serves from. Must never serve from one in which somebody else
//! could have put or replaced a file, nor close one that others use.

use crate::node::error::ListenError;
use crate::node::names::OWN_FILES;
use std::fs::{OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Bits of an administrator's directory that are taken from users other than its owner and its
/// group.
const OPEN_TO_OTHERS: u32 = 0o027;

/// Which users may write into a directory that the broker serves from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryRule {
    /// The administrator's: ours, writable by nobody else.
    Administrator,
    /// Of a client socket: ours or root's; writable by others only with the sticky bit.
    Clients,
}

/// Makes `path` with exactly `mode` if it is missing (its parent too), and checks that it is safe
/// by `rule`.
///
/// # Errors
/// [`ListenError::Directory`] and [`ListenError::Unsafe`].
pub fn prepare_directory(path: &Path, mode: u32, rule: DirectoryRule) -> Result<(), ListenError> {
    let failed = |source| ListenError::Directory { path: path.into(), source };
    if let Some(parent) = path.parent()
        && !parent.as_os_str().is_empty()
        && !parent.exists()
    {
        std::fs::DirBuilder::new().mode(mode).recursive(true).create(parent).map_err(failed)?;
    }
    match std::fs::DirBuilder::new().mode(mode).create(path) {
        // The umask may have cut it.
        Ok(()) => std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    let found = std::fs::symlink_metadata(path).map_err(failed)?;
    let us = nix::unistd::geteuid().as_raw();
    check_directory(path, &found, rule, &[us])?;
    if found.uid() != us {
        log::warn!(
            "{} belongs to uid {}: only clients of uid {us} will trust a broker there; `chown {us}` it",
            path.display(),
            found.uid()
        );
    }
    let open_mode = found.mode() & 0o7777;
    if rule == DirectoryRule::Administrator && open_mode & OPEN_TO_OTHERS != 0 {
        // Made by a service manager with one mode for all directories. Nobody else could write, so
        // closing it is enough.
        std::fs::set_permissions(path, Permissions::from_mode(open_mode & !OPEN_TO_OTHERS))
            .map_err(failed)?;
    }
    Ok(())
}

/// Checks a directory for a broker that runs as one of `owners`.
pub(crate) fn check_directory(
    path: &Path,
    found: &std::fs::Metadata,
    rule: DirectoryRule,
    owners: &[u32],
) -> Result<(), ListenError> {
    let refuse = |problem: String, remedy: String| {
        Err(ListenError::Unsafe { path: path.into(), problem, remedy })
    };
    if !found.is_dir() {
        let remedy = "remove it, or name another place".into();
        return refuse("it is no directory (or a symbolic link)".into(), remedy);
    }
    let mode = found.mode() & 0o7777;
    let is_sticky_enough = rule == DirectoryRule::Clients && mode & 0o1000 != 0;
    if mode & 0o022 != 0 && !is_sticky_enough {
        let problem = format!("others may write into it (mode {mode:04o})");
        return refuse(problem, format!("`chmod go-w {}`", path.display()));
    }
    if rule == DirectoryRule::Administrator
        && mode & OPEN_TO_OTHERS != 0
        && let Some(name) = foreign_entry(path)
    {
        let problem =
            format!("it would be closed to others, and has {name:?}, which is not the broker's");
        let remedy = "name a directory that the administrator's socket has for itself".into();
        return refuse(problem, remedy);
    }
    let owner = found.uid();
    let is_owner_trusted =
        owners.contains(&owner) || (rule == DirectoryRule::Clients && owner == 0);
    if let (false, Some(us)) = (is_owner_trusted, owners.last()) {
        let problem = format!("it belongs to uid {owner}, and the broker runs as uid {us}");
        return refuse(problem, format!("`chown {us}` it, or name another place"));
    }
    Ok(())
}

/// The first that is found in the directory beside sockets and the broker's own files; `None`, too,
/// where this user may not look.
fn foreign_entry(path: &Path) -> Option<std::ffi::OsString> {
    let is_own = |entry: &std::fs::DirEntry| {
        OWN_FILES.iter().any(|own| entry.file_name() == *own)
            || entry.file_type().is_ok_and(|kind| kind.is_socket())
    };
    let mut entries = std::fs::read_dir(path).ok()?.filter_map(Result::ok);
    entries.find(|entry| !is_own(entry)).map(|entry| entry.file_name())
}

/// The directory a socket stands in.
pub fn parent(socket: &Path) -> &Path {
    match socket.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Changes a mode, of a symbolic link's target never.
pub(crate) fn chmod(path: &Path, mode: u32) -> io::Result<()> {
    let mut place = OpenOptions::new();
    let place = place.read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path)?;
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Device and inode of what a path names, a symbolic link itself included.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
pub(crate) fn mode_of(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prepare_directory_when_missing_then_made_with_exact_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        prepare_directory(&path, 0o755, DirectoryRule::Clients).unwrap();
        assert_eq!(mode_of(&path), 0o755);
    }

    #[test]
    fn prepare_directory_when_others_may_write_then_refused_with_remedy() {
        let dir = tempfile::tempdir().unwrap();
        for (mode, rule, is_safe) in [
            (0o777, DirectoryRule::Clients, false),
            (0o775, DirectoryRule::Clients, false),
            (0o1777, DirectoryRule::Clients, true),
            (0o1777, DirectoryRule::Administrator, false),
            (0o770, DirectoryRule::Administrator, false),
            (0o750, DirectoryRule::Administrator, true),
            (0o755, DirectoryRule::Administrator, true),
        ] {
            std::fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            let result = prepare_directory(dir.path(), 0o700, rule);
            assert_eq!(result.is_ok(), is_safe, "{mode:o} {rule:?}");
            if let Err(error) = result {
                assert!(error.to_string().contains("chmod go-w"), "{error}");
            }
        }
        assert_eq!(mode_of(dir.path()), 0o750, "an administrator's directory is closed to others");
    }

    #[test]
    fn prepare_directory_when_others_use_the_administrators_directory_then_refused_and_left_open() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("admin.sock"));
        OWN_FILES.iter().for_each(|own| std::fs::write(dir.path().join(own), "").unwrap());
        let theirs = dir.path().join("dbus");
        std::fs::create_dir(&theirs).unwrap();
        let prepare = || prepare_directory(dir.path(), 0o700, DirectoryRule::Administrator);
        let error = prepare().unwrap_err().to_string();
        assert!(error.contains("dbus") && error.contains("for itself"), "{error}");
        assert_eq!(mode_of(dir.path()), 0o755);
        std::fs::remove_dir(theirs).unwrap();
        prepare().unwrap();
        assert_eq!(mode_of(dir.path()), 0o750);
    }

    #[test]
    fn prepare_directory_when_a_symlink_then_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        let result = prepare_directory(&link, 0o700, DirectoryRule::Clients);
        assert!(matches!(result, Err(ListenError::Unsafe { .. })));
    }
}
