//! Intel's functions for the memory of devices of several tiles, which programs ask the driver for
//! by name. Must never leave a handle of one tile for another's, nor call one driver's function
//! with another's handles.

use crate::below::{self, MISSING};
use crate::consume::{self, Ready};
use crate::guard::guard;
use crate::limits::{DRIVERS, TILES};
use crate::produce;
use level_zero_sys::*;
use std::ffi::c_void;

const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;

type Get = unsafe extern "C" fn(Context, *const c_void, *mut u32, *mut Handle) -> ze_result_t;
type Open = unsafe extern "C" fn(
    Context,
    ze_device_handle_t,
    u32,
    *mut Handle,
    ze_ipc_memory_flags_t,
    *mut *mut c_void,
) -> ze_result_t;
type Context = ze_context_handle_t;
type Handle = ze_ipc_mem_handle_t;

/// One for each driver, in the order of `below`.
pub const GET: [Get; DRIVERS] = [get::<0>, get::<1>, get::<2>, get::<3>];
pub const OPEN: [Open; DRIVERS] = [open::<0>, open::<1>, open::<2>, open::<3>];

/// The handles of an allocation, one for each tile.
///
/// # Safety
/// As zexMemGetIpcHandles.
unsafe extern "C" fn get<const DRIVER: usize>(
    context: ze_context_handle_t,
    pointer: *const c_void,
    count: *mut u32,
    handles: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    guard(|| {
        let of_driver = below::GET_TILES[DRIVER].get();
        let Some(below) = of_driver else { return MISSING };
        // SAFETY: the caller's promise.
        let code = unsafe { below(context, pointer, count, handles) };
        if code != SUCCESS || count.is_null() || handles.is_null() {
            return code;
        }
        // SAFETY: the driver has written as many as it says.
        let handles = unsafe { std::slice::from_raw_parts_mut(handles, (*count) as usize) };
        for (tile, handle) in (0..).zip(handles) {
            produce::exchange(context, pointer, (tile, of_driver), handle);
        }
        code
    })
}

/// # Safety
/// As zexMemOpenIpcHandles.
unsafe extern "C" fn open<const DRIVER: usize>(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    count: u32,
    handles: *mut ze_ipc_mem_handle_t,
    flags: ze_ipc_memory_flags_t,
    pointer: *mut *mut c_void,
) -> ze_result_t {
    guard(|| {
        let Some(below) = below::OPEN_TILES[DRIVER].get() else { return MISSING };
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
