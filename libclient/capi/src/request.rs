//! Acquiring without waiting, for progress engines: start, test, cancel.
//! Must never wait, nor keep a request that is done.

use crate::acquire::{Grants, fdbroker_grant_t};
use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::guard;
use crate::handle::{fdbroker_handle_t, many};
use crate::leases::Leases;
use fdbroker_client::{AcquireRequest, Deadline, Progress};
use std::sync::Arc;

/// A request under way. Only one thread at a time may use it.
pub struct fdbroker_request_t {
    count: usize,
    /// `None` only inside `fdbroker_request_test`.
    request: Option<AcquireRequest>,
    leases: Arc<Leases>,
}

/// Starts to acquire count handles, without waiting. On success *request is a request, which ends when
/// fdbroker_request_test() says that it is done, or by fdbroker_request_cancel(); either must come before
/// fdbroker_close(). The handles are copied. Also inside a callback. On failure *request is NULL.
///
/// Errors: FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT. fdbroker_request_test() answers all others.
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

/// Makes progress without waiting. FDBROKER_AGAIN: the request is still under way, and nothing is written. Otherwise
/// it is done and freed: all grants and codes (codes may be NULL) are filled as by fdbroker_acquire_many(). Also
/// inside a callback.
///
/// Errors: the first of those of fdbroker_acquire(); FDBROKER_INVALID_ARGUMENT (the request stays as it was).
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

/// Cancels a request and frees it: the broker is told, and grants that still come are given back. Never waits; also
/// inside a callback. NULL: does nothing.
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
