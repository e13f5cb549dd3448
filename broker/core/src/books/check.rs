//! How saved data is refused: with what is wrong, and the number of what it is wrong with. Must
//! never panic at it.

use crate::api::ConfigError;

/// Why saved data is not gone on with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The new configuration cannot work, with any data.
    #[error("{0}")]
    Config(ConfigError),
    /// The data contradicts itself: what is wrong, and the number of what it is wrong with.
    #[error("the state handed over is damaged ({0}: {1}); it is given up, and clients begin anew")]
    Broken(&'static str, u64),
    /// The data is sound, but needs more places in the fd table than there are: needed, there.
    #[error("the state handed over needs table_fds = {0}, there are {1}: raise RLIMIT_NOFILE")]
    Table(u64, u64),
}

pub(crate) type Check<T = ()> = Result<T, RestoreError>;

/// Fails unless a rule holds; `what` and `number` say of which record.
pub(crate) fn ensure(holds: bool, what: &'static str, number: impl Into<u64>) -> Check {
    if holds { Ok(()) } else { Err(RestoreError::Broken(what, number.into())) }
}
