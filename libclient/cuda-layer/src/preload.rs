//! The driver's functions under their own names, for programs that link the driver. Must never be
//! called from within this library: the dynamic linker may find the driver's instead.

use crate::result::{
    CuContext, CuDevicePtr, CuIpcHandle, CuMemAllocationProp, CuMemHandle, CuResult, IpcHandle,
};
use crate::{entry, names};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// Exports functions under the driver's names, with the arguments of cuda.h.
macro_rules! exports {
    ($(fn $name:ident = $entry:path, ($($argument:ident: $kind:ty),* $(,)?);)*) => {$(
        /// # Safety
        /// That of the driver's function of this name.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the names of cuda.h")]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> CuResult {
            // SAFETY: the caller's promise.
            unsafe { $entry($($argument),*) }
        }
    )*};
}

exports! {
    fn cuMemCreate = entry::create,
        (handle: *mut CuMemHandle, size: usize, prop: *const CuMemAllocationProp, flags: c_ulonglong);
    fn cuMemRelease = entry::release, (handle: CuMemHandle);
    fn cuMemRetainAllocationHandle = entry::retain, (handle: *mut CuMemHandle, address: *mut c_void);
    fn cuMemMap = entry::map,
        (base: CuDevicePtr, size: usize, offset: usize, handle: CuMemHandle, flags: c_ulonglong);
    fn cuMemUnmap = entry::unmap, (base: CuDevicePtr, size: usize);
    fn cuMemExportToShareableHandle = entry::export,
        (shareable: *mut c_void, handle: CuMemHandle, kind: c_int, flags: c_ulonglong);
    fn cuMemImportFromShareableHandle = entry::import,
        (handle: *mut CuMemHandle, shareable: *mut c_void, kind: c_int);
    fn cuMemAlloc_v2 = entry::allocate, (pointer: *mut CuDevicePtr, bytes: usize);
    fn cuMemFree_v2 = entry::free, (pointer: CuDevicePtr);
    fn cuMemGetAddressRange_v2 = entry::range,
        (base: *mut CuDevicePtr, bytes: *mut usize, address: CuDevicePtr);
    fn cuPointerGetAttribute = entry::attribute,
        (data: *mut c_void, attribute: c_int, address: CuDevicePtr);
    fn cuPointerGetAttributes = entry::attributes,
        (count: c_uint, attributes: *mut c_int, data: *mut *mut c_void, address: CuDevicePtr);
    fn cuIpcGetMemHandle = entry::ipc_get, (handle: *mut CuIpcHandle, pointer: CuDevicePtr);
    fn cuIpcOpenMemHandle = entry::ipc_open_v1,
        (pointer: *mut CuDevicePtr, handle: IpcHandle, flags: c_uint);
    fn cuIpcOpenMemHandle_v2 = entry::ipc_open,
        (pointer: *mut CuDevicePtr, handle: IpcHandle, flags: c_uint);
    fn cuIpcCloseMemHandle = entry::ipc_close, (pointer: CuDevicePtr);
    fn cuCtxEnablePeerAccess = entry::enable_peer, (of: CuContext, flags: c_uint);
    fn cuCtxDisablePeerAccess = entry::disable_peer, (of: CuContext);
    fn cuCtxDestroy = entry::destroy_v1, (context: CuContext);
    fn cuCtxDestroy_v2 = entry::destroy, (context: CuContext);
    fn cuDevicePrimaryCtxRelease = entry::primary_release_v1, (device: c_int);
    fn cuDevicePrimaryCtxRelease_v2 = entry::primary_release, (device: c_int);
    fn cuDevicePrimaryCtxReset = entry::primary_reset_v1, (device: c_int);
    fn cuDevicePrimaryCtxReset_v2 = entry::primary_reset, (device: c_int);
    fn cuGetProcAddress = names::proc_address,
        (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64);
    fn cuGetProcAddress_v2 = names::proc_address_v2,
        (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64,
         status: *mut c_int);
}
