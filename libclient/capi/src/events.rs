//! Setting the two callbacks, and serving events without a library thread.
//! Must never change a callback while it runs.

use crate::callbacks::{fdbroker_notice_fn, fdbroker_recall_fn};
use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::guard::{guard, guard_value};
use crate::slot::{Callback, refuse_in_callback};
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Sets the callback that exports registered memory again when the broker recalls it; NULL: none, and recalls of
/// what is not host memory (which the library exports itself) fail. Set it before registering with
/// FDBROKER_RECALLABLE. Returns when the callback of before has returned, so that what its user points to may go
/// then; waits at most 10 s for that. Any thread, but not inside a callback.
///
/// Errors: FDBROKER_TIMED_OUT (replaced, but the one of before still runs), FDBROKER_NOT_SUPPORTED (inside a
/// callback), FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_set_recall_callback(
    broker: *mut fdbroker_t,
    callback: fdbroker_recall_fn,
    user: *mut c_void,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "set a callback") }?;
        context.callbacks.recall.set(callback.map(|call| Callback { call, user }))
    })
}

/// Sets the callback that hears notices; NULL: none. Rules and errors as fdbroker_set_recall_callback().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_set_notice_callback(
    broker: *mut fdbroker_t,
    callback: fdbroker_notice_fn,
    user: *mut c_void,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "set a callback") }?;
        context.callbacks.notice.set(callback.map(|call| Callback { call, user }))
    })
}

/// With FDBROKER_OPEN_DISPATCH: the fd to poll(2) for POLLIN, readable when fdbroker_dispatch() has something to do.
/// The library's: do not read or close it; the same until fdbroker_close(). Otherwise -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_event_fd(broker: *mut fdbroker_t) -> c_int {
    guard_value(-1, || {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "event fd") }?;
        Ok(context.client.event_fd()?.as_raw_fd())
    })
}

/// With FDBROKER_OPEN_DISPATCH: serves what there is to serve (recalls, notices, reconnecting), and when there is
/// nothing waits up to timeout_ms for something; 0 does not wait. FDBROKER_OK either way, and also while no broker
/// is there: looking for it is part of it. Callbacks run in here. Not inside a callback.
///
/// Errors: FDBROKER_NOT_SUPPORTED (a library thread serves; or inside a callback), FDBROKER_NOT_CONNECTED (in a
/// forked child), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_dispatch(
    broker: *mut fdbroker_t,
    timeout_ms: u32,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "dispatch") }?;
        refuse_in_callback("dispatch")?;
        context.client.dispatch(Duration::from_millis(timeout_ms.into()))?;
        Ok(())
    })
}
