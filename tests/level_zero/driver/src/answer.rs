//! Errors inside the driver, and the codes that programs get for them. Must never turn an error
//! into a success.

use level_zero_sys::ze_result_t;
use std::io;

/// An error of the driver, before it becomes a code.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Answer(ze_result_t),
    /// This process is at its RLIMIT_NOFILE, or the system at its limit of files.
    #[error("no room for one more fd in this process")]
    FdLimit,
    #[error("{what}: {source}")]
    Os { what: &'static str, source: io::Error },
}

impl Failure {
    pub fn os(what: &'static str, errno: i32) -> Self {
        match errno {
            libc::EMFILE | libc::ENFILE => Self::FdLimit,
            errno => Self::Os { what, source: io::Error::from_raw_os_error(errno) },
        }
    }

    /// The code that compute-runtime answers; at the fd limit that is "out of host memory".
    pub fn code(&self) -> ze_result_t {
        match self {
            Self::Answer(code) => *code,
            Self::FdLimit => ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY,
            Self::Os { source, .. } => match source.raw_os_error() {
                Some(libc::ENOMEM | libc::ENOSPC) => {
                    ze_result_t::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY
                }
                _ => ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT,
            },
        }
    }
}

impl From<ze_result_t> for Failure {
    fn from(code: ze_result_t) -> Self {
        Self::Answer(code)
    }
}

/// The code that an entry point answers. A failure is traced under the function's name.
pub fn answer(function: &str, done: Result<(), Failure>) -> ze_result_t {
    match done {
        Ok(()) => ze_result_t::ZE_RESULT_SUCCESS,
        Err(failure) => {
            let code = failure.code();
            crate::trace::trace!("{function} answers {code}: {failure}");
            code
        }
    }
}
