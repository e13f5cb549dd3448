//! The loader's functions as methods. Must never call a function that the loader lacks, nor panic
//! because it lacks one.

use crate::bindings::*;
use crate::error::{CallError, LoadError};
use crate::load::{LOADER, open, symbol};
use crate::result::check;
use libloading::os::unix::Library;
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::path::Path;

/// A loaded Level Zero loader and its functions, as far as it has them.
///
/// Each function is a method under its own name, with the specification's arguments. It is `unsafe`
/// like the C function: handles must be live, and pointers valid for what the function does with
/// them. A copy is the same loader, which is never unloaded.
#[derive(Clone, Copy)]
pub struct LevelZero {
    functions: Functions,
}

impl LevelZero {
    /// Opens the system's loader, [`LOADER`]. A function that it lacks is an error when its method
    /// is called.
    ///
    /// # Errors
    /// [`LoadError`]: the loader was not found, or the library of that name is none.
    pub fn load() -> Result<Self, LoadError> {
        // SAFETY: the name belongs to the Level Zero loader; whatever the administrator put there
        // runs as any linked library does.
        unsafe { Self::load_from(Path::new(LOADER)) }
    }

    /// Opens the loader at `path`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    ///
    /// # Safety
    /// Runs the library's initialisers, and calls its functions later: it must be a Level Zero
    /// loader, or something without `zeInit`.
    pub unsafe fn load_from(path: &Path) -> Result<Self, LoadError> {
        // SAFETY: the caller's promise.
        let library = unsafe { open(path) }?;
        // SAFETY: the caller's promise: what has these names has the specification's types.
        let functions = unsafe { Functions::find(&library) };
        match functions.zeInit {
            Some(_) => Ok(Self { functions }),
            None => Err(LoadError::NotALoader { library: path.into() }),
        }
    }
}

impl fmt::Debug for LevelZero {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LevelZero").field("missing", &self.missing()).finish()
    }
}

/// Makes three things of one list: the table of pointers, the search for them, and a method for
/// each.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?): $pointer:ty;)*) => {
        #[derive(Clone, Copy)]
        #[allow(non_snake_case)]
        struct Functions {
            $($name: $pointer,)*
        }

        impl Functions {
            /// # Safety
            /// Functions of these names are Level Zero's, and the library is never unloaded.
            unsafe fn find(library: &Library) -> Self {
                // SAFETY: the caller's promise; the types are the header's.
                unsafe {
                    Self { $($name: symbol::<$pointer>(library, name(concat!(stringify!($name), "\0"))).flatten(),)* }
                }
            }
        }

        #[allow(non_snake_case)]
        impl LevelZero {
            /// The names of this crate's functions that the loader lacks. A loader of spec 1.12 or
            /// later lacks none.
            pub fn missing(&self) -> Vec<&'static str> {
                let all = [$((stringify!($name), self.functions.$name.is_some()),)*];
                all.iter().filter(|(_, is_there)| !is_there).map(|(name, _)| *name).collect()
            }

            $(
                #[doc = concat!("`", stringify!($name), "` of the specification, which has its arguments and answers.")]
                ///
                /// # Errors
                /// [`CallError::Missing`] where the loader lacks it, [`CallError::Failed`] with the
                /// driver's answer.
                ///
                /// # Safety
                /// That of the C function: live handles, pointers valid for what it does with them.
                #[allow(clippy::too_many_arguments)]
                pub unsafe fn $name(&self, $($argument: $kind),*) -> Result<(), CallError> {
                    let Some(function) = self.functions.$name else {
                        return Err(CallError::Missing { function: stringify!($name) });
                    };
                    // SAFETY: the caller's promise; the pointer was found under this name and has
                    // the header's type.
                    check(stringify!($name), unsafe { function($($argument),*) })
                }
            )*
        }
    };
}

/// The macro's name of a function, which ends with a NUL.
fn name(with_nul: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(with_nul.as_bytes()).expect("one NUL, at the end")
}

type Driver = ze_driver_handle_t;
type Device = ze_device_handle_t;
type Context = ze_context_handle_t;
type Queue = ze_command_queue_handle_t;
type List = ze_command_list_handle_t;
type Fence = ze_fence_handle_t;
type Pool = ze_event_pool_handle_t;
type Event = ze_event_handle_t;
type Physical = ze_physical_mem_handle_t;

functions! {
    fn zeInit(flags: ze_init_flags_t): ze_pfnInit_t;
    fn zeInitDrivers(
        count: *mut u32, drivers: *mut Driver, desc: *mut ze_init_driver_type_desc_t,
    ): ze_pfnInitDrivers_t;
    fn zeDriverGet(count: *mut u32, drivers: *mut Driver): ze_pfnDriverGet_t;
    fn zeDriverGetApiVersion(
        driver: Driver, version: *mut ze_api_version_t,
    ): ze_pfnDriverGetApiVersion_t;
    fn zeDriverGetProperties(
        driver: Driver, properties: *mut ze_driver_properties_t,
    ): ze_pfnDriverGetProperties_t;
    fn zeDriverGetIpcProperties(
        driver: Driver, properties: *mut ze_driver_ipc_properties_t,
    ): ze_pfnDriverGetIpcProperties_t;
    fn zeDriverGetExtensionProperties(
        driver: Driver, count: *mut u32, properties: *mut ze_driver_extension_properties_t,
    ): ze_pfnDriverGetExtensionProperties_t;
    fn zeDriverGetExtensionFunctionAddress(
        driver: Driver, name: *const c_char, function: *mut *mut c_void,
    ): ze_pfnDriverGetExtensionFunctionAddress_t;
    fn zeDeviceGet(driver: Driver, count: *mut u32, devices: *mut Device): ze_pfnDeviceGet_t;
    fn zeDeviceGetProperties(
        device: Device, properties: *mut ze_device_properties_t,
    ): ze_pfnDeviceGetProperties_t;
    fn zeDeviceGetMemoryProperties(
        device: Device, count: *mut u32, properties: *mut ze_device_memory_properties_t,
    ): ze_pfnDeviceGetMemoryProperties_t;
    fn zeDeviceGetExternalMemoryProperties(
        device: Device, properties: *mut ze_device_external_memory_properties_t,
    ): ze_pfnDeviceGetExternalMemoryProperties_t;
    fn zeDevicePciGetPropertiesExt(
        device: Device, properties: *mut ze_pci_ext_properties_t,
    ): ze_pfnDevicePciGetPropertiesExt_t;
    fn zeContextCreate(
        driver: Driver, desc: *const ze_context_desc_t, context: *mut Context,
    ): ze_pfnContextCreate_t;
    fn zeContextDestroy(context: Context): ze_pfnContextDestroy_t;
    fn zeMemAllocDevice(
        context: Context, desc: *const ze_device_mem_alloc_desc_t, size: usize, alignment: usize,
        device: Device, pointer: *mut *mut c_void,
    ): ze_pfnMemAllocDevice_t;
    fn zeMemAllocHost(
        context: Context, desc: *const ze_host_mem_alloc_desc_t, size: usize, alignment: usize,
        pointer: *mut *mut c_void,
    ): ze_pfnMemAllocHost_t;
    fn zeMemFree(context: Context, pointer: *mut c_void): ze_pfnMemFree_t;
    fn zeMemFreeExt(
        context: Context, desc: *const ze_memory_free_ext_desc_t, pointer: *mut c_void,
    ): ze_pfnMemFreeExt_t;
    fn zeMemGetAllocProperties(
        context: Context, pointer: *const c_void, properties: *mut
        ze_memory_allocation_properties_t, device: *mut Device,
    ): ze_pfnMemGetAllocProperties_t;
    fn zeMemGetAddressRange(
        context: Context, pointer: *const c_void, base: *mut *mut c_void, size: *mut usize,
    ): ze_pfnMemGetAddressRange_t;
    fn zeMemGetIpcHandle(
        context: Context, pointer: *const c_void, handle: *mut ze_ipc_mem_handle_t,
    ): ze_pfnMemGetIpcHandle_t;
    fn zeMemPutIpcHandle(context: Context, handle: ze_ipc_mem_handle_t): ze_pfnMemPutIpcHandle_t;
    fn zeMemOpenIpcHandle(
        context: Context, device: Device, handle: ze_ipc_mem_handle_t, flags:
        ze_ipc_memory_flags_t, pointer: *mut *mut c_void,
    ): ze_pfnMemOpenIpcHandle_t;
    fn zeMemCloseIpcHandle(context: Context, pointer: *const c_void): ze_pfnMemCloseIpcHandle_t;
    fn zeMemGetIpcHandleFromFileDescriptorExp(
        context: Context, fd: u64, handle: *mut ze_ipc_mem_handle_t,
    ): ze_pfnMemGetIpcHandleFromFileDescriptorExp_t;
    fn zeMemGetFileDescriptorFromIpcHandleExp(
        context: Context, handle: ze_ipc_mem_handle_t, fd: *mut u64,
    ): ze_pfnMemGetFileDescriptorFromIpcHandleExp_t;
    fn zeVirtualMemReserve(
        context: Context, start: *const c_void, size: usize, pointer: *mut *mut c_void,
    ): ze_pfnVirtualMemReserve_t;
    fn zeVirtualMemFree(
        context: Context, pointer: *const c_void, size: usize,
    ): ze_pfnVirtualMemFree_t;
    fn zeVirtualMemMap(
        context: Context, pointer: *const c_void, size: usize, memory: Physical, offset: usize,
        access: ze_memory_access_attribute_t,
    ): ze_pfnVirtualMemMap_t;
    fn zeVirtualMemUnmap(
        context: Context, pointer: *const c_void, size: usize,
    ): ze_pfnVirtualMemUnmap_t;
    fn zePhysicalMemCreate(
        context: Context, device: Device, desc: *mut ze_physical_mem_desc_t, memory: *mut Physical,
    ): ze_pfnPhysicalMemCreate_t;
    fn zePhysicalMemDestroy(context: Context, memory: Physical): ze_pfnPhysicalMemDestroy_t;
    fn zeCommandQueueCreate(
        context: Context, device: Device, desc: *const ze_command_queue_desc_t, queue: *mut Queue,
    ): ze_pfnCommandQueueCreate_t;
    fn zeCommandQueueDestroy(queue: Queue): ze_pfnCommandQueueDestroy_t;
    fn zeCommandQueueExecuteCommandLists(
        queue: Queue, count: u32, lists: *mut List, fence: Fence,
    ): ze_pfnCommandQueueExecuteCommandLists_t;
    fn zeCommandQueueSynchronize(queue: Queue, timeout_ns: u64): ze_pfnCommandQueueSynchronize_t;
    fn zeCommandListCreate(
        context: Context, device: Device, desc: *const ze_command_list_desc_t, list: *mut List,
    ): ze_pfnCommandListCreate_t;
    fn zeCommandListCreateImmediate(
        context: Context, device: Device, desc: *const ze_command_queue_desc_t, list: *mut List,
    ): ze_pfnCommandListCreateImmediate_t;
    fn zeCommandListClose(list: List): ze_pfnCommandListClose_t;
    fn zeCommandListReset(list: List): ze_pfnCommandListReset_t;
    fn zeCommandListDestroy(list: List): ze_pfnCommandListDestroy_t;
    fn zeCommandListAppendMemoryCopy(
        list: List, to: *mut c_void, from: *const c_void, size: usize, signal: Event, wait_count:
        u32, wait: *mut Event,
    ): ze_pfnCommandListAppendMemoryCopy_t;
    fn zeCommandListAppendMemoryFill(
        list: List, to: *mut c_void, pattern: *const c_void, pattern_size: usize, size: usize,
        signal: Event, wait_count: u32, wait: *mut Event,
    ): ze_pfnCommandListAppendMemoryFill_t;
    fn zeCommandListAppendBarrier(
        list: List, signal: Event, wait_count: u32, wait: *mut Event,
    ): ze_pfnCommandListAppendBarrier_t;
    fn zeCommandListHostSynchronize(
        list: List, timeout_ns: u64,
    ): ze_pfnCommandListHostSynchronize_t;
    fn zeFenceCreate(
        queue: Queue, desc: *const ze_fence_desc_t, fence: *mut Fence,
    ): ze_pfnFenceCreate_t;
    fn zeFenceDestroy(fence: Fence): ze_pfnFenceDestroy_t;
    fn zeFenceHostSynchronize(fence: Fence, timeout_ns: u64): ze_pfnFenceHostSynchronize_t;
    fn zeFenceQueryStatus(fence: Fence): ze_pfnFenceQueryStatus_t;
    fn zeFenceReset(fence: Fence): ze_pfnFenceReset_t;
    fn zeEventPoolCreate(
        context: Context, desc: *const ze_event_pool_desc_t, count: u32, devices: *mut Device,
        pool: *mut Pool,
    ): ze_pfnEventPoolCreate_t;
    fn zeEventPoolDestroy(pool: Pool): ze_pfnEventPoolDestroy_t;
    fn zeEventPoolGetIpcHandle(
        pool: Pool, handle: *mut ze_ipc_event_pool_handle_t,
    ): ze_pfnEventPoolGetIpcHandle_t;
    fn zeEventPoolPutIpcHandle(
        context: Context, handle: ze_ipc_event_pool_handle_t,
    ): ze_pfnEventPoolPutIpcHandle_t;
    fn zeEventPoolOpenIpcHandle(
        context: Context, handle: ze_ipc_event_pool_handle_t, pool: *mut Pool,
    ): ze_pfnEventPoolOpenIpcHandle_t;
    fn zeEventPoolCloseIpcHandle(pool: Pool): ze_pfnEventPoolCloseIpcHandle_t;
    fn zeEventCreate(
        pool: Pool, desc: *const ze_event_desc_t, event: *mut Event,
    ): ze_pfnEventCreate_t;
    fn zeEventDestroy(event: Event): ze_pfnEventDestroy_t;
    fn zeEventHostSignal(event: Event): ze_pfnEventHostSignal_t;
    fn zeEventHostSynchronize(event: Event, timeout_ns: u64): ze_pfnEventHostSynchronize_t;
    fn zeEventQueryStatus(event: Event): ze_pfnEventQueryStatus_t;
    fn zeEventHostReset(event: Event): ze_pfnEventHostReset_t;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A library that every test process has, and that is no loader.
    const OTHER: &str = "libc.so.6";

    fn load_from(path: &str) -> Result<LevelZero, LoadError> {
        // SAFETY: a file that is not there, or the C library, which is loaded already and has no
        // zeInit.
        unsafe { LevelZero::load_from(Path::new(path)) }
    }

    #[test]
    fn a_loader_when_it_is_not_there_is_an_error_that_says_what_is_missing() {
        let error = load_from("/no/such/libze_loader.so.1").unwrap_err();

        let LoadError::NotLoaded { library, reason } = &error else { panic!("{error}") };
        assert_eq!(library, Path::new("/no/such/libze_loader.so.1"));
        assert!(reason.contains("No such file"), "{reason}");
        assert!(error.to_string().contains("install it (Debian: libze1)"), "{error}");
    }

    #[test]
    fn another_library_when_loaded_as_the_loader_is_refused() {
        let error = load_from(OTHER).unwrap_err();

        assert_eq!(error, LoadError::NotALoader { library: PathBuf::from(OTHER) });
    }

    #[test]
    fn a_function_when_the_library_lacks_it_is_an_error_value() {
        // SAFETY: as in `load_from`; it has none of these functions.
        let functions = unsafe { Functions::find(&open(Path::new(OTHER)).unwrap()) };
        let nothing = LevelZero { functions };

        // SAFETY: nothing is called.
        let answer = unsafe {
            nothing.zeMemPutIpcHandle(std::ptr::null_mut(), ze_ipc_mem_handle_t::default())
        };

        assert_eq!(answer, Err(CallError::Missing { function: "zeMemPutIpcHandle" }));
        assert!(nothing.missing().contains(&"zeMemPutIpcHandle"));
        assert!(nothing.missing().len() > 40);
    }

    #[test]
    fn the_system_when_it_has_no_loader_is_not_a_panic() {
        match LevelZero::load() {
            Ok(loader) => assert!(!loader.missing().contains(&"zeInit")),
            Err(error) => assert!(error.to_string().contains(LOADER), "{error}"),
        }
    }
}
