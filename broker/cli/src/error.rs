//! What can end a command early: cause, remedy and exit status in one place.
//! Must never print anything itself, nor hide a cause.

use fdbroker_protocol::{DecodeError, ErrorCode};
use std::io;
use std::path::PathBuf;

/// The command's exit statuses.
pub mod exit {
    /// Done.
    pub const OK: u8 = 0;
    /// An error that has no status of its own.
    pub const ERROR: u8 = 1;
    /// Wrong usage; also clap's.
    pub const USAGE: u8 = 2;
    /// No broker answers.
    pub const NO_BROKER: u8 = 3;
    /// Not found, or denied.
    pub const NOT_FOUND: u8 = 4;
    /// Something was looked for and found that should not be.
    pub const FINDINGS: u8 = 5;
}

/// Why a command was not done. Each message names the cause and, after a semicolon, the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Arguments that clap cannot judge.
    #[error("{0}")]
    Usage(String),
    /// Nobody listens on the administrator's socket.
    #[error(
        "no broker answers at {} ({cause}); start one (`fdbroker run -- CMD`, or the service fdbrokerd), or name its socket in FDBROKER_ADMIN_SOCKET",
        path.display()
    )]
    NoBroker {
        /// Where it was looked for.
        path: PathBuf,
        /// What the kernel said.
        cause: io::Error,
    },
    /// The socket is there and not for this user.
    #[error(
        "no access to {} ({cause}); run this as the user of the broker or as root",
        path.display()
    )]
    Denied {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        cause: io::Error,
    },
    /// What was asked for does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The broker refused a query.
    #[error("the broker refused: {0}")]
    Refused(ErrorCode),
    /// Not root, nor the broker's user.
    #[error(
        "not permitted to {0}: only root and the user of the broker are; run this as one of them"
    )]
    NotAdministrator(&'static str),
    /// It ended while it was watched.
    #[error("the broker at {} has ended", path.display())]
    BrokerEnded {
        /// The socket.
        path: PathBuf,
    },
    /// The same, and no other has come.
    #[error(
        "the broker at {} has ended, and none has come in its place within {waited_s} s ({cause}); start it again (the service fdbrokerd, or `fdbroker run -- CMD`)",
        path.display()
    )]
    BrokerGone {
        /// The socket.
        path: PathBuf,
        /// What the last try to reach one ended with.
        cause: String,
        /// How long it was tried.
        waited_s: u64,
    },
    /// It has no room for one more watcher.
    #[error(
        "as many watch as may: the broker at {} tells no more of its events; end a `fdbroker watch` or `fdbroker top`",
        path.display()
    )]
    TooManyWatch {
        /// The socket.
        path: PathBuf,
    },
    /// It takes too long.
    #[error(
        "the broker at {} does not answer; it hangs, or has no time for administrators (see its log)",
        path.display()
    )]
    NoAnswer {
        /// The socket.
        path: PathBuf,
    },
    /// The broker's answer makes no sense.
    #[error("the broker's answer is broken ({0}); use a command and a broker of the same release")]
    Protocol(#[from] DecodeError),
    /// The connection to the broker failed in the middle.
    #[error(
        "the broker at {} ended the connection ({cause}); see its log, or run this again: where many look at once, the \
         longest gives way",
        path.display()
    )]
    Lost {
        /// The socket.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// A call to the operating system failed.
    #[error("cannot {what}: {cause}")]
    Os {
        /// What was tried, a verb first.
        what: String,
        /// What the kernel said.
        cause: io::Error,
    },
    /// The reader of our output is gone (`fdbroker ls | head`).
    #[error("the output was closed")]
    OutputClosed,
    /// Ended by a signal, after cleaning up.
    #[error("interrupted by {0}")]
    Interrupted(nix::sys::signal::Signal),
    /// Anything else, in a sentence.
    #[error("{0}")]
    Other(String),
}

/// Result of a command or of a part of one.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The process's exit status.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Usage(_) => exit::USAGE,
            Error::NoBroker { .. }
            | Error::BrokerEnded { .. }
            | Error::BrokerGone { .. }
            | Error::NoAnswer { .. } => exit::NO_BROKER,
            Error::Denied { .. } | Error::NotFound(_) | Error::NotAdministrator(_) => {
                exit::NOT_FOUND
            }
            Error::Refused(code) => match code {
                ErrorCode::NotConnected | ErrorCode::ShuttingDown => exit::NO_BROKER,
                ErrorCode::NotPermitted | ErrorCode::Stale | ErrorCode::BadHandle => {
                    exit::NOT_FOUND
                }
                _ => exit::ERROR,
            },
            Error::OutputClosed => exit::OK,
            Error::Interrupted(signal) => 128 + *signal as u8,
            _ => exit::ERROR,
        }
    }
}

/// Names what was tried when a call to the operating system fails.
pub trait Context<T> {
    /// `what` begins with a verb: "cannot {what}: {cause}".
    fn context<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|cause| Error::Os { what: what().into(), cause: cause.into() })
    }
}
