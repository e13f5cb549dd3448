//! What can go wrong between this process and the Level Zero loader, each with its cause and remedy.
//! It must never say less than the system did: the dynamic linker's own words are kept.

use crate::ze_result_t;
use std::path::PathBuf;

/// Why there is no Level Zero in this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// dlopen(3) did not find or could not load it.
    #[error(
        "the Level Zero loader {} cannot be loaded: {reason}; \
         install it (Debian: libze1) or add its directory to the library path",
        library.display()
    )]
    NotLoaded {
        /// What was asked for.
        library: PathBuf,
        /// The dynamic linker's reason.
        reason: String,
    },
    /// A library of that name was loaded, and it is something else.
    #[error(
        "{} is no Level Zero loader, it has no zeInit; \
         see which file the library path finds under that name",
        library.display()
    )]
    NotALoader {
        /// What was asked for.
        library: PathBuf,
    },
}

/// Why a call did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The loader lacks the function: it is older than the specification that has it. Nothing was called.
    #[error("this Level Zero loader has no {function}; a newer one (Debian: libze1) may have it")]
    Missing {
        /// The function's name.
        function: &'static str,
    },
    /// The function answered something other than `ZE_RESULT_SUCCESS` (`ZE_RESULT_NOT_READY` is such an answer).
    #[error("{function} answered {code}")]
    Failed {
        /// The function's name.
        function: &'static str,
        /// Its answer.
        code: ze_result_t,
    },
}

impl CallError {
    /// The driver's answer; `None` when nothing was called.
    pub fn code(&self) -> Option<ze_result_t> {
        match *self {
            CallError::Missing { .. } => None,
            CallError::Failed { code, .. } => Some(code),
        }
    }
}
