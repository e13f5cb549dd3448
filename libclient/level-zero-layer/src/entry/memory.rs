//! Memory: its allocation, its handles and fds, its end. Must never have the driver free what is
//! exported.

use crate::below::{self, MISSING};
use crate::guard::{beside, guard};
use crate::{broker, consume, external, produce, retire};
use level_zero_sys::*;
use std::ffi::c_void;

/// # Safety
/// As zeMemGetIpcHandle.
pub unsafe extern "C" fn get(
    context: ze_context_handle_t,
    pointer: *const c_void,
    handle: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    let Some(below) = below::GET.get() else { return MISSING };
    // SAFETY: the caller's promise.
    guard(|| unsafe { produce::get(context, pointer, handle, || below(context, pointer, handle)) })
}

/// Handles of physical memory and of ranges of addresses stay the driver's own, like those for
/// other machines.
///
/// # Safety
/// As zeMemGetIpcHandleWithProperties.
pub unsafe extern "C" fn get_with_properties(
    context: ze_context_handle_t,
    pointer: *const c_void,
    properties: *mut c_void,
    handle: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    let Some(below) = below::GET_WITH_PROPERTIES.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let below = || unsafe { below(context, pointer, properties, handle) };
    // SAFETY: the caller's promise: null, or a chain.
    match unsafe { asks_for_more(properties) } {
        true => below(),
        // SAFETY: the caller's promise.
        false => guard(|| unsafe { produce::get(context, pointer, handle, below) }),
    }
}

/// Whether a chain asks for more than a handle for this machine.
///
/// # Safety
/// Null, or a chain.
unsafe fn asks_for_more(chain: *const c_void) -> bool {
    // SAFETY: the caller's promise. Every structure begins with its type; the rest is looked at
    // when it is of this type.
    let Some(first) = (unsafe { chain.cast::<ze_base_desc_t>().as_ref() }) else { return false };
    first.stype != ze_ipc_mem_handle_type_ext_desc_t::STYPE || !first.pNext.is_null() || {
        // SAFETY: of this type.
        let flags = unsafe { (*chain.cast::<ze_ipc_mem_handle_type_ext_desc_t>()).typeFlags };
        flags & ZE_IPC_MEM_HANDLE_TYPE_FLAG_FABRIC_ACCESSIBLE != 0
    }
}

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
    let below = |desc| unsafe { below(context, desc, size, alignment, device, out) };
    // SAFETY: as above.
    guard(|| unsafe { external::allocate(desc, out, below) })
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
    let below = |desc| unsafe { below(context, desc, size, alignment, out) };
    // SAFETY: as above.
    guard(|| unsafe { external::allocate(desc, out, below) })
}
