//! The errors between this process and the Level Zero loader, each with its cause and remedy.
//! Must never say less than the system did: the dynamic linker's own words are kept.

use crate::bindings::ze_result_t;
use std::path::PathBuf;

/// Why this process could not load Level Zero.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// dlopen(3) did not find the library, or could not load it.
    #[error(
        "the Level Zero loader {} cannot be loaded: {reason}; \
         install it (Debian: libze1) or add its directory to the library path",
        library.display()
    )]
    NotLoaded {
        /// The library's name or path, as asked for.
        library: PathBuf,
        /// The dynamic linker's reason.
        reason: String,
    },
    /// A library of that name was loaded, but it is no Level Zero loader.
    #[error(
        "{} is no Level Zero loader, it has no zeInit; \
         see which file the library path finds under that name",
        library.display()
    )]
    NotALoader {
        /// The library's name or path, as asked for.
        library: PathBuf,
    },
}

/// Why a call did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The loader is older than the function, and lacks it. Nothing was called.
    #[error("this Level Zero loader has no {function}; a newer one (Debian: libze1) may have it")]
    Missing {
        /// Its name in the specification.
        function: &'static str,
    },
    /// The function did not answer `ZE_RESULT_SUCCESS`. `ZE_RESULT_NOT_READY` is such an answer,
    /// too.
    #[error("{function} answered {code}")]
    Failed {
        /// Its name in the specification.
        function: &'static str,
        /// The driver's or the loader's answer.
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
