//! Event pools. Must never leave a handle alive whose pool has ended.

use super::{beside, guard};
use crate::below::{self, MISSING};
use crate::{consume, pools};
use level_zero_sys::*;

/// # Safety
/// As zeEventPoolGetIpcHandle.
pub unsafe extern "C" fn pool_get(
    pool: ze_event_pool_handle_t,
    handle: *mut ze_ipc_event_pool_handle_t,
) -> ze_result_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { pools::get_pool(pool, handle) })
}

/// # Safety
/// As zeEventPoolPutIpcHandle.
pub unsafe extern "C" fn pool_put(
    context: ze_context_handle_t,
    handle: ze_ipc_event_pool_handle_t,
) -> ze_result_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { pools::put_pool(context, handle) })
}

/// # Safety
/// As zeEventPoolOpenIpcHandle.
pub unsafe extern "C" fn pool_open(
    context: ze_context_handle_t,
    handle: ze_ipc_event_pool_handle_t,
    pool: *mut ze_event_pool_handle_t,
) -> ze_result_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { pools::open_pool(context, handle, pool) })
}

/// # Safety
/// As zeEventPoolCloseIpcHandle.
pub unsafe extern "C" fn pool_close(pool: ze_event_pool_handle_t) -> ze_result_t {
    let Some(below) = below::POOL_CLOSE.get() else { return MISSING };
    // A program may have exported what it opened.
    beside(|| pools::forget(pool.addr()));
    // SAFETY: the caller's promise.
    guard(|| consume::end(pool, || unsafe { below(pool) }))
}

/// # Safety
/// As zeEventPoolDestroy.
pub unsafe extern "C" fn pool_destroy(pool: ze_event_pool_handle_t) -> ze_result_t {
    let Some(below) = below::POOL_DESTROY.get() else { return MISSING };
    beside(|| pools::forget(pool.addr()));
    // SAFETY: the caller's promise.
    guard(|| consume::end(pool, || unsafe { below(pool) }))
}
