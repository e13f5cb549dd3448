//! The event groups. An event must never end with its pool: it lives until the program destroys it.

use crate::answer::{Failure, answer};
use crate::event_pool::Pool;
use crate::opaque::{content, destroy, give, look, make};
use crate::signal::Signal;
use level_zero_sys::*;
use std::time::Duration;

const IPC: u32 = ze_event_pool_flag_t::ZE_EVENT_POOL_FLAG_IPC.0;

pub(super) unsafe extern "C" fn create_pool(
    _context: ze_context_handle_t,
    desc: *const ze_event_pool_desc_t,
    _count: u32,
    _devices: *mut ze_device_handle_t,
    pool: *mut ze_event_pool_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise about `desc` and `pool`.
    let done = unsafe {
        look(desc)
            .and_then(|desc| Pool::new(desc.count, desc.flags & IPC != 0))
            .and_then(|new| give(pool, make(new)))
    };
    answer("zeEventPoolCreate", done)
}

pub(super) unsafe extern "C" fn destroy_pool(pool: ze_event_pool_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: a pool of ours, not used again.
    answer("zeEventPoolDestroy", unsafe { destroy::<Pool, _>(pool) })
}

pub(super) unsafe extern "C" fn get_ipc_handle(
    pool: ze_event_pool_handle_t,
    handle: *mut ze_ipc_event_pool_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise: a live pool, and room for a handle.
    let done = unsafe {
        content::<Pool, _>(pool)
            .and_then(Pool::handle)
            .and_then(|bytes| give(handle, ze_ipc_event_pool_handle_t::from_bytes(bytes)))
    };
    answer("zeEventPoolGetIpcHandle", done)
}

/// As in compute-runtime.
pub(super) unsafe extern "C" fn put_ipc_handle(
    _context: ze_context_handle_t,
    _handle: ze_ipc_event_pool_handle_t,
) -> ze_result_t {
    ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE
}

pub(super) unsafe extern "C" fn open_ipc_handle(
    _context: ze_context_handle_t,
    handle: ze_ipc_event_pool_handle_t,
    pool: *mut ze_event_pool_handle_t,
) -> ze_result_t {
    let opened = Pool::open(&handle.to_bytes());
    // SAFETY: the specification's promise.
    answer("zeEventPoolOpenIpcHandle", opened.and_then(|new| unsafe { give(pool, make(new)) }))
}

pub(super) unsafe extern "C" fn close_ipc_handle(pool: ze_event_pool_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: a pool of ours, not used again.
    answer("zeEventPoolCloseIpcHandle", unsafe { destroy::<Pool, _>(pool) })
}

pub(super) unsafe extern "C" fn create(
    pool: ze_event_pool_handle_t,
    desc: *const ze_event_desc_t,
    event: *mut ze_event_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise: a live pool, and a description.
    let done = unsafe {
        content::<Pool, _>(pool)
            .and_then(|pool| pool.event(look(desc)?.index))
            .and_then(|signal| give(event, make(signal)))
    };
    answer("zeEventCreate", done)
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
