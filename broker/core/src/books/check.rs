//! How saved data is refused: with what is wrong, and the number of what it is wrong with. Must
//! never panic at it.

use crate::api::ConfigError;

/// Why saved data is not gone on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The new configuration cannot work, with any data.
    Config(ConfigError),
    /// The data contradicts itself: what is wrong, and the number of what it is wrong with.
    Broken(&'static str, u64),
    /// The data is sound, but needs more places in the fd table than there are: needed, there.
    Table(u64, u64),
}

impl std::fmt::Display for RestoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RestoreError::Config(error) => error.fmt(f),
            RestoreError::Broken(what, number) => write!(
                f,
                "the state handed over is damaged ({what}: {number}); it is given up, and clients begin anew"
            ),
            RestoreError::Table(needed, has) => write!(
                f,
                "the state handed over needs table_fds = {needed}, there are {has}: raise RLIMIT_NOFILE"
            ),
        }
    }
}

impl std::error::Error for RestoreError {}

impl From<(&'static str, u64)> for RestoreError {
    fn from((what, number): (&'static str, u64)) -> Self {
        RestoreError::Broken(what, number)
    }
}

pub(crate) type Check<T = ()> = Result<T, RestoreError>;

/// Fails unless a rule holds; `what` and `number` say of which record.
pub(crate) fn ensure(holds: bool, what: &'static str, number: impl Into<u64>) -> Check {
    if holds { Ok(()) } else { Err(RestoreError::Broken(what, number.into())) }
}
