//! Sockets in the file system: their directories, modes and left-overs of a broker that has died.
//! Must never serve from a directory in which somebody else could have put or replaced the socket,
//! nor take the place of a broker that lives.

use crate::limits::{DEATH_PATIENCE, LISTEN_BACKLOG, START_PATIENCE, START_RETRY};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};
use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Why a socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The directory cannot be made or looked at.
    #[error(
        "cannot use directory {path}: {source}; create it, or name another place (in the configuration, or FDBROKER_SOCKET and FDBROKER_ADMIN_SOCKET)"
    )]
    Directory {
        /// Of the directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody else could put or replace files in it.
    #[error("directory {path} is not safe: {problem}; {remedy}")]
    Unsafe {
        /// Of the directory.
        path: PathBuf,
        /// What is wrong.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// Another broker serves this place.
    #[error(
        "another broker serves {path}; end it first, or name another place with FDBROKER_SOCKET and FDBROKER_ADMIN_SOCKET"
    )]
    InUse {
        /// Of its socket or lock.
        path: PathBuf,
    },
    /// Something that is no socket is in the way.
    #[error("{path} exists and is no socket; remove it, or name another path")]
    NoSocket {
        /// In the way.
        path: PathBuf,
    },
    /// A socket is to stand where something else of the broker does.
    #[error("{path} and another file of this broker are both {place}; give each a path of its own")]
    Twice {
        /// Of the one.
        path: PathBuf,
        /// Where both are.
        place: PathBuf,
    },
    /// The path does not fit sockaddr_un (unix(7)).
    #[error(
        "socket path {path} is longer than the 107 bytes the kernel allows; use a shorter directory"
    )]
    TooLong {
        /// Too long.
        path: PathBuf,
    },
    /// Any other failure.
    #[error("cannot serve {path}: {source}")]
    Os {
        /// Of the socket or lock.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The lock's name in the administrator's directory.
pub(crate) const LOCK_NAME: &str = "lock";

/// Which users may write into a directory that the broker serves from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryRule {
    /// The administrator's: ours, writable by nobody else.
    Administrator,
    /// Of a client socket: ours or root's; writable by others only with the sticky bit.
    Clients,
}

/// A listening socket with its path; both end together.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the path as bound, so that never another broker's socket is removed.
    identity: Option<(u64, u64)>,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    /// Binds `path` with exactly `mode` and listens. A socket left there by a broker that has died is removed, also when it
    /// still takes connections because a call of the `former` one hangs.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind(path: &Path, mode: u32, former: Predecessor) -> Result<Self, ListenError> {
        remove_stale(path, former)?;
        let failed = |errno: Errno| ListenError::Os { path: path.into(), source: errno.into() };
        let address = address(path)?;
        let socket = new_socket().map_err(failed)?;
        // The mode before bind(2) is the mode it is created with, less the umask: never wider than
        // wanted, not for a moment.
        fchmod(&socket, Mode::from_bits_truncate(mode & 0o777)).map_err(failed)?;
        bind(socket.as_raw_fd(), &address).map_err(|errno| match errno {
            Errno::EADDRINUSE => ListenError::InUse { path: path.into() },
            errno => failed(errno),
        })?;
        let mut listener = Listener { socket, path: path.into(), identity: identity(path) };
        std::fs::set_permissions(path, Permissions::from_mode(mode & 0o777))
            .map_err(|source| ListenError::Os { path: path.into(), source })?;
        listener.identity = identity(path);
        let backlog = Backlog::new(LISTEN_BACKLOG).unwrap_or(Backlog::MAXCONN);
        listen(&listener.socket, backlog).map_err(failed)?;
        Ok(listener)
    }

    /// One that was bound by another process: what it is bound to stays when it ends here.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn adopt(path: &Path, socket: OwnedFd) -> Result<Self, ListenError> {
        let failed = |errno: Errno| ListenError::Os { path: path.into(), source: errno.into() };
        // accept(2) must not wait, whatever the other process wanted.
        let flags = OFlag::from_bits_retain(fcntl(&socket, FcntlArg::F_GETFL).map_err(failed)?);
        fcntl(&socket, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map_err(failed)?;
        Ok(Listener { socket, path: path.into(), identity: None })
    }

    /// Whether its path is still the one that was bound, `identity` by device and inode; then it goes
    /// when this value does. `None`: the path is somebody else's to remove.
    pub fn stands_at(&self, found: Option<(u64, u64)>) -> bool {
        found.is_none() || identity(&self.path) == found
    }

    /// From now on the path goes with this value, if it is what `identity` says.
    pub fn own(&mut self, identity: Option<(u64, u64)>) {
        self.identity = identity;
    }

    /// From now on the path stays when this value goes.
    pub fn leave(&mut self) {
        self.identity = None;
    }

    /// Device and inode of the path, if it goes with this value.
    pub fn identity(&self) -> Option<(u64, u64)> {
        self.identity
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

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
    check_directory(path, &found, rule)?;
    let open_mode = found.mode() & 0o7777;
    if rule == DirectoryRule::Administrator && open_mode & 0o027 != 0 {
        // Made by a service manager with one mode for all directories. Nobody else could write, so
        // closing it is enough.
        std::fs::set_permissions(path, Permissions::from_mode(open_mode & 0o750))
            .map_err(failed)?;
    }
    Ok(())
}

fn check_directory(
    path: &Path,
    found: &std::fs::Metadata,
    rule: DirectoryRule,
) -> Result<(), ListenError> {
    check_directory_form(path, found, rule)?;
    let us = nix::unistd::geteuid().as_raw();
    let owner = found.uid();
    let is_owner_trusted = owner == us || (rule == DirectoryRule::Clients && owner == 0);
    if !is_owner_trusted {
        let problem = format!("it belongs to uid {owner}, and this broker runs as uid {us}");
        let remedy = format!("`chown {us}` it, or name another place");
        return Err(ListenError::Unsafe { path: path.into(), problem, remedy });
    }
    Ok(())
}

/// What is the same whoever the broker runs as.
pub(crate) fn check_directory_form(
    path: &Path,
    found: &std::fs::Metadata,
    rule: DirectoryRule,
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
    Ok(())
}

/// Whether the path names this file.
fn is_at(file: &File, path: &Path) -> bool {
    let opened = file.metadata().ok().map(|found| (found.dev(), found.ino()));
    opened.is_some() && opened == identity(path)
}

/// Removes a socket that nobody serves.
fn remove_stale(path: &Path, former: Predecessor) -> Result<(), ListenError> {
    let failed = |source| ListenError::Os { path: path.into(), source };
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) => found,
    };
    if !found.file_type().is_socket() {
        return Err(ListenError::NoSocket { path: path.into() });
    }
    let probe = new_socket().map_err(|errno| failed(errno.into()))?;
    let is_dead = match connect(probe.as_raw_fd(), &address(path)?) {
        Err(Errno::ECONNREFUSED) => true,
        Ok(()) => former == Predecessor::Hangs && is_of_ended(&probe),
        // Its queue is full.
        Err(Errno::EAGAIN) => former == Predecessor::Hangs,
        // It is of another program (EPROTOTYPE).
        _ => false,
    };
    if !is_dead {
        return Err(ListenError::InUse { path: path.into() });
    }
    log::info!("removing {}, left by a broker that has died", path.display());
    std::fs::remove_file(path).map_err(failed)
}

/// Set in the flags of a process that exits: PF_EXITING of include/linux/sched.h.
const PF_EXITING: u32 = 0x4;

/// Whether the process that listens at the other end has ended, but for a thread that hangs: that is its first one when
/// it closes what the process had open.
fn is_of_ended(socket: &OwnedFd) -> bool {
    let Ok(peer) = getsockopt(socket, PeerCredentials) else { return false };
    let path = format!("/proc/{}/stat", peer.pid());
    let until = Instant::now() + DEATH_PATIENCE;
    loop {
        if has_ended(&std::fs::read_to_string(&path).unwrap_or_default()) {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(START_RETRY);
    }
}

/// Whether /proc/PID/stat is of a process that is a zombie or exits. Its state and, six fields later, its flags are behind
/// the name, which may have parentheses itself (proc_pid_stat(5)).
fn has_ended(stat: &str) -> bool {
    let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
    let flags = fields.split(' ').nth(6).and_then(|flags| flags.parse::<u32>().ok());
    fields.starts_with(['Z', 'X']) || flags.is_some_and(|flags| flags & PF_EXITING != 0)
}

fn new_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

fn address(path: &Path) -> Result<UnixAddr, ListenError> {
    UnixAddr::new(path).map_err(|_| ListenError::TooLong { path: path.into() })
}

/// Whether the path fits sockaddr_un (unix(7)); else what is wrong with it.
pub(crate) fn check_address(path: &Path) -> Result<(), String> {
    match UnixAddr::new(path) {
        Ok(_) => Ok(()),
        Err(Errno::ENAMETOOLONG) => {
            let bytes = path.as_os_str().len();
            Err(format!("the path has {bytes} bytes, and the kernel allows a socket's 107"))
        }
        Err(errno) => Err(format!("the path cannot be a socket's ({})", errno.desc())),
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_when_a_zombie_or_when_it_exits_then_whatever_its_name() {
        assert!(has_ended("7 (D) b) Z 1 7 7 0 -1 4194304 0"));
        assert!(has_ended("7 (fdbrokerd) D 1 7 7 0 -1 4195340 0"), "it closes what it had open");
        assert!(!has_ended("7 (Z) Z) D 1 7 7 0 -1 4194304 0"));
        assert!(!has_ended(""));
    }

    fn mode_of(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn bind(path: &Path) -> Result<Listener, ListenError> {
        Listener::bind(path, 0o666, Predecessor::Gone)
    }

    #[test]
    fn bind_when_done_then_mode_is_exact_and_path_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broker.sock");
        for mode in [0o666, 0o600] {
            let listener = Listener::bind(&path, mode, Predecessor::Gone).unwrap();
            assert_eq!(mode_of(&path), mode);
            drop(listener);
            assert!(!path.exists());
        }
    }

    #[test]
    fn bind_when_a_dead_broker_left_its_socket_then_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broker.sock");
        let mut dead = bind(&path).unwrap();
        dead.identity = None;
        drop(dead);
        assert!(path.exists());
        bind(&path).unwrap();
    }

    #[test]
    fn bind_when_a_live_broker_is_there_then_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broker.sock");
        let live = bind(&path).unwrap();
        assert!(matches!(bind(&path), Err(ListenError::InUse { .. })));
        assert_eq!(identity(&path), live.identity);
        let after_a_hung_one = Listener::bind(&path, 0o666, Predecessor::Hangs);
        assert!(matches!(after_a_hung_one, Err(ListenError::InUse { .. })), "this process lives");
    }

    #[test]
    fn bind_when_something_else_is_there_then_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broker.sock");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path), Err(ListenError::NoSocket { .. })));
        assert!(path.exists());
    }

    #[test]
    fn bind_when_path_is_too_long_then_named() {
        let path = Path::new("/tmp").join("x".repeat(120));
        assert!(matches!(bind(&path), Err(ListenError::TooLong { .. })));
    }

    #[test]
    fn drop_when_path_is_anothers_by_now_then_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broker.sock");
        let first = bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _second = bind(&path).unwrap();
        drop(first);
        assert!(path.exists());
    }

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
    fn prepare_directory_when_a_symlink_then_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        let result = prepare_directory(&link, 0o700, DirectoryRule::Clients);
        assert!(matches!(result, Err(ListenError::Unsafe { .. })));
    }

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
