//! Where a broker's sockets stand, and which users it serves. Must never look at the machine.

use crate::node::directories::parent;
use serde::Deserialize;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Which users the broker serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A node: sockets for everybody, not dumpable.
    Service,
    /// One user or job: directories 0700, sockets 0600, dumpable, so that its owner can inspect it.
    Private,
}

/// A socket for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSettings {
    /// Path of the socket.
    pub path: PathBuf,
    /// By which domains name it: a hash of the path.
    pub number: u32,
    /// Mode of the socket, such as 0o666.
    pub mode: u32,
    /// The configuration names it, so that it is given to a service manager's socket, too.
    pub sets_mode: bool,
    /// What tells domains apart there, beside the uid.
    pub isolate: Option<Isolate>,
}

impl ListenerSettings {
    /// A listener at this path.
    pub fn new(path: PathBuf, mode: u32, isolate: Option<Isolate>) -> Self {
        ListenerSettings { number: number_of(&path), path, mode, sets_mode: false, isolate }
    }
}

/// The number of a listener: a hash of its path, the same in every version of the broker. What is
/// kept names its domain by it, so it is never another listener's, however these are listed.
fn number_of(path: &Path) -> u32 {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut hasher = SipHasher13::new();
    hasher.write(whole.as_os_str().as_bytes());
    // 31 bits: never that of nobody's domain.
    (hasher.finish() >> 33) as u32
}

/// What tells domains of one uid apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolate {
    /// The pod of Kubernetes. A process in none is not served.
    Pod,
}

/// The administrator's socket that belongs to a client socket: for DIR/NAME it is
/// DIR-admin/admin.sock.
pub fn admin_socket_of(client_socket: &Path) -> PathBuf {
    let mut directory = parent(client_socket).as_os_str().to_owned();
    directory.push("-admin");
    PathBuf::from(directory).join("admin.sock")
}

/// The socket for users that look, which belongs to a client socket: for DIR/NAME it is
/// DIR/view.sock.
pub fn view_socket_of(client_socket: &Path) -> PathBuf {
    parent(client_socket).join("view.sock")
}
