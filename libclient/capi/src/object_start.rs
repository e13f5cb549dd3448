//! Making objects without waiting for the broker, for progress engines and event loops: start,
//! test, cancel. Must never wait for the broker, nor lose a group that can be sealed again.

use crate::context::fdbroker_t;
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::guard;
use crate::object_make::{State, creating, fdbroker_object_group_t, putting, taken, work_of};
use crate::objects::{fdbroker_new_object_t, fdbroker_object_options_t};
use crate::request::{What, end, fdbroker_request_t, look, under_way};
use crate::sized::place;
use fdbroker_client::Deadline;
use fdbroker_client::layer::lock;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

/// Starts to begin a group, without waiting for the broker; arguments as for
/// fdbroker_object_create(). Otherwise as fdbroker_acquire_start(); fdbroker_object_create_test()
/// makes progress. Memory is made inside this call, and what the pointers point to is copied.
///
/// Errors: FDBROKER_NOT_CONNECTED, FDBROKER_TOO_LONG, FDBROKER_BAD_HANDLE, FDBROKER_NOT_SUPPORTED,
/// FDBROKER_LOCAL_FD_LIMIT, FDBROKER_INTERNAL, FDBROKER_INVALID_ARGUMENT. All others come from
/// fdbroker_object_create_test().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_create_start(
    broker: *mut fdbroker_t,
    count: usize,
    objects: *const fdbroker_new_object_t,
    options: *const fdbroker_object_options_t,
    deadline_ms: u32,
    request: *mut *mut fdbroker_request_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let out = unsafe { place(request, "request", null_mut()) }?;
        // SAFETY: as above.
        let started = unsafe {
            creating(broker, count, objects, options, |objects, new, place, how| {
                objects.create_start(new, place, how, Deadline::from_ms(deadline_ms))
            })
        }?;
        *out = fdbroker_request_t::boxed(1, What::Create(Some(started)));
        Ok(())
    })
}

/// Makes progress without waiting. FDBROKER_AGAIN: the request is still under way. Otherwise it is
/// done and freed, and *group is as after fdbroker_object_create(). Also inside a callback.
///
/// Errors: those of fdbroker_object_create(); FDBROKER_INVALID_ARGUMENT (the request stays as it
/// was).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_create_test(
    request: *mut fdbroker_request_t,
    group: *mut *mut fdbroker_object_group_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (this, out) = unsafe { (under_way(request)?, place(group, "group", null_mut())?) };
        let What::Create(create) = &mut this.what else {
            let text = "request was not started by fdbroker_object_create_start()";
            return Err(Failure::argument(text));
        };
        let outcome = look(create)?;
        // SAFETY: made by fdbroker_object_create_start, and this is its last use.
        drop(unsafe { Box::from_raw(request) });
        *out = fdbroker_object_group_t::boxed(outcome.map_err(end)?);
        Ok(())
    })
}

/// Starts to seal a group, without waiting for the broker: as fdbroker_object_seal() (what is 0),
/// or as fdbroker_object_seal_after(). Otherwise as fdbroker_acquire_start();
/// fdbroker_object_seal_test() makes progress. Memory is sealed inside this call, which waits for
/// a device's work and a child that begins as those do. Until the request has ended, and after
/// fdbroker_request_cancel(), the group can only be closed: all else is FDBROKER_ABORTED.
///
/// Errors: FDBROKER_SEALED_BUSY (the group is as before), FDBROKER_SEALED, FDBROKER_ABORTED,
/// FDBROKER_NOT_CONNECTED, FDBROKER_NOT_SUPPORTED, FDBROKER_INTERNAL, FDBROKER_INVALID_ARGUMENT.
/// All others come from fdbroker_object_seal_test().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_seal_start(
    group: *mut fdbroker_object_group_t,
    what: u32,
    work: *mut c_void,
    deadline_ms: u32,
    request: *mut *mut fdbroker_request_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let out = unsafe { place(request, "request", null_mut()) }?;
        let work = if what == 0 { None } else { Some(work_of(what, work)?) };
        // SAFETY: as above.
        let (this, making) = unsafe { taken(group) }?;
        let deadline = Deadline::from_ms(deadline_ms);
        let (started, outcome) = this.start(match work {
            None => making.seal_start(deadline),
            // SAFETY: the caller's handle, as the header states.
            Some(work) => unsafe { making.seal_after_start(work, deadline) },
        })?;
        *out = fdbroker_request_t::boxed(1, What::Seal(Some(started), outcome));
        Ok(())
    })
}

/// Makes progress without waiting. FDBROKER_AGAIN: the request is still under way. Otherwise it is
/// done and freed, and the group and *version (unless NULL) are as after fdbroker_object_seal().
/// Also inside a callback.
///
/// Errors: those of fdbroker_object_seal(); FDBROKER_INVALID_ARGUMENT (the request stays as it
/// was).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_seal_test(
    request: *mut fdbroker_request_t,
    version: *mut u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (this, out) = unsafe { (under_way(request)?, version.as_mut()) };
        let What::Seal(seal, state) = &mut this.what else {
            let text = "request was not started by fdbroker_object_seal_start()";
            return Err(Failure::argument(text));
        };
        let outcome = look(seal)?;
        let state = Arc::clone(state);
        // SAFETY: made by fdbroker_object_seal_start, and this is its last use.
        drop(unsafe { Box::from_raw(request) });
        let outcome = outcome.map_err(|mut failure| {
            failure.error = end(failure.error);
            failure
        });
        let mut becomes = State::Lost;
        let sealed = becomes.sealed(out, outcome);
        // A group that was given back meanwhile goes with it.
        *lock(&state) = Some(becomes);
        sealed
    })
}

/// Starts to make count host objects, at most 253, that can be had from one moment on, without
/// waiting for the broker; arguments as for fdbroker_object_put(). Otherwise as
/// fdbroker_acquire_start(); fdbroker_object_put_test() makes progress. The bytes are copied inside
/// this call.
///
/// Errors: FDBROKER_NOT_CONNECTED, FDBROKER_TOO_LONG, FDBROKER_BAD_HANDLE, FDBROKER_NOT_SUPPORTED,
/// FDBROKER_LOCAL_FD_LIMIT, FDBROKER_INTERNAL, FDBROKER_INVALID_ARGUMENT. All others come from
/// fdbroker_object_put_test().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_put_start(
    broker: *mut fdbroker_t,
    count: usize,
    objects: *const fdbroker_new_object_t,
    options: *const fdbroker_object_options_t,
    deadline_ms: u32,
    request: *mut *mut fdbroker_request_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let out = unsafe { place(request, "request", null_mut()) }?;
        // SAFETY: as above.
        let (objects, puts, how) = unsafe { putting(broker, count, objects, options) }?;
        let started = objects.put_start(&puts, how, Deadline::from_ms(deadline_ms))?;
        *out = fdbroker_request_t::boxed(1, What::Put(Some(started)));
        Ok(())
    })
}

/// Makes progress without waiting. FDBROKER_AGAIN: the request is still under way. Otherwise it is
/// done and freed, and *version (unless NULL) is that of the objects; 0: they were not made. Also
/// inside a callback.
///
/// Errors: those of fdbroker_object_put(); FDBROKER_INVALID_ARGUMENT (the request stays as it was).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_put_test(
    request: *mut fdbroker_request_t,
    version: *mut u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (this, out) = unsafe { (under_way(request)?, version.as_mut()) };
        let What::Put(put) = &mut this.what else {
            let text = "request was not started by fdbroker_object_put_start()";
            return Err(Failure::argument(text));
        };
        let outcome = look(put)?;
        // SAFETY: made by fdbroker_object_put_start, and this is its last use.
        drop(unsafe { Box::from_raw(request) });
        out.into_iter().for_each(|out| *out = *outcome.as_ref().unwrap_or(&0));
        outcome.map(drop).map_err(|error| end(error).into())
    })
}
