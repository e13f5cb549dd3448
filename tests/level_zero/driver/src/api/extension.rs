//! Functions that programs ask for by name. Must never answer one for another name.

use crate::allocation::registry;
use crate::answer::{Failure, answer};
use crate::counters::{COUNTERS_FUNCTION, Counters, WHERE_FUNCTION};
use crate::devices::{self, Place};
use crate::opaque::{give, look_mut};
use crate::trace::trace;
use crate::{export, import};
use level_zero_sys::*;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

/// The driver's function of a name: compute-runtime has all but the first two.
fn named(name: &CStr) -> Option<*mut c_void> {
    Some(match name {
        name if name == COUNTERS_FUNCTION => counters as *mut c_void,
        name if name == WHERE_FUNCTION => place as *mut c_void,
        name if name == c"zexMemGetIpcHandles" => get_tiles as *mut c_void,
        name if name == c"zexMemOpenIpcHandles" => open_tiles as *mut c_void,
        _ => return None,
    })
}

pub(super) unsafe extern "C" fn address(
    _driver: ze_driver_handle_t,
    name: *const c_char,
    function: *mut *mut c_void,
) -> ze_result_t {
    // SAFETY: the specification's promise: null, or a C string.
    let found = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }).and_then(named);
    let done = match found {
        // SAFETY: the specification's promise.
        Some(found) => unsafe { give(function, found) },
        None => Err(ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE.into()),
    };
    answer("zeDriverGetExtensionFunctionAddress", done)
}

unsafe extern "C" fn counters(out: *mut Counters) {
    let counters = registry().counters();
    trace!("{counters:?}");
    // SAFETY: the type of `CountersFunction` promises room for one.
    let _ = unsafe { give(out, counters) };
}

/// The place of the memory at an address, as one number; 0: not known.
unsafe extern "C" fn place(address: *const c_void) -> u32 {
    let mut registry = registry();
    let place = registry.find(address.addr()).and_then(|allocation| allocation.object.place);
    place.map_or(0, Place::number)
}

/// The handles of all tiles. A count of 0, or one that is too large, becomes the number of tiles;
/// without room for handles that is all.
unsafe extern "C" fn get_tiles(
    _context: ze_context_handle_t,
    address: *const c_void,
    count: *mut u32,
    handles: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    // SAFETY: compute-runtime's promise: a count, and room for as many handles or null.
    let done = unsafe { look_mut(count) }.and_then(|count| {
        let mut registry = registry();
        let tiles = export::tiles(&mut registry, address.addr())?;
        if *count == 0 || *count > tiles {
            *count = tiles;
        }
        for tile in 0..if handles.is_null() { 0 } else { *count } {
            let bytes = export::get_tile(&mut registry, address.addr(), tile)?;
            // SAFETY: as above.
            unsafe { *handles.add(tile as usize) = ze_ipc_mem_handle_t::from_bytes(bytes) };
        }
        Ok(())
    });
    answer("zexMemGetIpcHandles", done)
}

unsafe extern "C" fn open_tiles(
    _context: ze_context_handle_t,
    device: ze_device_handle_t,
    count: u32,
    handles: *mut ze_ipc_mem_handle_t,
    _flags: ze_ipc_memory_flags_t,
    out: *mut *mut c_void,
) -> ze_result_t {
    let done = if handles.is_null() || count == 0 || count > 2 {
        Err(Failure::from(ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT))
    } else {
        // SAFETY: compute-runtime's promise: as many handles.
        let handles = unsafe { std::slice::from_raw_parts(handles, count as usize) };
        let bytes: Vec<_> = handles.iter().map(|handle| handle.to_bytes()).collect();
        // SAFETY: as above: a device of ours.
        unsafe { devices::device(device) }
            .and_then(|device| import::open_tiles(&mut registry(), device, &bytes))
    };
    // SAFETY: as above.
    let done = done
        .and_then(|address| unsafe { give(out, ptr::without_provenance_mut::<c_void>(address)) });
    answer("zexMemOpenIpcHandles", done)
}
