//! External memory: fds that a program exports with zeMemGetAllocProperties and imports with
//! zeMemAllocDevice or zeMemAllocHost. Must never close an fd that the driver has closed, nor write
//! to what the program lets the driver only read.

use crate::below::{self, MISSING};
use crate::guard::guard;
use crate::key::fd_of;
use crate::{broker, consume, produce};
use fdbroker_client::lock;
use fdbroker_layer::Fetched;
use fdbroker_virtual_fds::VirtualFd;
use level_zero_sys::*;
use nix::sys::stat::fstat;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;
const DMA_BUF: u32 = ze_external_memory_type_flag_t::ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF.0;

/// An exported fd becomes a virtual fd. Only as the first structure of the chain, where Intel's
/// driver looks for it, too; elsewhere the fd is the driver's own. The driver exports a handle,
/// which can be Put: other fds of its stay open.
///
/// # Safety
/// As zeMemGetAllocProperties.
pub unsafe extern "C" fn properties(
    context: ze_context_handle_t,
    pointer: *const c_void,
    properties: *mut ze_memory_allocation_properties_t,
    device: *mut ze_device_handle_t,
) -> ze_result_t {
    guard(|| {
        let Some(below) = below::ALLOC_PROPERTIES.get() else { return MISSING };
        // SAFETY: the caller's promise.
        let all = |properties| unsafe { below(context, pointer, properties, device) };
        // SAFETY: the caller's promise.
        let Some(export) = (unsafe { first_export(properties) }) else { return all(properties) };
        // SAFETY: the caller's promise: what the driver is to fill in is the call's own.
        let code = unsafe {
            (*properties).pNext = (*export).pNext.cast_mut();
            let code = all(properties);
            (*properties).pNext = export.cast();
            code
        };
        // SAFETY: as above.
        let is_device = unsafe { (*properties).type_ } == ze_memory_type_t::ZE_MEMORY_TYPE_DEVICE;
        let number = if code == SUCCESS && is_device { export_fd(context, pointer) } else { None };
        match number {
            Some(number) => {
                // SAFETY: as above.
                unsafe { (*export).fd = number };
                code
            }
            None => all(properties),
        }
    })
}

/// The structure for an exported dma-buf, if it is the first of the chain.
///
/// # Safety
/// As zeMemGetAllocProperties.
unsafe fn first_export(
    properties: *mut ze_memory_allocation_properties_t,
) -> Option<*mut ze_external_memory_export_fd_t> {
    // SAFETY: the caller's promise: null, or a chain.
    let first = unsafe { properties.as_ref() }.filter(|_| below::is_interposed())?.pNext;
    let export = first.cast::<ze_external_memory_export_fd_t>();
    // SAFETY: each structure of a chain begins with its type, and this one is of that type then.
    let is_one = !export.is_null()
        && unsafe {
            (*export).stype == ze_external_memory_export_fd_t::STYPE && (*export).flags == DMA_BUF
        };
    is_one.then_some(export)
}

/// A virtual fd of the memory, counted like a handle.
fn export_fd(context: ze_context_handle_t, pointer: *const c_void) -> Option<RawFd> {
    let get = below::GET.get()?;
    let mut handle = ze_ipc_mem_handle_t::default();
    let out = &raw mut handle;
    // SAFETY: the program's context, an address that is only looked up, and a local.
    let code = unsafe { produce::get(context, pointer, out, || get(context, pointer, out)) };
    if code != SUCCESS {
        return None;
    }
    let number = fd_of(&handle.to_bytes());
    if VirtualFd::new(number).is_none() {
        // SAFETY: the handle of the Get above, which nobody else has.
        unsafe { produce::put(context, handle) };
        return None;
    }
    Some(number)
}

/// What a description that begins with its type and chain has the driver allocate: memory, or an
/// import of an fd. Only the first structure of the chain is looked at.
///
/// # Safety
/// As zeMemAllocDevice and zeMemAllocHost: `D` is the type of their description; `below` writes the
/// address to `out`.
pub unsafe fn allocate<D: Structure>(
    desc: *const D,
    out: *mut *mut c_void,
    below: impl Fn(*const D) -> ze_result_t,
) -> ze_result_t {
    // SAFETY: the caller's promise: null, or a description that begins like every structure.
    let first = unsafe { desc.cast::<ze_base_desc_t>().as_ref() }.map(|base| base.pNext);
    let import = first.map(|first| first.cast::<ze_external_memory_import_fd_t>());
    // SAFETY: as above.
    let import = import.and_then(|import| unsafe { import.as_ref() });
    let Some(import) = import.filter(|it| it.stype == ze_external_memory_import_fd_t::STYPE) else {
        return broker::allocate(|| below(desc));
    };
    let virtual_fd = VirtualFd::new(import.fd).filter(|_| below::is_interposed());
    let Some(virtual_fd) = virtual_fd else {
        let hold = consume::hold_of(import.fd);
        let code = below(desc);
        if code == SUCCESS {
            // SAFETY: the driver has just written there.
            consume::keep(unsafe { *out }.addr(), hold);
        }
        return code;
    };
    let fetched = match consume::acquire(virtual_fd) {
        Ok(fetched) => fetched,
        Err(code) => return code,
    };
    let hold = fetched.lease();
    let code = import_own(fetched, |number| {
        let import = ze_external_memory_import_fd_t { fd: number, ..*import };
        // SAFETY: the caller's promise; a bitwise copy of plain data, whose chain begins with the
        // copy above.
        unsafe {
            let mut copy = desc.read();
            (*(&raw mut copy).cast::<ze_base_desc_t>()).pNext = (&raw const import).cast();
            below(&raw const copy)
        }
    });
    if code == SUCCESS {
        // SAFETY: the driver has just written there.
        consume::keep(unsafe { *out }.addr(), [hold]);
    }
    code
}

const UNKNOWN: u8 = 0;
const DRIVER_CLOSES: u8 = 1;
const CALLER_CLOSES: u8 = 2;

/// Has the driver import an fd of the layer's own. A driver of 26.14 or later closes it on success,
/// an older one never does: which, is learnt once.
fn import_own(fetched: Fetched, import: impl FnOnce(RawFd) -> ze_result_t) -> ze_result_t {
    static HABIT: AtomicU8 = AtomicU8::new(UNKNOWN);
    static LEARNING: Mutex<()> = Mutex::new(());
    let mut habit = HABIT.load(Ordering::Relaxed);
    // One import at a time until it is known, so that no other import of the same memory can get
    // the number meanwhile. The driver does not call back.
    let learning = (habit == UNKNOWN).then(|| lock(&LEARNING));
    let fd = &fetched.fd;
    let before = fstat(fd.as_fd());
    let code = import(fd.as_raw_fd());
    if code != SUCCESS {
        return code;
    }
    if learning.is_some() {
        // SAFETY: only looked at; if the driver has closed it, that says EBADF or finds another
        // file.
        let now = fstat(unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) });
        let is_still = matches!((&before, &now), (Ok(before), Ok(now))
            if (before.st_dev, before.st_ino) == (now.st_dev, now.st_ino));
        habit = if is_still { CALLER_CLOSES } else { DRIVER_CLOSES };
        HABIT.store(habit, Ordering::Relaxed);
    }
    if habit == CALLER_CLOSES {
        fetched.close();
    } else {
        fetched.closed();
    }
    code
}
