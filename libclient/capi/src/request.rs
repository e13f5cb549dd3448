//! Acquires that nobody waits for, for progress engines: start, test, cancel.
//! Must never wait, nor leave a request behind once it is done.

use crate::acquire::{Grants, fdbroker_grant_t};
use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::guard;
use crate::handle::{fdbroker_handle_t, many};
use crate::leases::Leases;
use fdbroker_client::{AcquireRequest, Deadline, Progress};
use std::sync::Arc;

/// Acquires under way. One thread at a time may use it.
pub struct fdbroker_request_t {
    count: usize,
    /// `None` only while it is tested.
    request: Option<AcquireRequest>,
    leases: Arc<Leases>,
}

/// Starts to acquire count handles without waiting for anything. On success *request is the caller's until
/// fdbroker_request_test() says it is done or fdbroker_request_cancel(), which must be before fdbroker_close(); the
/// handles need not stay. Also inside a callback. On failure *request is NULL.
///
/// Errors: FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT; all else is told by fdbroker_request_test().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_acquire_start(
    broker: *mut fdbroker_t,
    count: usize,
    handles: *const fdbroker_handle_t,
    deadline_ms: u32,
    request: *mut *mut fdbroker_request_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let out = unsafe { request.as_mut() };
        let out = out.ok_or_else(|| Failure::argument("request is NULL"))?;
        *out = std::ptr::null_mut();
        // SAFETY: as above.
        let (context, handles) = unsafe { (context(broker, "acquire")?, many(handles, count)?) };
        let request = context.client.acquire_start(handles, Deadline::from_ms(deadline_ms))?;
        let leases = Arc::clone(&context.leases);
        *out =
            Box::into_raw(Box::new(fdbroker_request_t { count, request: Some(request), leases }));
        Ok(())
    })
}

/// Does what can be done now, without waiting. FDBROKER_AGAIN: still under way, nothing is written. Otherwise it is
/// done: all grants and codes (codes may be NULL) are filled as by fdbroker_acquire_many(), and the request is freed.
/// Also inside a callback.
///
/// Errors: of each as fdbroker_acquire(), the first; FDBROKER_INVALID_ARGUMENT (the request stays as it was).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_request_test(
    request: *mut fdbroker_request_t,
    grants: *mut fdbroker_grant_t,
    codes: *mut fdbroker_code_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let this = unsafe { request.as_mut() };
        let this = this.ok_or_else(|| Failure::argument("request is NULL"))?;
        // SAFETY: as above; as many as were started.
        let mut grants = unsafe { Grants::new(this.count, grants, codes) }?;
        let under_way = this.request.take().expect("put back while under way");
        let outcomes = match under_way.test() {
            Progress::UnderWay(under_way) => {
                this.request = Some(under_way);
                return Err(Failure::NotReady);
            }
            Progress::Done(outcomes) => outcomes,
        };
        // SAFETY: made by fdbroker_acquire_start, and this is its last use.
        let this = unsafe { Box::from_raw(request) };
        grants.fill(&this.leases, outcomes)
    })
}

/// Gives a request up and frees it: the broker is told, and what it grants all the same is given back. Never waits;
/// also inside a callback. NULL: does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_request_cancel(
    request: *mut fdbroker_request_t,
) -> fdbroker_code_t {
    guard(|| {
        if !request.is_null() {
            // SAFETY: made by fdbroker_acquire_start, and this is its last use.
            drop(unsafe { Box::from_raw(request) });
        }
        Ok(())
    })
}
