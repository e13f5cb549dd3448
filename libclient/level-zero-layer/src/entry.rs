//! The functions that stand in the loader's tables, and that the preloaded library exports. Thin: they stop panics and
//! leave the work to `produce` and `consume`. Must never let a panic reach the program.

use crate::below::{self, MISSING};
use crate::mapped::{self, Mapping};
use crate::{consume, produce};
use level_zero_sys::*;
use std::ffi::c_void;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body`; a fault in this layer becomes an answer, its words are on stderr already.
fn guard(body: impl FnOnce() -> ze_result_t) -> ze_result_t {
    // What a panic interrupts is consistent: locks here are let go between consistent states.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        // The payload's own drop may panic too.
        std::mem::forget(payload);
        ze_result_t::ZE_RESULT_ERROR_UNKNOWN
    })
}

/// For what is only added to a call: a fault in it is no reason for the call to fail.
fn beside(body: impl FnOnce()) {
    guard(|| {
        body();
        ze_result_t::ZE_RESULT_SUCCESS
    });
}

/// # Safety
/// As zeMemGetIpcHandle.
pub unsafe extern "C" fn get(
    context: ze_context_handle_t,
    pointer: *const c_void,
    handle: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { produce::get(context, pointer, handle) })
}

/// # Safety
/// As zeMemPutIpcHandle.
pub unsafe extern "C" fn put(
    context: ze_context_handle_t,
    handle: ze_ipc_mem_handle_t,
) -> ze_result_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { produce::put(context, handle) })
}

/// # Safety
/// As zeMemFree.
pub unsafe extern "C" fn free(context: ze_context_handle_t, pointer: *mut c_void) -> ze_result_t {
    let Some(below) = below::FREE.get() else { return MISSING };
    beside(|| produce::forget(pointer));
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
    beside(|| produce::forget(pointer));
    // SAFETY: the caller's promise.
    guard(|| consume::end(pointer, || unsafe { below(context, desc, pointer) }))
}

/// # Safety
/// As zeMemOpenIpcHandle.
pub unsafe extern "C" fn open(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    handle: ze_ipc_mem_handle_t,
    flags: ze_ipc_memory_flags_t,
    pointer: *mut *mut c_void,
) -> ze_result_t {
    let opening = consume::Opening { context, device, flags, pointer };
    // SAFETY: the caller's promise.
    guard(|| unsafe { opening.open(handle) })
}

/// # Safety
/// As zeMemCloseIpcHandle.
pub unsafe extern "C" fn close(
    context: ze_context_handle_t,
    pointer: *const c_void,
) -> ze_result_t {
    let Some(below) = below::CLOSE.get() else { return MISSING };
    // A program may have exported what it opened.
    beside(|| produce::forget(pointer));
    // SAFETY: the caller's promise.
    guard(|| consume::end(pointer, || unsafe { below(context, pointer) }))
}

/// # Safety
/// As zeMemGetFileDescriptorFromIpcHandleExp.
pub unsafe extern "C" fn fd_of_handle(
    context: ze_context_handle_t,
    handle: ze_ipc_mem_handle_t,
    fd: *mut u64,
) -> ze_result_t {
    let Some(below) = below::FD_OF_HANDLE.get() else { return MISSING };
    // SAFETY: the caller's promise.
    guard(|| unsafe { below(context, produce::as_the_driver_knows(handle), fd) })
}

/// Remembers which physical memory is mapped where: what is exported there ends with the mapping and with the memory.
///
/// # Safety
/// The caller keeps what zeVirtualMemMap asks of its arguments.
pub unsafe extern "C" fn map(
    context: ze_context_handle_t,
    pointer: *const c_void,
    size: usize,
    memory: ze_physical_mem_handle_t,
    offset: usize,
    access: ze_memory_access_attribute_t,
) -> ze_result_t {
    let Some(below) = below::MAP.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let code = unsafe { below(context, pointer, size, memory, offset, access) };
    if code == ze_result_t::ZE_RESULT_SUCCESS {
        let range = range_of(pointer, size);
        beside(|| mapped::add(Mapping { range, memory: memory.addr() }));
    }
    code
}

/// Ends what is exported in the range, then has the driver unmap it.
///
/// # Safety
/// The caller keeps what zeVirtualMemUnmap asks of its arguments.
pub unsafe extern "C" fn unmap(
    context: ze_context_handle_t,
    pointer: *const c_void,
    size: usize,
) -> ze_result_t {
    let Some(below) = below::UNMAP.get() else { return MISSING };
    // SAFETY: the caller's promise.
    guard(|| produce::unmap(range_of(pointer, size), || unsafe { below(context, pointer, size) }))
}

/// The same for the end of a reservation, which unmaps what is mapped there.
///
/// # Safety
/// The caller keeps what zeVirtualMemFree asks of its arguments.
pub unsafe extern "C" fn virtual_free(
    context: ze_context_handle_t,
    pointer: *const c_void,
    size: usize,
) -> ze_result_t {
    let Some(below) = below::VIRTUAL_FREE.get() else { return MISSING };
    // SAFETY: the caller's promise.
    guard(|| produce::unmap(range_of(pointer, size), || unsafe { below(context, pointer, size) }))
}

/// Ends what is exported wherever the memory is mapped, then has the driver destroy it.
///
/// # Safety
/// The caller keeps what zePhysicalMemDestroy asks of its arguments.
pub unsafe extern "C" fn physical_destroy(
    context: ze_context_handle_t,
    memory: ze_physical_mem_handle_t,
) -> ze_result_t {
    let Some(below) = below::PHYSICAL_DESTROY.get() else { return MISSING };
    // SAFETY: the caller's promise.
    guard(|| produce::destroy(memory, || unsafe { below(context, memory) }))
}

fn range_of(pointer: *const c_void, size: usize) -> Range<usize> {
    pointer.addr()..pointer.addr().saturating_add(size)
}

/// # Safety
/// As zeContextDestroy.
pub unsafe extern "C" fn context_destroy(context: ze_context_handle_t) -> ze_result_t {
    beside(|| produce::forget_all_of(context));
    let Some(below) = below::CONTEXT_DESTROY.get() else { return MISSING };
    // SAFETY: the caller's promise.
    unsafe { below(context) }
}
