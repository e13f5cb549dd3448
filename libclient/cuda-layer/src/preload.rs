//! The driver's functions under their own names, for programs that link the driver. Must never be
//! called from within this library: the dynamic linker may find the driver's instead.

use crate::result::{CuDevicePtr, CuMemAllocationProp, CuMemHandle, CuResult};
use crate::{entry, names};
use std::ffi::{c_char, c_int, c_ulonglong, c_void};

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
    fn cuGetProcAddress = names::proc_address,
        (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64);
    fn cuGetProcAddress_v2 = names::proc_address_v2,
        (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64,
         status: *mut c_int);
}
