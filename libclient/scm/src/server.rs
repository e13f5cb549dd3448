//! Who serves a socket that was connected: root, the owner of its directory or the caller itself,
//! else nobody that a client of a broker may talk to. Must never send anything, nor believe the
//! owner of the socket's file, which root of a container can change.

use crate::write_stderr;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The most links that lead to a socket: as many as the kernel follows (path_resolution(7)).
const LINKS_MOST: usize = 40;

/// Write permission of a directory's group and of all others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A server that may be anybody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "uid {uid} serves it, whom this process, of uid {own}, does not trust there: {place}; a broker is served by root, by the owner of \
     its socket's directory or by the user of its clients: name another socket in FDBROKER_SOCKET, or ask the administrator who \
     serves this one"
)]
pub struct Stranger {
    /// The user that called listen(2) last.
    pub uid: u32,
    own: u32,
    place: String,
}

/// Checks who serves `socket`, which was just connected to `path`. Where its user is unknown in
/// this user namespace it may be any: that is said on stderr, once per process, unless FDBROKER_LOG
/// leaves warnings out.
///
/// # Errors
/// It is neither root nor the owner of the socket's directory nor the effective user of this
/// thread.
pub fn check_server(socket: BorrowedFd<'_>, path: &Path) -> Result<(), Stranger> {
    let uid = getsockopt(&socket, PeerCredentials).map_or(u32::MAX, |peer| peer.uid());
    let hidden = hidden_id("uid");
    if hidden == Some(uid) {
        warn_of_unknown(path, uid);
        return Ok(());
    }
    let own = geteuid().as_raw();
    if [0, own].contains(&uid) {
        return Ok(());
    }
    match place_of_socket(path) {
        Ok((_, owner)) if owner == uid => Ok(()),
        Ok((folder, owner)) => {
            let place = format!("{} belongs to uid {owner}", folder.display());
            Err(Stranger { uid, own, place })
        }
        Err(place) => Err(Stranger { uid, own, place }),
    }
}

/// The directory in which the socket itself lies, and its owner. A link at the end of the path
/// counts only in a directory that none but its owner may write to: anywhere else it could be
/// anybody's, and lead to a directory of that user's.
fn place_of_socket(path: &Path) -> Result<(PathBuf, u32), String> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MOST {
        let cannot = |cause| format!("{} cannot be looked at ({cause})", path.display());
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        let found = std::fs::metadata(&folder).map_err(cannot)?;
        // A socket that was removed meanwhile says no less about its directory.
        if !path.is_symlink() {
            return Ok((folder, found.uid()));
        }
        if found.mode() & WRITABLE_BY_OTHERS != 0 {
            return Err(format!("it is a link, which others may put into {}", folder.display()));
        }
        path = folder.join(std::fs::read_link(&path).map_err(cannot)?);
    }
    Err(format!("more than {LINKS_MOST} links lead to it"))
}

/// The id that stands for users (`kind` is "uid") or groups ("gid") that are unknown in this
/// process's user namespace. `None`: all are known, as in the first namespace, and the id is like
/// any other (user_namespaces(7)).
#[must_use]
pub fn hidden_id(kind: &str) -> Option<u32> {
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    if is_whole(&read(format!("/proc/self/{kind}_map"))) {
        return None;
    }
    let id = read(format!("/proc/sys/kernel/overflow{kind}"));
    // The kernel's default.
    Some(id.trim().parse().unwrap_or(65534))
}

fn is_whole(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn warn_of_unknown(path: &Path, uid: u32) {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    let level = std::env::var_os("FDBROKER_LOG").unwrap_or_default();
    if level == "off" || level == "error" || IS_SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let line = format!(
        "fdbroker[{}]: warn: {}: the user that serves it is unknown in this user namespace (uid {uid} stands for all such users), so it \
         may be any; connected all the same. See that only the node's administrator can write to its directory: mount it read-only\n",
        std::process::id(),
        path.display()
    );
    write_stderr(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn is_whole_when_first_namespace_then_true() {
        assert!(is_whole("         0          0 4294967295\n"));
        for map in ["", "0 1000 1\n", "0 0 65536\n", "0 0 1000\n1000 1000 4294966295\n"] {
            assert!(!is_whole(map), "{map}");
        }
    }

    #[test]
    fn place_when_links_lead_to_it_then_its_directory_unless_others_could_have_made_them() {
        let dir = std::env::temp_dir().join(format!("fdb-place-{}", std::process::id()));
        let (safe, open) = (dir.join("safe"), dir.join("open"));
        for path in [&dir, &safe, &open] {
            create_dir(path).unwrap();
            set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        symlink("../safe/last", dir.join("open/link")).unwrap();
        symlink("open/link", dir.join("first")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        let place = |path: &Path| place_of_socket(path).map(|(folder, _)| folder);
        let last = place(&dir.join("first")).map(|it| it.canonicalize().unwrap());
        set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
        let (is_open, plain) = (place(&dir.join("first")), place(&open.join("none")));
        let endless = place(&dir.join("loop"));
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(last, Ok(safe));
        assert!(is_open.is_err_and(|why| why.contains("others may put")));
        assert_eq!(plain, Ok(open), "the kernel has followed no link");
        assert!(endless.is_err());
        assert_eq!(place(Path::new("none")), Ok(PathBuf::from(".")));
    }
}
