//! Intel's functions for the memory of devices of several tiles, which programs ask the driver for
//! by name. Must never leave a handle of one tile for another's.

use crate::below::{self, MISSING};
use crate::consume::{self, Ready};
use crate::guard::guard;
use crate::limits::TILES;
use crate::produce;
use level_zero_sys::*;
use std::ffi::c_void;

const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;

/// The handles of an allocation, one for each tile.
///
/// # Safety
/// As zexMemGetIpcHandles.
pub unsafe extern "C" fn get(
    context: ze_context_handle_t,
    pointer: *const c_void,
    count: *mut u32,
    handles: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    guard(|| {
        let Some(below) = below::GET_TILES.get() else { return MISSING };
        // SAFETY: the caller's promise.
        let code = unsafe { below(context, pointer, count, handles) };
        if code != SUCCESS || count.is_null() || handles.is_null() {
            return code;
        }
        // SAFETY: the driver has written as many as it says.
        let handles = unsafe { std::slice::from_raw_parts_mut(handles, (*count) as usize) };
        for (tile, handle) in (0..).zip(handles) {
            produce::exchange(context, pointer, tile, handle);
        }
        code
    })
}

/// # Safety
/// As zexMemOpenIpcHandles.
pub unsafe extern "C" fn open(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    count: u32,
    handles: *mut ze_ipc_mem_handle_t,
    flags: ze_ipc_memory_flags_t,
    pointer: *mut *mut c_void,
) -> ze_result_t {
    guard(|| {
        let Some(below) = below::OPEN_TILES.get() else { return MISSING };
        if handles.is_null() || count == 0 || count as usize > TILES {
            // SAFETY: the caller's promise; the driver refuses it.
            return unsafe { below(context, device, count, handles, flags, pointer) };
        }
        // SAFETY: the caller's promise: as many handles.
        let programs = unsafe { std::slice::from_raw_parts(handles, count as usize) };
        let all: Result<Vec<Ready>, ze_result_t> =
            programs.iter().map(|handle| consume::ready(handle.to_bytes())).collect();
        let all = match all {
            Ok(all) => all,
            Err(code) => return code,
        };
        let mut drivers: Vec<ze_ipc_mem_handle_t> =
            all.iter().map(|ready| ze_ipc_mem_handle_t::from_bytes(ready.handle)).collect();
        // SAFETY: the caller's promise; the fds stay ours.
        let code = unsafe { below(context, device, count, drivers.as_mut_ptr(), flags, pointer) };
        if code == SUCCESS {
            // SAFETY: the driver has just written there.
            consume::keep(unsafe { *pointer }.addr(), all.into_iter().filter_map(Ready::opened));
        }
        code
    })
}
