//! The loader's tables of functions, which the loader shows to a layer: the layer puts its own
//! functions between. Must never touch a field that the loader's version of a table does not have:
//! the table ends before it.

use crate::below::{self, Below};
use crate::{broker, consume, entry, pools, produce};
use level_zero_sys::*;
use std::cell::Cell;
use std::ffi::{CStr, c_void};

/// The versions of the specification that added fields to the tables.
const V1_1: u32 = ze_api_version_t::ZE_API_VERSION_1_1.0;
const V1_2: u32 = ze_api_version_t::ZE_API_VERSION_1_2.0;
const V1_3: u32 = ze_api_version_t::ZE_API_VERSION_1_3.0;
const V1_6: u32 = ze_api_version_t::ZE_API_VERSION_1_6.0;

/// Puts `ours` into the table, and keeps the function that stood there as the one below.
macro_rules! between {
    ($table:ident.$field:ident, $below:expr, $ours:expr) => {
        // Only this field: an older table ends here.
        let place = &raw mut (*$table).$field;
        if let Some(function) = *place
            && function as usize != $ours as *const () as usize
        {
            $below.set(Some(function));
            *place = Some($ours);
        }
    };
}

/// # Safety
/// A table of `version`, and nobody else uses it meanwhile.
unsafe fn hook_memory(version: u32, table: *mut c_void) {
    below::hold_loader();
    let table = table.cast::<ze_mem_dditable_t>();
    // SAFETY: the caller's promise; each field is asked for after its version.
    unsafe {
        between!(table.pfnAllocDevice, below::ALLOC_DEVICE, entry::alloc_device);
        between!(table.pfnAllocHost, below::ALLOC_HOST, entry::alloc_host);
        between!(table.pfnAllocShared, below::ALLOC_SHARED, entry::alloc_shared);
        between!(table.pfnGetAllocProperties, below::ALLOC_PROPERTIES, produce::properties);
        keep(&below::ADDRESS_RANGE, (*table).pfnGetAddressRange);
        between!(table.pfnFree, below::FREE, entry::free);
        between!(table.pfnGetIpcHandle, below::GET, produce::get);
        between!(table.pfnOpenIpcHandle, below::OPEN, consume::open);
        between!(table.pfnCloseIpcHandle, below::CLOSE, entry::close);
        if version >= V1_3 {
            between!(table.pfnFreeExt, below::FREE_EXT, entry::free_ext);
        }
        if version >= V1_6 {
            between!(table.pfnPutIpcHandle, below::PUT, produce::put);
        }
    }
}

/// Keeps a function that the layer calls but does not replace.
fn keep<F: Copy>(below: &Below<Option<F>>, function: Option<F>) {
    if function.is_some() {
        below.set(function);
    }
}

/// # Safety
/// As [`hook_memory`].
unsafe fn hook_device(version: u32, table: *mut c_void) {
    let table = table.cast::<ze_device_dditable_t>();
    // SAFETY: as in `hook_memory`.
    unsafe {
        keep(&below::DEVICE_PROPERTIES, (*table).pfnGetProperties);
        if version >= V1_2 {
            keep(&below::DEVICE_PLACE, (*table).pfnPciGetPropertiesExt);
        }
    }
}

/// # Safety
/// As [`hook_memory`].
unsafe fn hook_memory_exp(version: u32, table: *mut c_void) {
    let table = table.cast::<ze_mem_exp_dditable_t>();
    if version >= V1_6 {
        // SAFETY: the caller's promise: a table of this version has the field.
        unsafe {
            between!(
                table.pfnGetIpcHandleFromFileDescriptorExp,
                below::HANDLE_OF_FD,
                produce::handle_of_fd
            );
            between!(
                table.pfnGetFileDescriptorFromIpcHandleExp,
                below::FD_OF_HANDLE,
                produce::fd_of_handle
            );
        }
    }
}

/// # Safety
/// As [`hook_memory`].
unsafe fn hook_context(_version: u32, table: *mut c_void) {
    let table = table.cast::<ze_context_dditable_t>();
    // SAFETY: the caller's promise: every version has the field.
    unsafe {
        between!(table.pfnDestroy, below::CONTEXT_DESTROY, entry::context_destroy);
    }
}

/// # Safety
/// As [`hook_memory`].
unsafe fn hook_virtual_memory(_version: u32, table: *mut c_void) {
    let table = table.cast::<ze_virtual_mem_dditable_t>();
    // SAFETY: the caller's promise: every version has the fields.
    unsafe {
        between!(table.pfnMap, below::MAP, entry::map);
        between!(table.pfnUnmap, below::UNMAP, entry::unmap);
        between!(table.pfnFree, below::VIRTUAL_FREE, entry::virtual_free);
    }
}

/// # Safety
/// As [`hook_memory`].
unsafe fn hook_physical_memory(_version: u32, table: *mut c_void) {
    let table = table.cast::<ze_physical_mem_dditable_t>();
    // SAFETY: the caller's promise: every version has the fields.
    unsafe {
        between!(table.pfnCreate, below::PHYSICAL_CREATE, entry::physical_create);
        between!(table.pfnDestroy, below::PHYSICAL_DESTROY, entry::physical_destroy);
    }
}

/// # Safety
/// As [`hook_memory`].
unsafe fn hook_driver(version: u32, table: *mut c_void) {
    let table = table.cast::<ze_driver_dditable_t>();
    if version >= V1_1 {
        // SAFETY: the caller's promise: a table of this version has the field.
        unsafe {
            between!(table.pfnGetExtensionFunctionAddress, below::EXTENSION, entry::extension);
        }
    }
}

/// # Safety
/// As [`hook_memory`].
unsafe fn hook_event_pool(version: u32, table: *mut c_void) {
    let table = table.cast::<ze_event_pool_dditable_t>();
    // SAFETY: the caller's promise; each field is asked for after its version.
    unsafe {
        between!(table.pfnDestroy, below::POOL_DESTROY, pools::destroy);
        between!(table.pfnGetIpcHandle, below::POOL_GET, pools::get);
        between!(table.pfnOpenIpcHandle, below::POOL_OPEN, pools::open);
        between!(table.pfnCloseIpcHandle, below::POOL_CLOSE, pools::close);
        if version >= V1_6 {
            between!(table.pfnPutIpcHandle, below::POOL_PUT, pools::put);
        }
    }
}

unsafe fn hook_nothing(_version: u32, _table: *mut c_void) {}

type Hook = unsafe fn(u32, *mut c_void);
type TableFunction = unsafe extern "C" fn(ze_api_version_t, *mut c_void) -> ze_result_t;

/// The body of every exported table function. A layer gets a table that is filled already. A
/// preloaded library is found in place of the loader's own function of that name, since the
/// loader's inner calls go through the dynamic linker: the loader's function then has to fill the
/// table first, and may call this one as a layer meanwhile. What stands in the table afterwards
/// may be another layer's that calls this one, such as the loader's tracing layer: it is left
/// alone.
///
/// # Safety
/// The loader's: `table` is null or a table of `version`.
unsafe fn serve(
    name: &CStr,
    hook: Hook,
    version: ze_api_version_t,
    table: *mut c_void,
) -> ze_result_t {
    if table.is_null() {
        return ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_POINTER;
    }
    broker::note_driver();
    // SAFETY: the caller's promise: a table is an array of pointers to functions.
    let is_shown = unsafe { is_on_stack(table) && !table.cast::<*mut c_void>().read().is_null() };
    let is_of_loader = below::is_preloaded() && FILLING.get() == Filling::No && !is_shown;
    if is_of_loader {
        let next = below::next(name);
        if next.is_null() {
            return ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
        }
        // SAFETY: what has this name is of this type: the loader's own.
        let fill = unsafe { std::mem::transmute::<*mut c_void, TableFunction>(next) };
        FILLING.set(Filling::Loader);
        // SAFETY: the caller's promise, handed on.
        let filled = unsafe { fill(version, table) };
        let is_hooked = FILLING.replace(Filling::No) == Filling::Hooked;
        if filled != ze_result_t::ZE_RESULT_SUCCESS || is_hooked {
            return filled;
        }
    } else {
        FILLING.set(FILLING.get().hooked());
        below::note_layer();
    }
    // SAFETY: the caller's promise; a table that is there is of `version`.
    unsafe { hook(version.0, table) };
    ze_result_t::ZE_RESULT_SUCCESS
}

/// Whether a table lies on this thread's stack. The loader's own tables do not. When it starts a
/// driver, loader 1.8 shows each layer a table there which it has filled for that alone; filled
/// once more, its tracing layer would stand in it twice, and call itself.
fn is_on_stack(table: *mut c_void) -> bool {
    /// More than is between a caller's frame and this one.
    const NEAR: usize = 1 << 16;
    let here = 0_u8;
    table.addr().wrapping_sub((&raw const here).addr()) < NEAR
}

/// How far a table of this thread is that the loader fills.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filling {
    No,
    /// The loader is at it.
    Loader,
    /// It has shown the table to this layer.
    Hooked,
}

impl Filling {
    fn hooked(self) -> Self {
        if self == Filling::No { self } else { Filling::Hooked }
    }
}

thread_local!(static FILLING: Cell<Filling> = const { Cell::new(Filling::No) });

/// A loader such as 1.8.12 refuses a layer that lacks one of its tables, so all of them are here.
macro_rules! tables {
    ($($name:ident: $hook:ident;)*) => {$(
        /// # Safety
        /// The loader's: `table` is null or a table of `version`, which nobody else uses meanwhile.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(version: ze_api_version_t, table: *mut c_void) -> ze_result_t {
            const NAME: &CStr = below::name(concat!(stringify!($name), "\0"));
            // SAFETY: the loader's promise.
            unsafe { serve(NAME, $hook, version, table) }
        }
    )*};
}

tables! {
    zeGetContextProcAddrTable: hook_context;
    zeGetMemProcAddrTable: hook_memory;
    zeGetMemExpProcAddrTable: hook_memory_exp;
    zeGetCommandListExpProcAddrTable: hook_nothing;
    zeGetCommandListProcAddrTable: hook_nothing;
    zeGetCommandQueueProcAddrTable: hook_nothing;
    zeGetDeviceExpProcAddrTable: hook_nothing;
    zeGetDeviceProcAddrTable: hook_device;
    zeGetDriverExpProcAddrTable: hook_nothing;
    zeGetDriverProcAddrTable: hook_driver;
    zeGetEventExpProcAddrTable: hook_nothing;
    zeGetEventPoolProcAddrTable: hook_event_pool;
    zeGetEventProcAddrTable: hook_nothing;
    zeGetFabricEdgeExpProcAddrTable: hook_nothing;
    zeGetFabricVertexExpProcAddrTable: hook_nothing;
    zeGetFenceProcAddrTable: hook_nothing;
    zeGetGlobalProcAddrTable: hook_nothing;
    zeGetImageExpProcAddrTable: hook_nothing;
    zeGetImageProcAddrTable: hook_nothing;
    zeGetKernelExpProcAddrTable: hook_nothing;
    zeGetKernelProcAddrTable: hook_nothing;
    zeGetModuleBuildLogProcAddrTable: hook_nothing;
    zeGetModuleProcAddrTable: hook_nothing;
    zeGetPhysicalMemProcAddrTable: hook_physical_memory;
    zeGetRTASBuilderExpProcAddrTable: hook_nothing;
    zeGetRTASBuilderProcAddrTable: hook_nothing;
    zeGetRTASParallelOperationExpProcAddrTable: hook_nothing;
    zeGetRTASParallelOperationProcAddrTable: hook_nothing;
    zeGetSamplerProcAddrTable: hook_nothing;
    zeGetVirtualMemProcAddrTable: hook_virtual_memory;
    zerGetGlobalProcAddrTable: hook_nothing;
    zesGetDeviceExpProcAddrTable: hook_nothing;
    zesGetDeviceProcAddrTable: hook_nothing;
    zesGetDiagnosticsProcAddrTable: hook_nothing;
    zesGetDriverExpProcAddrTable: hook_nothing;
    zesGetDriverProcAddrTable: hook_nothing;
    zesGetEngineProcAddrTable: hook_nothing;
    zesGetFabricPortProcAddrTable: hook_nothing;
    zesGetFanProcAddrTable: hook_nothing;
    zesGetFirmwareExpProcAddrTable: hook_nothing;
    zesGetFirmwareProcAddrTable: hook_nothing;
    zesGetFrequencyProcAddrTable: hook_nothing;
    zesGetGlobalProcAddrTable: hook_nothing;
    zesGetLedProcAddrTable: hook_nothing;
    zesGetMemoryProcAddrTable: hook_nothing;
    zesGetOverclockProcAddrTable: hook_nothing;
    zesGetPerformanceFactorProcAddrTable: hook_nothing;
    zesGetPowerProcAddrTable: hook_nothing;
    zesGetPsuProcAddrTable: hook_nothing;
    zesGetRasExpProcAddrTable: hook_nothing;
    zesGetRasProcAddrTable: hook_nothing;
    zesGetSchedulerProcAddrTable: hook_nothing;
    zesGetStandbyProcAddrTable: hook_nothing;
    zesGetTemperatureProcAddrTable: hook_nothing;
    zesGetVFManagementExpProcAddrTable: hook_nothing;
    zetGetCommandListExpProcAddrTable: hook_nothing;
    zetGetCommandListProcAddrTable: hook_nothing;
    zetGetContextProcAddrTable: hook_nothing;
    zetGetDebugProcAddrTable: hook_nothing;
    zetGetDeviceExpProcAddrTable: hook_nothing;
    zetGetDeviceProcAddrTable: hook_nothing;
    zetGetKernelProcAddrTable: hook_nothing;
    zetGetMetricDecoderExpProcAddrTable: hook_nothing;
    zetGetMetricExpProcAddrTable: hook_nothing;
    zetGetMetricGroupExpProcAddrTable: hook_nothing;
    zetGetMetricGroupProcAddrTable: hook_nothing;
    zetGetMetricProcAddrTable: hook_nothing;
    zetGetMetricProgrammableExpProcAddrTable: hook_nothing;
    zetGetMetricQueryPoolProcAddrTable: hook_nothing;
    zetGetMetricQueryProcAddrTable: hook_nothing;
    zetGetMetricStreamerProcAddrTable: hook_nothing;
    zetGetMetricTracerExpProcAddrTable: hook_nothing;
    zetGetModuleProcAddrTable: hook_nothing;
    zetGetTracerExpProcAddrTable: hook_nothing;
}
