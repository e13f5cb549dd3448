//! Where a broker's sockets stand, and which users it serves. Must never look at the machine.

use crate::node::directories::parent;
use serde::Deserialize;
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
    /// Mode of the socket, such as 0o666.
    pub mode: u32,
    /// What tells domains apart there, beside the uid.
    pub isolate: Option<Isolate>,
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
