//! Setting the callbacks, and serving events without a library thread.
//! Must never change a callback while it runs.

use crate::callbacks::{fdbroker_notice_fn, fdbroker_notice_t, fdbroker_recall_fn};
use crate::context::{context, fdbroker_t};
use crate::due::{due_of, fdbroker_due_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::{guard, guard_value};
use crate::sized::{Growable, write};
use crate::slot::{Callback, refuse_in_callback};
use fdbroker_client::{ErrorCode, clear_interrupt, set_interrupt};
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Sets the callback that exports registered memory again when the broker recalls it. Set it before
/// registering with FDBROKER_RECALLABLE. The library answers recalls of host memory itself. NULL:
/// no callback, and all other recalls fail. Returns when the callback set before has returned, so
/// that the memory behind its user may be freed; waits at most 10 s for that. Not inside a
/// callback.
///
/// Errors: FDBROKER_TIMED_OUT (the callback is replaced, but the one before still runs),
/// FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_NOT_CONNECTED (in a forked child),
/// FDBROKER_INVALID_ARGUMENT.
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

/// Sets the callback that receives notices; NULL: none. Rules and errors as for
/// fdbroker_set_recall_callback().
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

/// Whether the call under way is to end: not 0. Also asked when no handler has run.
pub type fdbroker_interrupt_fn = Option<unsafe extern "C" fn(user: *mut c_void) -> i32>;

/// Lets signal handlers of the program end calls of the calling thread. After a handler has run in
/// this thread while a call waits in it, and now and then, check is called there; it may call this
/// library. When it answers other than 0, the call ends at once, with FDBROKER_CANCELLED, as at its
/// deadline: what it has got or still gets is given back. (An answer that came first: the call
/// succeeds. Then set check again before the next call.) For all contexts; NULL: waits go on, as
/// without this call. A driver's call, and the waits of other threads, are not interrupted.
///
/// Errors: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_set_interrupt(
    check: fdbroker_interrupt_fn,
    user: *mut c_void,
) -> fdbroker_code_t {
    guard(|| {
        match check {
            // SAFETY: the program's function and argument, on the thread that has set them.
            Some(call) => set_interrupt(move || unsafe { call(user) } != 0),
            None => clear_interrupt(),
        }
        Ok(())
    })
}

/// With FDBROKER_OPEN_DISPATCH or FDBROKER_OPEN_RECALL_THREAD: an fd for poll(2) and POLLIN,
/// readable when fdbroker_dispatch() has something to do. It stays the library's and the same until
/// fdbroker_close(): do not read or close it. After a program has closed it all the same, the next
/// call here or of fdbroker_dispatch() makes another. Otherwise -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_event_fd(broker: *mut fdbroker_t) -> c_int {
    guard_value(-1, || {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "event fd") }?;
        match &context.notices {
            Some(notices) => Ok(notices.event_fd()?),
            None => Ok(context.client.event_fd()?.as_raw_fd()),
        }
    })
}

/// With FDBROKER_OPEN_NOTICES: the next notice, in their order, without waiting. FDBROKER_AGAIN:
/// there is none; notice->kind is 0 and fdbroker_last_error() stays as it was. At most 4,096 wait;
/// the oldest beyond are lost, which FDBROKER_NOTICE_LOST says.
///
/// Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_notice_next(
    broker: *mut fdbroker_t,
    notice: *mut fdbroker_notice_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        unsafe { write(notice, &fdbroker_notice_t::absent()) }?;
        // SAFETY: as above.
        let context = unsafe { context(broker, "notices") }?;
        let next = context.notices.as_ref().and_then(|notices| notices.next());
        // SAFETY: as above.
        unsafe { write(notice, &next.ok_or(Failure::NotReady)?) }
    })
}

/// From now on each notice tells due this token, and once now: read them then by
/// fdbroker_notice_next(), until it answers FDBROKER_AGAIN.
///
/// Errors: FDBROKER_NOT_SUPPORTED (opened without FDBROKER_OPEN_NOTICES), FDBROKER_NOT_CONNECTED
/// (in a forked child), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_notice_tell(
    broker: *mut fdbroker_t,
    due: *mut fdbroker_due_t,
    token: u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (context, due) = unsafe { (context(broker, "notices")?, due_of(due)?) };
        if context.notices.as_ref().is_some_and(|notices| notices.tell(due, token)) {
            return Ok(());
        }
        let text = "notices: this context was opened without FDBROKER_OPEN_NOTICES";
        Err(Failure::new(ErrorCode::NotSupported, text))
    })
}

/// With FDBROKER_OPEN_DISPATCH: serves recalls, notices and the reconnect; with
/// FDBROKER_OPEN_RECALL_THREAD: notices. Callbacks run inside this call. When there is nothing to
/// serve, it waits up to timeout_ms; 0 does not wait. FDBROKER_OK also when nothing came, and while
/// the broker is away. Not inside a callback.
///
/// Errors: FDBROKER_NOT_SUPPORTED (this context has a library thread; or inside a callback),
/// FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_dispatch(
    broker: *mut fdbroker_t,
    timeout_ms: u32,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "dispatch") }?;
        refuse_in_callback("dispatch")?;
        let timeout = Duration::from_millis(timeout_ms.into());
        match &context.notices {
            Some(notices) => notices.dispatch(&context.callbacks, timeout),
            None => drop(context.client.dispatch(timeout)?),
        }
        Ok(())
    })
}
