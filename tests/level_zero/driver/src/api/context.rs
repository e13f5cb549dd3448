//! The context group. A context here separates nothing: no test must rely on that.

use crate::answer::{Failure, answer};
use crate::opaque::{content, destroy, give, make};
use level_zero_sys::*;

/// A context has no content: all allocations stand in one registry.
struct Context;

unsafe fn new(context: *mut ze_context_handle_t) -> Result<(), Failure> {
    // SAFETY: the caller's promise; a null pointer costs one box, in a test.
    unsafe { give(context, make(Context)) }
}

pub(super) unsafe extern "C" fn create(
    _driver: ze_driver_handle_t,
    _desc: *const ze_context_desc_t,
    context: *mut ze_context_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    answer("zeContextCreate", unsafe { new(context) })
}

pub(super) unsafe extern "C" fn create_ex(
    _driver: ze_driver_handle_t,
    _desc: *const ze_context_desc_t,
    _count: u32,
    _devices: *mut ze_device_handle_t,
    context: *mut ze_context_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    answer("zeContextCreateEx", unsafe { new(context) })
}

pub(super) unsafe extern "C" fn destroy_context(context: ze_context_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: a context of ours, not used again.
    answer("zeContextDestroy", unsafe { destroy::<Context, _>(context) })
}

pub(super) unsafe extern "C" fn status(context: ze_context_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise.
    answer("zeContextGetStatus", unsafe { content::<Context, _>(context) }.map(drop))
}
