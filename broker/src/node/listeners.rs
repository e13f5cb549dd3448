//! Sockets in the file system, and left-overs of a broker that has died. Must never take the place
//! of a broker that lives.

use crate::kernel;
use crate::limits::{DEATH_PATIENCE, LISTEN_BACKLOG, START_RETRY};
use crate::node::directories::{chmod, identity, parent};
use crate::node::error::ListenError;
use crate::node::lock::{Predecessor, Remains};
use crate::node::mark::Mark;
use crate::node::names::LINK_PREFIX;
use crate::node::shared_map::remove;
use crate::node::warden::{Place, set_aside};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, bind, connect, getpeername,
    getsockname, getsockopt, listen, shutdown, socket,
};
use nix::sys::stat::{Mode, fchmod};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A listening socket with its path; both end together.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the path as bound, so that never another broker's socket is removed.
    identity: Option<(u64, u64)>,
    /// Device and inode of the socket, whoever has bound it, if they are known; and where its
    /// further link is, or why there is none.
    known: Option<(u64, u64)>,
    link: Result<PathBuf, Errno>,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.end();
    }
}

impl Listener {
    /// Binds `path` with exactly `mode` and listens. A socket left there by a broker that has died
    /// is removed, also when it still takes connections: a call of the former broker hangs, or
    /// another process holds the socket.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind(path: &Path, mode: u32, remains: &Remains) -> Result<Self, ListenError> {
        remove_stale(path, remains)?;
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
        let found = identity(path);
        let mut listener = Listener::new(path, socket, found, found);
        listener.keep(remains.links.as_deref());
        chmod(listener.safest(), mode & 0o777)
            .map_err(|source| ListenError::Os { path: path.into(), source })?;
        let backlog = Backlog::new(LISTEN_BACKLOG).unwrap_or(Backlog::MAXCONN);
        listen(&listener.socket, backlog).map_err(failed)?;
        if remains.links.is_some() {
            if !listener.leads_here(listener.safest()) {
                return Err(ListenError::InUse { path: path.into() });
            }
            // The connection by which this was found out. A client that was as quick connects
            // again.
            while kernel::accept(listener.as_fd()).is_ok() {}
        }
        Ok(listener)
    }

    fn new(
        path: &Path,
        socket: OwnedFd,
        own: Option<(u64, u64)>,
        known: Option<(u64, u64)>,
    ) -> Self {
        Listener { socket, path: path.into(), identity: own, known, link: Err(Errno::ENOENT) }
    }

    /// Has a further link of its socket in the directory `links`, from which it can be put back at
    /// its path. One that is there already is used again: the path may be somebody else's by now.
    pub fn keep(&mut self, links: Option<&Path>) {
        let Some(links) = links else { return };
        let link = links.join(link_name(&self.path));
        self.link = self.link_at(&link).map(|()| link);
        if self.known.is_none() && self.leads_here(self.safest()) {
            self.known = identity(self.safest());
        }
    }

    fn link_at(&self, link: &Path) -> Result<(), Errno> {
        let is_it = || match self.known {
            Some(known) => identity(link) == Some(known),
            None => self.leads_here(link),
        };
        if is_it() {
            return Ok(());
        }
        let made = remove(link).and_then(|()| std::fs::hard_link(&self.path, link));
        made.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
        if is_it() {
            return Ok(());
        }
        let _ = remove(link);
        Err(Errno::ESTALE)
    }

    /// Gives the mode to a socket that another process has bound.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn set_mode(&self, mode: u32) -> Result<(), ListenError> {
        if self.known.is_some_and(|known| identity(self.safest()) != Some(known)) {
            return Err(ListenError::InUse { path: self.path.clone() });
        }
        chmod(self.safest(), mode)
            .map_err(|source| ListenError::Os { path: self.path.clone(), source })
    }

    /// Whether it can be put back at its path.
    pub fn is_kept(&self) -> bool {
        self.link.is_ok()
    }

    /// Of its names the one that is hardest to be put something else at.
    fn safest(&self) -> &Path {
        self.link.as_deref().unwrap_or(&self.path)
    }

    /// Whether a connection at this path comes to this socket, as the kernel has it: the same
    /// process has bound it, to the same name.
    fn leads_here(&self, path: &Path) -> bool {
        let facts = |socket: &OwnedFd| getsockopt(socket, PeerCredentials).ok();
        let Ok(probe) = new_socket() else { return false };
        connect_to(&probe, path).is_ok()
            && facts(&probe) == facts(&self.socket)
            && getpeername::<UnixAddr>(probe.as_raw_fd()).ok()
                == getsockname::<UnixAddr>(self.socket.as_raw_fd()).ok()
    }

    /// What the warden is to know of it.
    pub fn place(&self) -> Option<Place> {
        let mode = |path: &Path| std::fs::symlink_metadata(path).ok().map(|it| it.mode() & 0o7777);
        let modes = [mode(self.safest())?, mode(parent(&self.path))?];
        let (link, unkept) = match &self.link {
            Ok(link) => (link.clone(), 0),
            Err(errno) => (PathBuf::new(), *errno as i32),
        };
        let (path, is_own) = (self.path.clone(), self.identity.is_some());
        // An inode that no file has: it is not known which socket is the broker's.
        let identity = self.known.unwrap_or_default();
        Some(Place { path, link, unkept, identity, modes, is_own })
    }

    /// One that was bound by another process: what it is bound to stays when it ends here. `known`:
    /// device and inode of that.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn adopt(
        path: &Path,
        socket: OwnedFd,
        known: Option<(u64, u64)>,
    ) -> Result<Self, ListenError> {
        let failed = |errno: Errno| ListenError::Os { path: path.into(), source: errno.into() };
        // accept(2) must not wait, whatever the other process wanted.
        let flags = OFlag::from_bits_retain(fcntl(&socket, FcntlArg::F_GETFL).map_err(failed)?);
        fcntl(&socket, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map_err(failed)?;
        Ok(Listener::new(path, socket, None, known))
    }

    /// Whether its path is still the one that was bound, `identity` by device and inode; then it
    /// goes when this value does. `None`: the path is somebody else's to remove.
    pub fn stands_at(&self, found: Option<(u64, u64)>) -> bool {
        found.is_none() || identity(&self.path) == found
    }

    /// From now on the path goes with this value, if it is what `identity` says.
    pub fn own(&mut self, identity: Option<(u64, u64)>) {
        self.identity = identity;
    }

    /// Removes the path and the link if they go with this value; then nobody can connect any more,
    /// even while a lane that hangs keeps the socket.
    pub fn end(&mut self) {
        let Some(own) = self.identity else { return };
        for path in [Some(&self.path), self.link.as_ref().ok()].into_iter().flatten() {
            if identity(path) == Some(own) {
                let _ = std::fs::remove_file(path);
            }
        }
        self.end_removed();
    }

    /// The same, of one whose path has been removed.
    pub fn end_removed(&mut self) {
        if self.identity.take().is_some() {
            let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
        }
    }

    /// From now on the path stays when this value goes.
    pub fn leave(&mut self) {
        self.identity = None;
    }

    /// Device and inode of the path, if it goes with this value.
    pub fn identity(&self) -> Option<(u64, u64)> {
        self.identity
    }

    /// Tells the socket at its path from any other, if it goes with this value.
    pub fn mark(&self) -> Option<Mark> {
        let stands = self.identity.is_some() && identity(&self.path) == self.identity;
        stands.then(|| Mark::of(&self.path)).flatten()
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes a socket that nobody serves.
fn remove_stale(path: &Path, remains: &Remains) -> Result<(), ListenError> {
    let failed = |source| ListenError::Os { path: path.into(), source };
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) => found,
    };
    if former_at(path, remains).is_some_and(|former| former != (found.dev(), found.ino())) {
        log::warn!("{} is not what the killed broker had there: replacing it", path.display());
        return if found.is_dir() { set_aside(path) } else { std::fs::remove_file(path) }
            .map_err(failed);
    }
    if !found.file_type().is_socket() {
        return Err(ListenError::NoSocket { path: path.into() });
    }
    let is_known = remains.sockets.contains(&Mark::new(&found));
    let probe = new_socket().map_err(|errno| failed(errno.into()))?;
    let is_dead = match connect(probe.as_raw_fd(), &address(path)?) {
        Err(Errno::ECONNREFUSED) => true,
        Ok(()) => match remains.former {
            Predecessor::Gone => is_known,
            Predecessor::Hangs => is_of_ended(&probe, is_known),
        },
        // Its queue is full.
        Err(Errno::EAGAIN) => is_known || remains.former == Predecessor::Hangs,
        // It is of another program (EPROTOTYPE).
        _ => false,
    };
    if !is_dead {
        return Err(ListenError::InUse { path: path.into() });
    }
    log::info!("removing {}, left by a broker that has died", path.display());
    std::fs::remove_file(path).map_err(failed)
}

/// Device and inode of the socket that a broker had at the path, if it was killed and nobody has
/// that socket any more.
fn former_at(path: &Path, remains: &Remains) -> Option<(u64, u64)> {
    let link = remains.links.as_ref()?.join(link_name(path));
    let is_dead = connect_to(&new_socket().ok()?, &link) == Err(Errno::ECONNREFUSED);
    is_dead.then(|| identity(&link))?
}

/// Set in the flags of a process that exits: PF_EXITING of include/linux/sched.h.
const PF_EXITING: u32 = 0x4;

/// Whether the process that listens at the other end has ended, but for a thread that hangs: that
/// is its first one when it closes what the process had open. One `may_be_gone` altogether if the
/// socket is known as the killed broker's; else the process that listened may be the parent of one
/// that serves.
fn is_of_ended(socket: &OwnedFd, may_be_gone: bool) -> bool {
    let Ok(peer) = getsockopt(socket, PeerCredentials) else { return false };
    let path = format!("/proc/{}/stat", peer.pid());
    let until = Instant::now() + DEATH_PATIENCE;
    loop {
        // No process, or one that this broker cannot see (0).
        let is_gone = || peer.pid() > 0 && !Path::new(&path).exists();
        let stat = std::fs::read_to_string(&path).unwrap_or_default();
        if has_ended(&stat) || (may_be_gone && is_gone()) {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(START_RETRY);
    }
}

/// Whether /proc/PID/stat is of a process that is a zombie or exits. Its state and, six fields
/// later, its flags are behind the name, which may have parentheses itself (proc_pid_stat(5)).
fn has_ended(stat: &str) -> bool {
    let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
    let flags = fields.split(' ').nth(6).and_then(|flags| flags.parse::<u32>().ok());
    fields.starts_with(['Z', 'X']) || flags.is_some_and(|flags| flags & PF_EXITING != 0)
}

/// The name of the further link of a path's socket: the path's FNV-1a hash.
pub(crate) fn link_name(path: &Path) -> String {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = path.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325, add);
    format!("{LINK_PREFIX}{hash:016x}")
}

/// Connects by a short name: that of a link may be longer than an address.
fn connect_to(socket: &OwnedFd, path: &Path) -> nix::Result<()> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let directory = nix::fcntl::open(parent(path), flags, Mode::empty())?;
    let place = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
    let address = UnixAddr::new(&place.join(path.file_name().unwrap_or_default()))?;
    connect(socket.as_raw_fd(), &address)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::directories::mode_of;

    #[test]
    fn ended_when_a_zombie_or_when_it_exits_then_whatever_its_name() {
        assert!(has_ended("7 (D) b) Z 1 7 7 0 -1 4194304 0"));
        assert!(has_ended("7 (fdbrokerd) D 1 7 7 0 -1 4195340 0"), "it closes what it had open");
        assert!(!has_ended("7 (Z) Z) D 1 7 7 0 -1 4194304 0"));
        assert!(!has_ended(""));
    }

    fn bind(path: &Path) -> Result<Listener, ListenError> {
        Listener::bind(path, 0o666, &Remains::NONE)
    }

    #[test]
    fn bind_when_done_then_mode_is_exact_and_path_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broker.sock");
        for mode in [0o666, 0o600] {
            let listener = Listener::bind(&path, mode, &Remains::NONE).unwrap();
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
        // Its socket may be at a path of a killed one, or be known, where a broker is taken over.
        for sockets in [Vec::new(), live.mark().into_iter().collect()] {
            let remains = Remains { former: Predecessor::Hangs, sockets, links: None };
            let refused = Listener::bind(&path, 0o666, &remains);
            assert!(matches!(refused, Err(ListenError::InUse { .. })), "this process lives");
        }
    }

    #[test]
    fn bind_when_another_holds_a_dead_brokers_socket_then_replaced_if_it_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broker.sock");
        let mut held = bind(&path).unwrap();
        let known = Remains {
            former: Predecessor::Gone,
            sockets: vec![held.mark().expect("it stands there")],
            links: None,
        };
        held.leave();
        assert!(matches!(bind(&path), Err(ListenError::InUse { .. })));
        let next = Listener::bind(&path, 0o666, &known).unwrap();
        let refused = Listener::bind(&path, 0o666, &known);
        assert!(matches!(refused, Err(ListenError::InUse { .. })), "another one is there by now");
        assert_eq!(identity(&path), next.identity);
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
}
