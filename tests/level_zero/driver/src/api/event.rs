//! The event groups. An event must never end with its pool: it lives until the program destroys it.

use crate::answer::{Failure, answer};
use crate::opaque::{content, destroy, give, make};
use crate::signal::Signal;
use level_zero_sys::*;
use std::time::Duration;

/// A pool has no content: events live on their own.
struct Pool;

pub(super) unsafe extern "C" fn create_pool(
    _context: ze_context_handle_t,
    _desc: *const ze_event_pool_desc_t,
    _count: u32,
    _devices: *mut ze_device_handle_t,
    pool: *mut ze_event_pool_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    answer("zeEventPoolCreate", unsafe { give(pool, make(Pool)) })
}

pub(super) unsafe extern "C" fn destroy_pool(pool: ze_event_pool_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: a pool of ours, not used again.
    answer("zeEventPoolDestroy", unsafe { destroy::<Pool, _>(pool) })
}

pub(super) unsafe extern "C" fn create(
    _pool: ze_event_pool_handle_t,
    _desc: *const ze_event_desc_t,
    event: *mut ze_event_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    answer("zeEventCreate", unsafe { give(event, make(Signal::new(false))) })
}

pub(super) unsafe extern "C" fn destroy_event(event: ze_event_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: an event of ours, not used again.
    answer("zeEventDestroy", unsafe { destroy::<Signal, _>(event) })
}

pub(super) unsafe extern "C" fn host_signal(event: ze_event_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: a live event.
    answer("zeEventHostSignal", unsafe { set(event, true) })
}

pub(super) unsafe extern "C" fn host_reset(event: ze_event_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: a live event.
    answer("zeEventHostReset", unsafe { set(event, false) })
}

pub(super) unsafe extern "C" fn host_synchronize(
    event: ze_event_handle_t,
    timeout_ns: u64,
) -> ze_result_t {
    // SAFETY: the specification's promise: a live event.
    answer("zeEventHostSynchronize", unsafe { wait(event, timeout_ns) })
}

pub(super) unsafe extern "C" fn query_status(event: ze_event_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: a live event.
    answer("zeEventQueryStatus", unsafe { wait(event, 0) })
}

/// # Safety
/// A live event, or a live fence, which is the same thing.
pub(super) unsafe fn set<H>(signal: *mut H, to: bool) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { content::<Signal, _>(signal) }.map(|signal| signal.set(to))
}

/// # Safety
/// As [`set`].
pub(super) unsafe fn wait<H>(signal: *mut H, timeout_ns: u64) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { content::<Signal, _>(signal) }?.wait(Duration::from_nanos(timeout_ns))
}
