//! Why the broker cannot serve at its place. Must never leave out what to do.

use std::io;
use std::path::PathBuf;

/// Why a socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The directory cannot be made or looked at.
    #[error(
        "cannot use directory {path}: {source}; create it, or name another place (in the configuration, or FDBROKER_SOCKET and FDBROKER_ADMIN_SOCKET)"
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system call says.
        source: io::Error,
    },
    /// Somebody else could put or replace files in it.
    #[error("directory {path} is not safe: {problem}; {remedy}")]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it, as a part of a sentence.
        problem: String,
        /// What to do about it, as a part of a sentence.
        remedy: String,
    },
    /// Another broker serves this place.
    #[error(
        "another broker serves {path}; end it first, take its place with --takeover, or name another place (--private DIR, or FDBROKER_SOCKET and FDBROKER_ADMIN_SOCKET)"
    )]
    InUse {
        /// Of its socket or lock.
        path: PathBuf,
    },
    /// Something that is no socket is in the way.
    #[error("{path} exists and is no socket; remove it, or name another path")]
    NoSocket {
        /// The file that is in the way.
        path: PathBuf,
    },
    /// Who has bound a socket keeps its mode to himself.
    #[error(
        "mode = 0o{mode:o} cannot be given to {path}, which belongs to uid {owner}; set SocketMode=0{mode:o} in its socket unit and leave \
         `mode` out, or SocketUser= to the broker's user"
    )]
    Mode {
        /// Of the socket.
        path: PathBuf,
        /// That the configuration names.
        mode: u32,
        /// Of the socket.
        owner: u32,
    },
    /// A socket is to stand where something else of the broker does.
    #[error("{path} and another file of this broker are both {place}; give each a path of its own")]
    Twice {
        /// Of one of them.
        path: PathBuf,
        /// The place at which both would be.
        place: PathBuf,
    },
    /// The path does not fit sockaddr_un (unix(7)).
    #[error(
        "socket path {path} is longer than the 107 bytes the kernel allows; use a shorter directory"
    )]
    TooLong {
        /// The whole path, which is too long.
        path: PathBuf,
    },
    /// Any other failure.
    #[error("cannot serve {path}: {source}")]
    Os {
        /// Of the socket or lock.
        path: PathBuf,
        /// What the system call says.
        source: io::Error,
    },
}
