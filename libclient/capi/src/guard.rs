//! The boundary to C: every exported function that can fail or panic runs inside one of these. Must
//! never let a panic into C.

use crate::errors::{FDBROKER_INTERNAL, FDBROKER_OK, fdbroker_code_t};
use crate::failure::Failure;
use crate::last_error;
use fdbroker_client::{ErrorCode, take_interrupt};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body` and answers its code; a failure becomes this thread's last error.
#[inline]
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> fdbroker_code_t {
    match caught(body) {
        Ok(Ok(())) => FDBROKER_OK,
        Ok(Err(failure)) => refused(&failure),
        Err(()) => FDBROKER_INTERNAL,
    }
}

#[cold]
fn refused(failure: &Failure) -> fdbroker_code_t {
    if take_interrupt() {
        let text = "stopped by the program, after a signal";
        return refused(&Failure::new(ErrorCode::Cancelled, text));
    }
    note(failure);
    failure.code()
}

/// The same for functions that answer a value; they answer `otherwise` when they fail.
pub(crate) fn guard_value<T>(otherwise: T, body: impl FnOnce() -> Result<T, Failure>) -> T {
    match caught(body) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => {
            note(&failure);
            otherwise
        }
        Err(()) => otherwise,
    }
}

fn note(failure: &Failure) {
    if !matches!(failure, Failure::NotReady) {
        last_error::set(failure);
    }
}

#[inline]
fn caught<T>(body: impl FnOnce() -> T) -> Result<T, ()> {
    // A panic leaves consistent data: every lock here is released between consistent states.
    catch_unwind(AssertUnwindSafe(body)).map_err(note_panic)
}

#[cold]
fn note_panic(payload: Box<dyn Any + Send>) {
    let what = reason(payload.as_ref());
    last_error::set(format_args!("INTERNAL: a fault in the library: {what}; please report it"));
    // The payload's own drop may panic too.
    std::mem::forget(payload);
}

fn reason(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn text() -> String {
        // SAFETY: NUL-terminated, and read before this thread's next failing call.
        unsafe { CStr::from_ptr(last_error::as_ptr()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn guard_when_body_panics_then_internal_and_says_why() {
        assert_eq!(guard(|| panic!("slot {} is gone", 7)), FDBROKER_INTERNAL);
        assert!(text().contains("slot 7 is gone"), "{}", text());
        assert_eq!(guard_value(-1, || panic!("again")), -1);
        assert!(text().contains("again"));
    }

    #[test]
    fn guard_when_not_ready_then_the_last_error_stays() {
        last_error::set("before");
        assert_ne!(guard(|| Err(Failure::NotReady)), FDBROKER_OK);
        assert_eq!(text(), "before");
    }
}
