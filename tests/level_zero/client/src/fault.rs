//! The failures of cases. Must never lack the expected value.

use level_zero_sys::{CallError, ze_result_t};

pub type Fault = Box<dyn std::error::Error + Send + Sync>;
pub type Outcome = Result<(), Fault>;

/// A fault unless both values are equal.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Outcome {
    holds(found == expected, || format!("{what}: found {found:?}, expected {expected:?}"))
}

/// A fault with these words unless the condition holds.
pub fn holds(holds: bool, words: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(words().into()) }
}

/// A fault unless the driver answered this code.
pub fn refused<T>(what: &str, done: Result<T, CallError>, expected: ze_result_t) -> Outcome {
    match done {
        Err(CallError::Failed { code, .. }) if code == expected => Ok(()),
        Err(error) => Err(format!("{what}: {error}; expected {expected}").into()),
        Ok(_) => Err(format!("{what} succeeded; expected {expected}").into()),
    }
}
