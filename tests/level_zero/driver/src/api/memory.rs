//! The memory group. Must never take or give an fd without a rule in lib.rs that says who owns it.

use crate::allocation::{Origin, registry};
use crate::answer::{Failure, answer};
use crate::devices::{self, Device};
use crate::handle::Kind;
use crate::opaque::{give, look, look_mut};
use crate::trace::trace;
use crate::virtual_memory::PAGE_BYTES;
use crate::{export, import};
use level_zero_sys::*;
use std::ffi::c_void;
use std::ptr;

const DMA_BUF: u32 = ze_external_memory_type_flag_t::ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF.0;

fn pointer(address: usize) -> *mut c_void {
    ptr::without_provenance_mut(address)
}

/// Like compute-runtime, refuses all external memory types except dma-bufs.
fn only_dma_buf(flags: ze_external_memory_type_flags_t) -> Result<(), Failure> {
    match flags {
        DMA_BUF => Ok(()),
        _ => Err(ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION.into()),
    }
}

pub(super) unsafe extern "C" fn alloc_device(
    _context: ze_context_handle_t,
    desc: *const ze_device_mem_alloc_desc_t,
    size: usize,
    _alignment: usize,
    device: ze_device_handle_t,
    out: *mut *mut c_void,
) -> ze_result_t {
    // SAFETY: the specification's promise about `desc`, what hangs on it, the device and `out`.
    let done = unsafe {
        look(desc).and_then(|desc| {
            let device = devices::device(device)?;
            let address = match find::<ze_external_memory_import_fd_t>(desc.pNext) {
                Some(from) => {
                    only_dma_buf(from.flags)?;
                    import::import_fd(&mut registry(), device, from.fd, size)?
                }
                None => {
                    let exports = find::<ze_external_memory_export_desc_t>(desc.pNext);
                    if let Some(export) = exports {
                        only_dma_buf(export.flags)?;
                    }
                    registry().allocate(Some(device), size, exports.is_some())?
                }
            };
            trace!("zeMemAllocDevice({size}) = {address:#x}");
            give(out, pointer(address))
        })
    };
    answer("zeMemAllocDevice", done)
}

fn host(size: usize) -> Result<*mut c_void, Failure> {
    registry().allocate(None, size, false).map(ptr::with_exposed_provenance_mut)
}

pub(super) unsafe extern "C" fn alloc_host(
    _context: ze_context_handle_t,
    _desc: *const ze_host_mem_alloc_desc_t,
    size: usize,
    _alignment: usize,
    out: *mut *mut c_void,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    answer("zeMemAllocHost", host(size).and_then(|address| unsafe { give(out, address) }))
}

/// Shared memory is host memory here: host and device can reach it.
pub(super) unsafe extern "C" fn alloc_shared(
    _context: ze_context_handle_t,
    _device_desc: *const ze_device_mem_alloc_desc_t,
    _host_desc: *const ze_host_mem_alloc_desc_t,
    size: usize,
    _alignment: usize,
    _device: ze_device_handle_t,
    out: *mut *mut c_void,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    answer("zeMemAllocShared", host(size).and_then(|address| unsafe { give(out, address) }))
}

fn end_allocation(address: usize) -> Result<(), Failure> {
    registry().end(address, |origin| origin != Origin::Mapped)
}

pub(super) unsafe extern "C" fn free(
    _context: ze_context_handle_t,
    address: *mut c_void,
) -> ze_result_t {
    trace!("zeMemFree({address:p})");
    answer("zeMemFree", end_allocation(address.addr()))
}

/// Frees at once under every policy: no command runs during this call.
pub(super) unsafe extern "C" fn free_ext(
    _context: ze_context_handle_t,
    desc: *const ze_memory_free_ext_desc_t,
    address: *mut c_void,
) -> ze_result_t {
    trace!("zeMemFreeExt({address:p})");
    // SAFETY: the specification's promise.
    let done = unsafe { look(desc) }.and_then(|_| end_allocation(address.addr()));
    answer("zeMemFreeExt", done)
}

pub(super) unsafe extern "C" fn alloc_properties(
    _context: ze_context_handle_t,
    address: *const c_void,
    properties: *mut ze_memory_allocation_properties_t,
    device: *mut ze_device_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise about all three pointers and what hangs on `properties`.
    let done = unsafe { describe(address.addr(), properties, device) };
    answer("zeMemGetAllocProperties", done)
}

/// # Safety
/// The specification's promise of zeMemGetAllocProperties.
unsafe fn describe(
    address: usize,
    properties: *mut ze_memory_allocation_properties_t,
    device: *mut ze_device_handle_t,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let properties = unsafe { look_mut(properties) }?;
    let mut registry = registry();
    let Some(allocation) = registry.find(address) else {
        // Memory of somebody else is no error here.
        properties.type_ = ze_memory_type_t::ZE_MEMORY_TYPE_UNKNOWN;
        return Ok(());
    };
    let (memory_type, its_device) = match allocation.kind {
        Kind::Device => {
            let handle = allocation.device.map_or(ptr::null_mut(), Device::handle);
            (ze_memory_type_t::ZE_MEMORY_TYPE_DEVICE, handle)
        }
        Kind::Host => (ze_memory_type_t::ZE_MEMORY_TYPE_HOST, ptr::null_mut()),
    };
    properties.type_ = memory_type;
    properties.id = allocation.id;
    properties.pageSize = PAGE_BYTES as u64;
    if !device.is_null() {
        // SAFETY: the caller's promise.
        unsafe { give(device, its_device) }?;
    }
    // SAFETY: the caller's promise.
    if let Some(wanted) = unsafe { find_mut::<ze_external_memory_export_fd_t>(properties.pNext) } {
        only_dma_buf(wanted.flags)?;
        wanted.fd = export::fd(allocation)?;
        trace!("export_fd({address:#x}) = fd {}", wanted.fd);
    }
    Ok(())
}

pub(super) unsafe extern "C" fn address_range(
    _context: ze_context_handle_t,
    address: *const c_void,
    base: *mut *mut c_void,
    size: *mut usize,
) -> ze_result_t {
    let range =
        registry().find(address.addr()).map(|allocation| (allocation.base(), allocation.bytes));
    let done = range.ok_or(ze_result_t::ZE_RESULT_ERROR_UNKNOWN.into());
    // SAFETY: the specification's promise; each of the two may be null.
    let done = done.and_then(|(first, bytes)| unsafe {
        if !base.is_null() {
            give(base, pointer(first))?;
        }
        if !size.is_null() {
            give(size, bytes)?;
        }
        Ok(())
    });
    answer("zeMemGetAddressRange", done)
}

pub(super) unsafe extern "C" fn get_ipc_handle(
    _context: ze_context_handle_t,
    address: *const c_void,
    handle: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    let got = export::get(&mut registry(), address.addr());
    trace!("zeMemGetIpcHandle({address:p}) = {:?}", got.as_ref().map(|bytes| &bytes[..16]));
    // SAFETY: the specification's promise.
    let done =
        got.and_then(|bytes| unsafe { give(handle, ze_ipc_mem_handle_t::from_bytes(bytes)) });
    answer("zeMemGetIpcHandle", done)
}

pub(super) unsafe extern "C" fn put_ipc_handle(
    _context: ze_context_handle_t,
    handle: ze_ipc_mem_handle_t,
) -> ze_result_t {
    trace!("zeMemPutIpcHandle({:?})", &handle.to_bytes()[..16]);
    export::put(&mut registry(), &handle.to_bytes());
    ze_result_t::ZE_RESULT_SUCCESS
}

pub(super) unsafe extern "C" fn open_ipc_handle(
    _context: ze_context_handle_t,
    device: ze_device_handle_t,
    handle: ze_ipc_mem_handle_t,
    _flags: ze_ipc_memory_flags_t,
    out: *mut *mut c_void,
) -> ze_result_t {
    // SAFETY: the specification's promise: a device of ours.
    let opened = unsafe { devices::device(device) }
        .and_then(|device| import::open(&mut registry(), device, &handle.to_bytes()));
    trace!("zeMemOpenIpcHandle({:?}) = {opened:x?}", &handle.to_bytes()[..16]);
    // SAFETY: the specification's promise.
    let done = opened.and_then(|address| unsafe { give(out, pointer(address)) });
    answer("zeMemOpenIpcHandle", done)
}

pub(super) unsafe extern "C" fn close_ipc_handle(
    _context: ze_context_handle_t,
    address: *const c_void,
) -> ze_result_t {
    trace!("zeMemCloseIpcHandle({address:p})");
    let may_end = |origin| matches!(origin, Origin::Opened { .. });
    answer("zeMemCloseIpcHandle", registry().end(address.addr(), may_end))
}

pub(super) unsafe extern "C" fn ipc_handle_from_fd(
    _context: ze_context_handle_t,
    fd: u64,
    handle: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    let got = export::handle_of_fd(&mut registry(), i32::try_from(fd).unwrap_or(-1));
    // SAFETY: the specification's promise.
    let done =
        got.and_then(|bytes| unsafe { give(handle, ze_ipc_mem_handle_t::from_bytes(bytes)) });
    answer("zeMemGetIpcHandleFromFileDescriptorExp", done)
}

pub(super) unsafe extern "C" fn fd_from_ipc_handle(
    _context: ze_context_handle_t,
    handle: ze_ipc_mem_handle_t,
    out: *mut u64,
) -> ze_result_t {
    let fd = export::fd_of_handle(&mut registry(), &handle.to_bytes());
    // SAFETY: the specification's promise.
    let done = fd.and_then(|fd| unsafe { give(out, u64::from(fd.unsigned_abs())) });
    answer("zeMemGetFileDescriptorFromIpcHandleExp", done)
}
