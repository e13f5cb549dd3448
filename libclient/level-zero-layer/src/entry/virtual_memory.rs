//! Virtual and physical memory, and contexts. Must never leave a handle alive whose memory has
//! ended.

use crate::below::{self, MISSING};
use crate::guard::{beside, guard};
use crate::mapped::{self, Mapping};
use crate::{broker, retire};
use level_zero_sys::*;
use std::ffi::c_void;
use std::ops::Range;

/// Remembers which physical memory is mapped where: what is exported there ends with the mapping
/// and with the memory.
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
    guard(|| retire::unmap(range_of(pointer, size), || unsafe { below(context, pointer, size) }))
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
    guard(|| retire::unmap(range_of(pointer, size), || unsafe { below(context, pointer, size) }))
}

/// # Safety
/// The caller keeps what zePhysicalMemCreate asks of its arguments.
pub unsafe extern "C" fn physical_create(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    desc: *mut ze_physical_mem_desc_t,
    memory: *mut ze_physical_mem_handle_t,
) -> ze_result_t {
    let Some(below) = below::PHYSICAL_CREATE.get() else { return MISSING };
    // SAFETY: the caller's promise.
    guard(|| broker::allocate(|| unsafe { below(context, device, desc, memory) }))
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
    guard(|| retire::destroy(memory, || unsafe { below(context, memory) }))
}

fn range_of(pointer: *const c_void, size: usize) -> Range<usize> {
    pointer.addr()..pointer.addr().saturating_add(size)
}

/// # Safety
/// As zeContextDestroy.
pub unsafe extern "C" fn context_destroy(context: ze_context_handle_t) -> ze_result_t {
    beside(|| retire::forget_all_of(context));
    let Some(below) = below::CONTEXT_DESTROY.get() else { return MISSING };
    // SAFETY: the caller's promise.
    unsafe { below(context) }
}
