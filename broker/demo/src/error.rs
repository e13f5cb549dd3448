//! Why the demo ended early. Must never hide a cause: the command prints the message as it is.

use nix::sys::signal::Signal;
use std::io;

/// Why the demo, or one of its ranks, could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments cannot work, for a reason that was known before any process started.
    #[error("{0}")]
    Usage(String),
    /// A signal asked the demo to end.
    #[error("interrupted by {0}")]
    Interrupted(Signal),
    /// The library refused a call; its message has the remedy.
    #[error(transparent)]
    Client(#[from] fdbroker_client::Error),
    /// A call to the operating system failed.
    #[error("cannot {what}: {cause}")]
    Os {
        /// What was tried, a verb first.
        what: String,
        /// The error of the system call.
        cause: io::Error,
    },
    /// The program that runs the demo failed to do its part; its own error.
    #[error(transparent)]
    Host(Box<dyn std::error::Error + Send + Sync>),
    /// Anything else, as a sentence.
    #[error("{0}")]
    Other(String),
}

/// Result of the demo, or of a part of it.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// For `map_err`: names the call to the operating system that failed, a verb first.
pub(crate) fn os<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Error {
    |cause| Error::Os { what: what.into(), cause: cause.into() }
}

/// An error that is a sentence.
pub(crate) fn other<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Other(message.into()))
}
