//! What specification 1.15 and Intel's driver add to `bindings`, as far as it is used here: written
//! by hand from `ze_api.h`, `ze_ddi.h` (v1.15) and `zex_memory.h` of compute-runtime, all MIT,
//! (C) Intel Corporation. Must never change a table's layout: fields are only ever added at the
//! end.

use crate::bindings::*;
use std::ffi::c_void;

/// The version of the tables that have these fields.
pub const ZE_API_VERSION_1_15: ze_api_version_t = ze_api_version_t((1 << 16) | 15);

/// `ZE_STRUCTURE_TYPE_IPC_MEM_HANDLE_TYPE_EXT_DESC`.
const IPC_MEM_HANDLE_TYPE_EXT_DESC: ze_structure_type_t = ze_structure_type_t(0x0002_003d);

/// `ZE_IPC_MEM_HANDLE_TYPE_FLAG_FABRIC_ACCESSIBLE`: a handle for other machines, too, without an
/// fd.
pub const ZE_IPC_MEM_HANDLE_TYPE_FLAG_FABRIC_ACCESSIBLE: u32 = 2;

/// `ze_ipc_mem_handle_type_ext_desc_t`: which kind of handle zeMemGetIpcHandleWithProperties is to
/// make.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, non_snake_case)]
pub struct ze_ipc_mem_handle_type_ext_desc_t {
    /// The number of this type.
    pub stype: ze_structure_type_t,
    /// The next structure.
    pub pNext: *const c_void,
    /// 0, or a combination of `ZE_IPC_MEM_HANDLE_TYPE_FLAG_...`.
    pub typeFlags: u32,
}

impl Default for ze_ipc_mem_handle_type_ext_desc_t {
    fn default() -> Self {
        Self { stype: ze_structure_type_t(0), pNext: std::ptr::null(), typeFlags: 0 }
    }
}

// SAFETY: `repr(C)`, plain data; it begins like `ze_base_desc_t`, and the number is the one of the
// specification.
unsafe impl crate::Structure for ze_ipc_mem_handle_type_ext_desc_t {
    const STYPE: ze_structure_type_t = IPC_MEM_HANDLE_TYPE_EXT_DESC;

    fn blank() -> Self {
        Self { stype: Self::STYPE, ..Self::default() }
    }
}

/// zeMemGetIpcHandleWithProperties: context, pointer or physical memory, chain of structures,
/// handle.
#[allow(non_camel_case_types)]
pub type ze_pfnMemGetIpcHandleWithProperties_t = Option<
    unsafe extern "C" fn(
        ze_context_handle_t,
        *const c_void,
        *mut c_void,
        *mut ze_ipc_mem_handle_t,
    ) -> ze_result_t,
>;

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

/// `ze_mem_dditable_t` of 1.15.
#[repr(C)]
#[allow(non_camel_case_types, non_snake_case, missing_docs, missing_debug_implementations)]
pub struct ze_mem_dditable_1_15_t {
    pub before: ze_mem_dditable_t,
    pub pfnGetIpcHandleWithProperties: ze_pfnMemGetIpcHandleWithProperties_t,
}
