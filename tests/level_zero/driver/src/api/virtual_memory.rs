//! The groups of virtual and physical memory. Must never give a handle of memory that was not made.

use crate::allocation::registry;
use crate::answer::answer;
use crate::devices;
use crate::opaque::{content, destroy, give, look, make};
use crate::trace::trace;
use crate::virtual_memory::{self, PAGE_BYTES, PhysicalId};
use level_zero_sys::*;
use std::ffi::c_void;
use std::ptr;

pub(super) unsafe extern "C" fn reserve(
    _context: ze_context_handle_t,
    _start: *const c_void,
    size: usize,
    out: *mut *mut c_void,
) -> ze_result_t {
    let reserved = registry().virtual_memory.reserve(size);
    // SAFETY: the specification's promise.
    let done = reserved
        .and_then(|address| unsafe { give(out, ptr::without_provenance_mut::<c_void>(address)) });
    answer("zeVirtualMemReserve", done)
}

pub(super) unsafe extern "C" fn release(
    _context: ze_context_handle_t,
    address: *const c_void,
    size: usize,
) -> ze_result_t {
    answer("zeVirtualMemFree", virtual_memory::release(&mut registry(), address.addr(), size))
}

/// The same for memory of any size.
pub(super) unsafe extern "C" fn page_size(
    _context: ze_context_handle_t,
    _device: ze_device_handle_t,
    _size: usize,
    out: *mut usize,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    answer("zeVirtualMemQueryPageSize", unsafe { give(out, PAGE_BYTES) })
}

pub(super) unsafe extern "C" fn create_physical(
    _context: ze_context_handle_t,
    device: ze_device_handle_t,
    desc: *mut ze_physical_mem_desc_t,
    out: *mut ze_physical_mem_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise about all three; a null pointer costs one box, in a test.
    let done = unsafe {
        look(desc.cast_const())
            .and_then(|desc| registry().virtual_memory.create(desc.size, devices::device(device)?))
            .and_then(|id: PhysicalId| give(out, make(id)))
    };
    answer("zePhysicalMemCreate", done)
}

pub(super) unsafe extern "C" fn destroy_physical(
    _context: ze_context_handle_t,
    memory: ze_physical_mem_handle_t,
) -> ze_result_t {
    trace!("zePhysicalMemDestroy({memory:p})");
    // SAFETY: the specification's promise: memory of ours, not used again.
    let done = unsafe {
        content::<PhysicalId, _>(memory)
            .and_then(|id| virtual_memory::destroy(&mut registry(), *id))
            .and_then(|()| destroy::<PhysicalId, _>(memory))
    };
    answer("zePhysicalMemDestroy", done)
}

/// Maps from the begin of the memory only: compute-runtime does not look at the offset.
pub(super) unsafe extern "C" fn map(
    _context: ze_context_handle_t,
    address: *const c_void,
    size: usize,
    memory: ze_physical_mem_handle_t,
    _offset: usize,
    _access: ze_memory_access_attribute_t,
) -> ze_result_t {
    trace!("zeVirtualMemMap({address:p}, {size}, {memory:p})");
    // SAFETY: the specification's promise: memory of ours.
    let done = unsafe { content::<PhysicalId, _>(memory) }
        .and_then(|id| virtual_memory::map(&mut registry(), address.addr(), size, *id));
    answer("zeVirtualMemMap", done)
}

pub(super) unsafe extern "C" fn unmap(
    _context: ze_context_handle_t,
    address: *const c_void,
    size: usize,
) -> ze_result_t {
    trace!("zeVirtualMemUnmap({address:p}, {size})");
    answer("zeVirtualMemUnmap", virtual_memory::unmap(&mut registry(), address.addr(), size))
}
