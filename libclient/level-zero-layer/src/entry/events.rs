//! Event pools, and events with a counter. Must never leave a handle alive whose pool or event has
//! ended.

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

/// # Safety
/// As zeEventDestroy.
pub unsafe extern "C" fn event_destroy(event: ze_event_handle_t) -> ze_result_t {
    let Some(below) = below::EVENT_DESTROY.get() else { return MISSING };
    beside(|| pools::forget(event.addr()));
    // SAFETY: the caller's promise.
    unsafe { below(event) }
}

/// The functions of a counter's handle, under the specification's names and under Intel's older
/// ones.
macro_rules! counters {
    ($($get:ident, $open:ident, $close:ident = $below_get:ident, $below_open:ident, $below_close:ident;)*) => {$(
        /// # Safety
        /// As zeEventCounterBasedGetIpcHandle.
        pub unsafe extern "C" fn $get(
            event: ze_event_handle_t,
            handle: *mut ze_ipc_event_counter_based_handle_t,
        ) -> ze_result_t {
            // SAFETY: the caller's promise.
            guard(|| unsafe { pools::get_counter(below::$below_get.get(), event, handle) })
        }

        /// # Safety
        /// As zeEventCounterBasedOpenIpcHandle.
        pub unsafe extern "C" fn $open(
            context: ze_context_handle_t,
            handle: ze_ipc_event_counter_based_handle_t,
            event: *mut ze_event_handle_t,
        ) -> ze_result_t {
            let below = below::$below_open.get();
            // SAFETY: the caller's promise.
            guard(|| unsafe { pools::open_counter(below, context, handle, event) })
        }

        /// # Safety
        /// As zeEventCounterBasedCloseIpcHandle.
        pub unsafe extern "C" fn $close(event: ze_event_handle_t) -> ze_result_t {
            let Some(below) = below::$below_close.get() else { return MISSING };
            // SAFETY: the caller's promise.
            guard(|| consume::end(event, || unsafe { below(event) }))
        }
    )*};
}

counters! {
    counter_get, counter_open, counter_close = COUNTER_GET, COUNTER_OPEN, COUNTER_CLOSE;
    zex_counter_get, zex_counter_open, zex_counter_close =
        ZEX_COUNTER_GET, ZEX_COUNTER_OPEN, ZEX_COUNTER_CLOSE;
}
