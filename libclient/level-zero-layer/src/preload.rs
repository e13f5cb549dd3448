//! The loader's functions under their own names, for LD_PRELOAD. Must never be called from within
//! this library: the dynamic linker may find the loader's instead.

use crate::below::{self, Below};
use crate::{consume, entry, pools, produce};
use level_zero_sys::*;
use std::ffi::{c_char, c_void};

/// Exports functions under the loader's names, with the specification's arguments. Where this
/// library stands in the loader's tables, too, a call goes through the loader, and so through
/// every layer that stands before this one there: a profiler sees it.
macro_rules! exports {
    ($(fn $name:ident = $entry:path, ($($argument:ident: $kind:ty),* $(,)?);)*) => {$(
        /// # Safety
        /// That of the specification's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> ze_result_t {
            type Function = unsafe extern "C" fn($($kind),*) -> ze_result_t;
            static OF_LOADER: Below<Option<Function>> = Below::new(below::name(concat!(stringify!($name), "\0")));
            let of_loader = if below::is_layer() { OF_LOADER.get() } else { None };
            // SAFETY: the caller's promise.
            unsafe { of_loader.unwrap_or($entry)($($argument),*) }
        }
    )*};
}

type Context = ze_context_handle_t;

exports! {
    fn zeMemGetIpcHandle = produce::get,
        (context: Context, pointer: *const c_void, handle: *mut ze_ipc_mem_handle_t);
    fn zeMemPutIpcHandle = produce::put, (context: Context, handle: ze_ipc_mem_handle_t);
    fn zeMemOpenIpcHandle = consume::open,
        (context: Context, device: ze_device_handle_t, handle: ze_ipc_mem_handle_t,
         flags: ze_ipc_memory_flags_t, pointer: *mut *mut c_void);
    fn zeMemCloseIpcHandle = entry::close, (context: Context, pointer: *const c_void);
    fn zeMemFree = entry::free, (context: Context, pointer: *mut c_void);
    fn zeMemFreeExt = entry::free_ext,
        (context: Context, desc: *const ze_memory_free_ext_desc_t, pointer: *mut c_void);
    fn zeMemGetFileDescriptorFromIpcHandleExp = produce::fd_of_handle,
        (context: Context, handle: ze_ipc_mem_handle_t, fd: *mut u64);
    fn zeMemGetIpcHandleFromFileDescriptorExp = produce::handle_of_fd,
        (context: Context, fd: u64, handle: *mut ze_ipc_mem_handle_t);
    fn zeMemGetAllocProperties = produce::properties,
        (context: Context, pointer: *const c_void,
         properties: *mut ze_memory_allocation_properties_t, device: *mut ze_device_handle_t);
    fn zeMemAllocDevice = entry::alloc_device,
        (context: Context, desc: *const ze_device_mem_alloc_desc_t, size: usize, alignment: usize,
         device: ze_device_handle_t, out: *mut *mut c_void);
    fn zeMemAllocHost = entry::alloc_host,
        (context: Context, desc: *const ze_host_mem_alloc_desc_t, size: usize, alignment: usize,
         out: *mut *mut c_void);
    fn zeMemAllocShared = entry::alloc_shared,
        (context: Context, device_desc: *const ze_device_mem_alloc_desc_t,
         host_desc: *const ze_host_mem_alloc_desc_t, size: usize, alignment: usize,
         device: ze_device_handle_t, out: *mut *mut c_void);
    fn zeDriverGetExtensionFunctionAddress = entry::extension,
        (driver: ze_driver_handle_t, name: *const c_char, function: *mut *mut c_void);
    fn zeEventPoolGetIpcHandle = pools::get,
        (pool: ze_event_pool_handle_t, handle: *mut ze_ipc_event_pool_handle_t);
    fn zeEventPoolPutIpcHandle = pools::put,
        (context: Context, handle: ze_ipc_event_pool_handle_t);
    fn zeEventPoolOpenIpcHandle = pools::open,
        (context: Context, handle: ze_ipc_event_pool_handle_t, pool: *mut ze_event_pool_handle_t);
    fn zeEventPoolCloseIpcHandle = pools::close, (pool: ze_event_pool_handle_t);
    fn zeEventPoolDestroy = pools::destroy, (pool: ze_event_pool_handle_t);
    fn zeVirtualMemMap = entry::map,
        (context: Context, pointer: *const c_void, size: usize, memory: ze_physical_mem_handle_t,
         offset: usize, access: ze_memory_access_attribute_t);
    fn zeVirtualMemUnmap = entry::unmap, (context: Context, pointer: *const c_void, size: usize);
    fn zeVirtualMemFree = entry::virtual_free,
        (context: Context, pointer: *const c_void, size: usize);
    fn zePhysicalMemCreate = entry::physical_create,
        (context: Context, device: ze_device_handle_t, desc: *mut ze_physical_mem_desc_t,
         memory: *mut ze_physical_mem_handle_t);
    fn zePhysicalMemDestroy = entry::physical_destroy,
        (context: Context, memory: ze_physical_mem_handle_t);
    fn zeContextDestroy = entry::context_destroy, (context: Context);
}
