//! Memory: its allocation and its end. Must never have the driver free what is exported.

use crate::below::{self, MISSING};
use crate::guard::{beside, guard};
use crate::{broker, consume, retire};
use level_zero_sys::*;
use std::ffi::c_void;

/// # Safety
/// As zeMemFree.
pub unsafe extern "C" fn free(context: ze_context_handle_t, pointer: *mut c_void) -> ze_result_t {
    let Some(below) = below::FREE.get() else { return MISSING };
    beside(|| retire::forget(pointer));
    // SAFETY: the caller's promise.
    guard(|| consume::end(pointer, || unsafe { below(context, pointer) }))
}

/// # Safety
/// As zeMemFreeExt.
pub unsafe extern "C" fn free_ext(
    context: ze_context_handle_t,
    desc: *const ze_memory_free_ext_desc_t,
    pointer: *mut c_void,
) -> ze_result_t {
    let Some(below) = below::FREE_EXT.get() else { return MISSING };
    beside(|| retire::forget(pointer));
    // SAFETY: the caller's promise.
    guard(|| consume::end(pointer, || unsafe { below(context, desc, pointer) }))
}

/// # Safety
/// As zeMemCloseIpcHandle.
pub unsafe extern "C" fn close(
    context: ze_context_handle_t,
    pointer: *const c_void,
) -> ze_result_t {
    let Some(below) = below::CLOSE.get() else { return MISSING };
    // A program may have exported what it opened.
    beside(|| retire::forget(pointer));
    // SAFETY: the caller's promise.
    guard(|| consume::end(pointer, || unsafe { below(context, pointer) }))
}

/// # Safety
/// As zeMemAllocDevice.
pub unsafe extern "C" fn alloc_device(
    context: ze_context_handle_t,
    desc: *const ze_device_mem_alloc_desc_t,
    size: usize,
    alignment: usize,
    device: ze_device_handle_t,
    out: *mut *mut c_void,
) -> ze_result_t {
    let Some(below) = below::ALLOC_DEVICE.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let below = || unsafe { below(context, desc, size, alignment, device, out) };
    guard(|| broker::allocate(below))
}

/// # Safety
/// As zeMemAllocShared.
pub unsafe extern "C" fn alloc_shared(
    context: ze_context_handle_t,
    device_desc: *const ze_device_mem_alloc_desc_t,
    host_desc: *const ze_host_mem_alloc_desc_t,
    size: usize,
    alignment: usize,
    device: ze_device_handle_t,
    out: *mut *mut c_void,
) -> ze_result_t {
    let Some(below) = below::ALLOC_SHARED.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let below = || unsafe { below(context, device_desc, host_desc, size, alignment, device, out) };
    guard(|| broker::allocate(below))
}

/// # Safety
/// As zeMemAllocHost.
pub unsafe extern "C" fn alloc_host(
    context: ze_context_handle_t,
    desc: *const ze_host_mem_alloc_desc_t,
    size: usize,
    alignment: usize,
    out: *mut *mut c_void,
) -> ze_result_t {
    let Some(below) = below::ALLOC_HOST.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let below = || unsafe { below(context, desc, size, alignment, out) };
    guard(|| broker::allocate(below))
}
