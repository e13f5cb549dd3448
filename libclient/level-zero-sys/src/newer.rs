//! What Intel's driver adds to `bindings`, as far as it is used here: written by hand from
//! `zex_memory.h` of compute-runtime (MIT, (C) Intel Corporation). Must never have a type that
//! nobody uses.

use crate::bindings::*;
use std::ffi::c_void;

/// zexMemGetIpcHandles: context, pointer, number of handles (0 asks for it), handles.
#[allow(non_camel_case_types)]
pub type zex_pfnMemGetIpcHandles_t = Option<
    unsafe extern "C" fn(
        ze_context_handle_t,
        *const c_void,
        *mut u32,
        *mut ze_ipc_mem_handle_t,
    ) -> ze_result_t,
>;

/// zexMemOpenIpcHandles: context, device, number of handles, handles, flags, pointer.
#[allow(non_camel_case_types)]
pub type zex_pfnMemOpenIpcHandles_t = Option<
    unsafe extern "C" fn(
        ze_context_handle_t,
        ze_device_handle_t,
        u32,
        *mut ze_ipc_mem_handle_t,
        ze_ipc_memory_flags_t,
        *mut *mut c_void,
    ) -> ze_result_t,
>;
