//! The functions that fill the loader's tables with the driver's functions. Must never write a
//! field that the caller's version of a table does not have: the table ends before it.

use super::{
    command_list, command_queue, context, device, driver, event, extension, memory, virtual_memory,
};
use level_zero_sys::*;
use std::ffi::c_void;

/// The versions of the specification that added fields to the tables. The loader names the version
/// of its tables.
const V1_0: ze_api_version_t = ze_api_version_t::ZE_API_VERSION_1_0;
const V1_6: ze_api_version_t = ze_api_version_t::ZE_API_VERSION_1_6;
const V1_7: ze_api_version_t = ze_api_version_t::ZE_API_VERSION_1_7;
const V1_10: ze_api_version_t = ze_api_version_t::ZE_API_VERSION_1_10;

macro_rules! tables {
    ($($export:ident($table:ty) { $($since:ident: $($field:ident).+ = $function:expr;)* })*) => {$(
        /// Fills the loader's table of this group.
        ///
        /// # Safety
        /// `table` is null, or the loader's table, as long as the specification of `version` has
        /// it.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $export(version: ze_api_version_t, table: *mut $table) -> ze_result_t {
            if table.is_null() {
                return ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_POINTER;
            }
            $(if version.0 >= $since.0 {
                // SAFETY: the caller's promise: a table of this version has the field.
                unsafe { (*table).$($field).+ = Some($function) };
            })*
            ze_result_t::ZE_RESULT_SUCCESS
        }
    )*};
}

tables! {
    zeGetGlobalProcAddrTable(ze_global_dditable_t) {
        V1_0: pfnInit = driver::init;
        V1_10: pfnInitDrivers = driver::init_drivers;
    }
    zeGetDriverProcAddrTable(ze_driver_dditable_t) {
        V1_0: pfnGet = driver::get;
        V1_0: pfnGetApiVersion = driver::api_version;
        V1_0: pfnGetProperties = driver::properties;
        V1_0: pfnGetIpcProperties = driver::ipc_properties;
        V1_0: pfnGetExtensionProperties = driver::extension_properties;
        V1_0: pfnGetExtensionFunctionAddress = extension::address;
    }
    zeGetDeviceProcAddrTable(ze_device_dditable_t) {
        V1_0: pfnGet = device::get;
        V1_0: pfnGetSubDevices = device::sub_devices;
        V1_0: pfnGetProperties = device::properties;
        V1_0: pfnGetComputeProperties = device::compute_properties;
        V1_0: pfnGetCommandQueueGroupProperties = device::queue_group_properties;
        V1_0: pfnGetMemoryProperties = device::memory_properties;
        V1_0: pfnGetMemoryAccessProperties = device::memory_access_properties;
        V1_0: pfnGetExternalMemoryProperties = device::external_memory_properties;
        V1_0: pfnPciGetPropertiesExt = device::pci_properties;
        V1_7: pfnGetRootDevice = device::root_device;
        V1_0: pfnCanAccessPeer = device::can_access_peer;
        V1_0: pfnGetStatus = device::status;
    }
    zeGetContextProcAddrTable(ze_context_dditable_t) {
        V1_0: pfnCreate = context::create;
        V1_0: pfnCreateEx = context::create_ex;
        V1_0: pfnDestroy = context::destroy_context;
        V1_0: pfnGetStatus = context::status;
    }
    zeGetMemProcAddrTable(ze_mem_dditable_t) {
        V1_0: pfnAllocDevice = memory::alloc_device;
        V1_0: pfnAllocHost = memory::alloc_host;
        V1_0: pfnAllocShared = memory::alloc_shared;
        V1_0: pfnFree = memory::free;
        V1_0: pfnFreeExt = memory::free_ext;
        V1_0: pfnGetAllocProperties = memory::alloc_properties;
        V1_0: pfnGetAddressRange = memory::address_range;
        V1_0: pfnGetIpcHandle = memory::get_ipc_handle;
        V1_6: pfnPutIpcHandle = memory::put_ipc_handle;
        V1_0: pfnOpenIpcHandle = memory::open_ipc_handle;
        V1_0: pfnCloseIpcHandle = memory::close_ipc_handle;
    }
    zeGetMemExpProcAddrTable(ze_mem_exp_dditable_t) {
        V1_6: pfnGetIpcHandleFromFileDescriptorExp = memory::ipc_handle_from_fd;
        V1_6: pfnGetFileDescriptorFromIpcHandleExp = memory::fd_from_ipc_handle;
    }
    zeGetVirtualMemProcAddrTable(ze_virtual_mem_dditable_t) {
        V1_0: pfnReserve = virtual_memory::reserve;
        V1_0: pfnFree = virtual_memory::release;
        V1_0: pfnMap = virtual_memory::map;
        V1_0: pfnUnmap = virtual_memory::unmap;
        V1_0: pfnQueryPageSize = virtual_memory::page_size;
    }
    zeGetPhysicalMemProcAddrTable(ze_physical_mem_dditable_t) {
        V1_0: pfnCreate = virtual_memory::create_physical;
        V1_0: pfnDestroy = virtual_memory::destroy_physical;
    }
    zeGetCommandQueueProcAddrTable(ze_command_queue_dditable_t) {
        V1_0: pfnCreate = command_queue::create;
        V1_0: pfnDestroy = command_queue::destroy_queue;
        V1_0: pfnExecuteCommandLists = command_queue::execute;
        V1_0: pfnSynchronize = command_queue::synchronize;
    }
    zeGetCommandListProcAddrTable(ze_command_list_dditable_t) {
        V1_0: pfnCreate = command_list::create;
        V1_0: pfnCreateImmediate = command_list::create_immediate;
        V1_0: pfnDestroy = command_list::destroy_list;
        V1_0: pfnClose = command_list::close;
        V1_0: pfnReset = command_list::reset;
        V1_0: pfnAppendMemoryCopy = command_list::append_copy;
        V1_0: pfnAppendMemoryFill = command_list::append_fill;
        V1_0: pfnAppendBarrier = command_list::append_barrier;
        V1_6: pfnHostSynchronize = command_list::host_synchronize;
    }
    zeGetFenceProcAddrTable(ze_fence_dditable_t) {
        V1_0: pfnCreate = command_queue::create_fence;
        V1_0: pfnDestroy = command_queue::destroy_fence;
        V1_0: pfnHostSynchronize = command_queue::fence_synchronize;
        V1_0: pfnQueryStatus = command_queue::fence_status;
        V1_0: pfnReset = command_queue::reset_fence;
    }
    zeGetEventPoolProcAddrTable(ze_event_pool_dditable_t) {
        V1_0: pfnCreate = event::create_pool;
        V1_0: pfnDestroy = event::destroy_pool;
        V1_0: pfnGetIpcHandle = event::get_ipc_handle;
        V1_0: pfnOpenIpcHandle = event::open_ipc_handle;
        V1_0: pfnCloseIpcHandle = event::close_ipc_handle;
        V1_6: pfnPutIpcHandle = event::put_ipc_handle;
    }
    zeGetEventProcAddrTable(ze_event_dditable_t) {
        V1_0: pfnCreate = event::create;
        V1_0: pfnDestroy = event::destroy_event;
        V1_0: pfnHostSignal = event::host_signal;
        V1_0: pfnHostSynchronize = event::host_synchronize;
        V1_0: pfnQueryStatus = event::query_status;
        V1_0: pfnHostReset = event::host_reset;
    }
}

/// Groups that this driver has no function of. Loader 1.8.12 refuses a driver that lacks one of
/// them (found by leaving out each). Together with those above, without zeGetMemExpProcAddrTable,
/// they are the 46 tables that it demands.
macro_rules! empty_tables {
    ($($export:ident)*) => {$(
        /// Leaves the loader's table of this group empty.
        #[unsafe(no_mangle)]
        pub extern "C" fn $export(_version: ze_api_version_t, _table: *mut c_void) -> ze_result_t {
            ze_result_t::ZE_RESULT_SUCCESS
        }
    )*};
}

empty_tables! {
    zeGetImageProcAddrTable zeGetKernelProcAddrTable zeGetModuleBuildLogProcAddrTable zeGetModuleProcAddrTable
    zeGetSamplerProcAddrTable
    zesGetDeviceProcAddrTable zesGetDiagnosticsProcAddrTable zesGetDriverProcAddrTable zesGetEngineProcAddrTable
    zesGetFabricPortProcAddrTable zesGetFanProcAddrTable zesGetFirmwareProcAddrTable zesGetFrequencyProcAddrTable
    zesGetLedProcAddrTable zesGetMemoryProcAddrTable zesGetPerformanceFactorProcAddrTable zesGetPowerProcAddrTable
    zesGetPsuProcAddrTable zesGetRasProcAddrTable zesGetSchedulerProcAddrTable zesGetStandbyProcAddrTable
    zesGetTemperatureProcAddrTable
    zetGetCommandListProcAddrTable zetGetContextProcAddrTable zetGetDebugProcAddrTable zetGetDeviceProcAddrTable
    zetGetKernelProcAddrTable zetGetMetricGroupProcAddrTable zetGetMetricProcAddrTable
    zetGetMetricQueryPoolProcAddrTable zetGetMetricQueryProcAddrTable zetGetMetricStreamerProcAddrTable
    zetGetModuleProcAddrTable zetGetTracerExpProcAddrTable
}
