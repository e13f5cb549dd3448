//! Which of many requests and watches may go on, by one fd: for event loops. Must never wait.

use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::{guard, guard_value};
use crate::sized::{place, take_back};
use fdbroker_client::Due;
use std::ffi::c_int;
use std::ptr::null_mut;

/// The requests and watches of one event loop that may go on, by tokens of the program. Any thread
/// may use it.
pub struct fdbroker_due_t {
    pub(crate) due: Due,
}

/// Makes one, for any number of requests and watches of any context: fdbroker_request_tell(),
/// fdbroker_object_watch_tell(). To be given back by fdbroker_due_close(). On failure *due is NULL.
///
/// Errors: FDBROKER_LOCAL_FD_LIMIT, FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_due_open(due: *mut *mut fdbroker_due_t) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointer, as the header states.
        let out = unsafe { place(due, "due", null_mut()) }?;
        *out = Box::into_raw(Box::new(fdbroker_due_t { due: Due::new()? }));
        Ok(())
    })
}

/// An fd for poll(2) and POLLIN, readable while fdbroker_due_take() has a token. It stays the
/// library's: do not read or close it. After a program has closed it all the same, the next call
/// makes another. -1: NULL, or there is no fd for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_due_fd(due: *mut fdbroker_due_t) -> c_int {
    guard_value(-1, || {
        // SAFETY: the caller's pointer, as the header states.
        Ok(unsafe { due_of(due) }?.event_fd()?)
    })
}

/// The next token: test its request, or read its watch until it has no event. FDBROKER_AGAIN:
/// nothing is due, and fdbroker_last_error() stays as it was. A token may also come of a request
/// that is done or cancelled. Never waits.
///
/// Errors: FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_due_take(
    due: *mut fdbroker_due_t,
    token: *mut u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (out, due) = unsafe { (place(token, "token", 0)?, due_of(due)?) };
        *out = due.take().ok_or(Failure::NotReady)?;
        Ok(())
    })
}

/// Puts in a token of the program's own. Never waits.
///
/// Errors: FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_due_tell(
    due: *mut fdbroker_due_t,
    token: u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointer, as the header states.
        unsafe { due_of(due) }?.tell(token);
        Ok(())
    })
}

/// Gives it back, before or after the requests and watches that tell it. NULL: does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_due_close(due: *mut fdbroker_due_t) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: made by fdbroker_due_open, and this is its last use.
        unsafe { take_back(due) }
    })
}

/// The caller's.
///
/// # Safety
/// `due` is NULL, or nobody gives it back while the result is used.
pub(crate) unsafe fn due_of<'a>(due: *mut fdbroker_due_t) -> Result<&'a Due, Failure> {
    // SAFETY: the caller's promise.
    unsafe { due.as_ref() }.map(|it| &it.due).ok_or_else(|| Failure::argument("due is NULL"))
}
