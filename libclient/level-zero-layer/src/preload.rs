//! The loader's functions under their own names, for LD_PRELOAD. Must never be called from within this library: the
//! dynamic linker may find the loader's instead.

use crate::entry;
use level_zero_sys::*;
use std::ffi::c_void;

/// Exports functions under the loader's names, with the specification's arguments.
macro_rules! exports {
    ($(fn $name:ident = $entry:path, ($($argument:ident: $kind:ty),* $(,)?);)*) => {$(
        /// # Safety
        /// That of the specification's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> ze_result_t {
            // SAFETY: the caller's promise.
            unsafe { $entry($($argument),*) }
        }
    )*};
}

type Context = ze_context_handle_t;

exports! {
    fn zeMemGetIpcHandle = entry::get,
        (context: Context, pointer: *const c_void, handle: *mut ze_ipc_mem_handle_t);
    fn zeMemPutIpcHandle = entry::put, (context: Context, handle: ze_ipc_mem_handle_t);
    fn zeMemOpenIpcHandle = entry::open,
        (context: Context, device: ze_device_handle_t, handle: ze_ipc_mem_handle_t,
         flags: ze_ipc_memory_flags_t, pointer: *mut *mut c_void);
    fn zeMemCloseIpcHandle = entry::close, (context: Context, pointer: *const c_void);
    fn zeMemFree = entry::free, (context: Context, pointer: *mut c_void);
    fn zeMemFreeExt = entry::free_ext,
        (context: Context, desc: *const ze_memory_free_ext_desc_t, pointer: *mut c_void);
    fn zeMemGetFileDescriptorFromIpcHandleExp = entry::fd_of_handle,
        (context: Context, handle: ze_ipc_mem_handle_t, fd: *mut u64);
    fn zeVirtualMemMap = entry::map,
        (context: Context, pointer: *const c_void, size: usize, memory: ze_physical_mem_handle_t,
         offset: usize, access: ze_memory_access_attribute_t);
    fn zeVirtualMemUnmap = entry::unmap, (context: Context, pointer: *const c_void, size: usize);
    fn zeVirtualMemFree = entry::virtual_free,
        (context: Context, pointer: *const c_void, size: usize);
    fn zePhysicalMemDestroy = entry::physical_destroy,
        (context: Context, memory: ze_physical_mem_handle_t);
    fn zeContextDestroy = entry::context_destroy, (context: Context);
}
