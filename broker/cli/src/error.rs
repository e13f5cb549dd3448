//! The errors of all commands, each with its cause, its remedy and its exit status. Must never
//! print anything, nor hide a cause.

use fdbroker_protocol::{DecodeError, ErrorCode};
use fdbroker_scm::Stranger;
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
    /// There is no broker.
    pub const NO_BROKER: u8 = 3;
    /// Not found, or denied.
    pub const NOT_FOUND: u8 = 4;
    /// `audit` or `doctor` has found faults.
    pub const FINDINGS: u8 = 5;
    /// There is a broker, and it does not answer.
    pub const NO_ANSWER: u8 = 6;
}

/// Why a command was not done. Each message names the cause and, after a semicolon, the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Wrong arguments that clap cannot recognise.
    #[error("{0}")]
    Usage(String),
    /// Nothing listens on the admin socket.
    #[error(
        "no broker answers at {} ({cause}); start one (`fdbroker run -- CMD`, or the service fdbrokerd), or name its socket in FDBROKER_ADMIN_SOCKET",
        path.display()
    )]
    NoBroker {
        /// The socket that was tried.
        path: PathBuf,
        /// The error of the system call.
        cause: io::Error,
    },
    /// The socket exists, but this user may not use it.
    #[error(
        "no access to {} ({cause}); run this as the user of the broker or as root",
        path.display()
    )]
    Denied {
        path: PathBuf,
        /// The error of the system call.
        cause: io::Error,
    },
    /// Of the socket for users beside a listener that serves pods alone.
    #[error(
        "nothing is shown at {}: the listener there serves pods alone (isolate = \"pod\"), and this process is in none that the broker can \
         tell; run this as root, as the broker's user, or as a member of its monitor_group outside pods, or name another listener in FDBROKER_SOCKET",
        path.display()
    )]
    OutsidePods { path: PathBuf },
    /// Another user serves the socket.
    #[error("nothing was asked at {}: {who}", path.display())]
    Stranger { path: PathBuf, who: Stranger },
    /// The subject of the command does not exist.
    #[error("{0}")]
    NotFound(String),
    /// A call of the client library failed.
    #[error("{0}")]
    Client(#[from] fdbroker_client::Error),
    /// The broker refused a query.
    #[error("the broker refused: {0}")]
    Refused(ErrorCode),
    /// The user is neither root nor the broker's user.
    #[error("not permitted to {0}: only root and the broker's user may; run this as one of them")]
    NotAdministrator(&'static str),
    /// What was asked for cannot be divided between users.
    #[error(
        "{0} of the whole node; run this as root, as the broker's user, or as a member of its monitor_group"
    )]
    OfWhole(&'static str),
    /// Other commands of this user have all the places.
    #[error(
        "the broker at {} answers no more commands of this user at the same time; end a `fdbroker watch` or `fdbroker top`",
        path.display()
    )]
    NoPlace { path: PathBuf },
    /// The broker ended while it was watched.
    #[error("the broker at {} has ended", path.display())]
    BrokerEnded { path: PathBuf },
    /// The watched broker ended, and no other has started in time.
    #[error(
        "the broker at {} has ended, and no other has started within {waited_s} s ({cause}); start it again (the service fdbrokerd, or `fdbroker run -- CMD`)",
        path.display()
    )]
    BrokerGone {
        path: PathBuf,
        /// The error of the last try to connect.
        cause: String,
        /// Time spent trying, in seconds.
        waited_s: u64,
    },
    /// The broker accepts no more watchers.
    #[error(
        "the broker at {} has no room for another watcher of events; end a `fdbroker watch` or `fdbroker top`",
        path.display()
    )]
    TooManyWatch { path: PathBuf },
    /// The broker does not answer in time.
    #[error(
        "the broker at {} does not answer; it is stopped, hangs or is overloaded: see its process and its log, continue it (SIGCONT) or restart it",
        path.display()
    )]
    NoAnswer { path: PathBuf },
    /// The broker's answer cannot be decoded.
    #[error("the broker's answer is broken ({0}); use a command and a broker of the same release")]
    Protocol(#[from] DecodeError),
    /// The connection to the broker ended early.
    #[error(
        "the broker at {} ended the connection ({cause}); see its log, or run this again: when too many commands look \
         at once, the broker ends the oldest connection",
        path.display()
    )]
    Lost { path: PathBuf, cause: String },
    /// A call to the operating system failed.
    #[error("cannot {what}: {cause}")]
    Os {
        /// The attempted action, beginning with a verb.
        what: String,
        /// The error of the system call.
        cause: io::Error,
    },
    /// The reader of the output is gone (`fdbroker ls | head`).
    #[error("the output was closed")]
    OutputClosed,
    /// Ended by a signal, after cleaning up.
    #[error("interrupted by {0}")]
    Interrupted(nix::sys::signal::Signal),
    /// Any other error, as a sentence.
    #[error("{0}")]
    Other(String),
}

/// The result of a command, or of a step of one.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The process's exit status.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Usage(_) => exit::USAGE,
            Error::NoBroker { .. } | Error::BrokerEnded { .. } | Error::BrokerGone { .. } => {
                exit::NO_BROKER
            }
            Error::NoAnswer { .. } => exit::NO_ANSWER,
            Error::Denied { .. }
            | Error::OutsidePods { .. }
            | Error::Stranger { .. }
            | Error::NotFound(_)
            | Error::NotAdministrator(_)
            | Error::OfWhole(_) => exit::NOT_FOUND,
            Error::Client(error) if is_no_answer(error) => exit::NO_ANSWER,
            Error::Client(error) => status_of(error.code),
            Error::Refused(code) => status_of(*code),
            Error::OutputClosed => exit::OK,
            Error::Interrupted(signal) => 128 + *signal as u8,
            _ => exit::ERROR,
        }
    }
}

/// Whether the broker is there and says nothing: it has not answered in time, or not even hello.
fn is_no_answer(error: &fdbroker_client::Error) -> bool {
    let is_late = error.code == ErrorCode::TimedOut;
    let is_unheard = || error.context.ends_with("the broker does not answer");
    error.status.is_none() && (is_late || is_unheard())
}

/// The exit status of a refusal.
fn status_of(code: ErrorCode) -> u8 {
    match code {
        ErrorCode::NotConnected | ErrorCode::ShuttingDown => exit::NO_BROKER,
        ErrorCode::NotPermitted | ErrorCode::Stale | ErrorCode::BadHandle => exit::NOT_FOUND,
        // Of objects: there is none that can be had now, or in the time that was given.
        ErrorCode::NotFound | ErrorCode::NotSealed | ErrorCode::TimedOut => exit::NOT_FOUND,
        _ => exit::ERROR,
    }
}

impl From<fdbroker_demo::Error> for Error {
    fn from(error: fdbroker_demo::Error) -> Self {
        use fdbroker_demo::Error as Demo;
        match error {
            Demo::Usage(message) => Error::Usage(message),
            Demo::Interrupted(signal) => Error::Interrupted(signal),
            Demo::Host(cause) => match cause.downcast() {
                Ok(error) => *error,
                Err(cause) => Error::Other(cause.to_string()),
            },
            other => Error::Other(other.to_string()),
        }
    }
}

/// Adds the attempted action to an error of the operating system.
pub trait Context<T> {
    /// `what` begins with a verb: "cannot {what}: {cause}".
    fn context<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|cause| Error::Os { what: what().into(), cause: cause.into() })
    }
}
