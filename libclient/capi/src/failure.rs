//! Why a function did not succeed: the library's error, or an argument that is not valid.
//! Must never be made in a call that succeeds: it allocates.

use crate::errors::{FDBROKER_AGAIN, FDBROKER_INVALID_ARGUMENT, fdbroker_code_t};
use fdbroker_client::{Error, ErrorCode};

/// The reason, which becomes the code and the last error's text.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// An argument is not valid: FDBROKER_INVALID_ARGUMENT.
    Argument(String),
    /// The library's or the broker's error, with its code.
    Library(Error),
    /// Not ready yet, which is no failure: the last error's text stays.
    NotReady,
}

impl Failure {
    pub fn argument(text: impl Into<String>) -> Self {
        Failure::Argument(text.into())
    }

    pub fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Failure::Library(Error::new(code, text))
    }

    /// A lease, an import or a buffer given back that the program does not have.
    pub fn given_back(text: impl Into<String>) -> Self {
        Failure::Library(fdbroker_client::layer::given_back(text))
    }

    pub fn code(&self) -> fdbroker_code_t {
        match self {
            Failure::Argument(_) => FDBROKER_INVALID_ARGUMENT,
            Failure::Library(error) => fdbroker_code_t::from(error.code as u16),
            Failure::NotReady => FDBROKER_AGAIN,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Library(error)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Argument(text) => write!(f, "INVALID_ARGUMENT: {text}"),
            Failure::Library(error) => write!(f, "{error}"),
            Failure::NotReady => f.write_str("AGAIN: not ready yet"),
        }
    }
}
