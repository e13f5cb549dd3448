//! The device group: devices with a copy engine only. Must never claim an ability that the driver
//! lacks.

use super::driver::{list_of, list_of_one};
use crate::answer::answer;
use crate::devices::{DEVICE_ID, VENDOR, device, shown};
use crate::limits::{DEVICE_BYTES, LARGEST_PATTERN_BYTES};
use crate::opaque::{give, look_mut};
use level_zero_sys::*;
use std::ffi::{CStr, c_char};

const NAME: &CStr = c"fdbroker test device (no GPU)";

pub(super) unsafe extern "C" fn get(
    _driver: ze_driver_handle_t,
    count: *mut u32,
    devices: *mut ze_device_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise about both pointers.
    answer("zeDeviceGet", shown().and_then(|shown| unsafe { list_of(count, devices, shown) }))
}

pub(super) unsafe extern "C" fn sub_devices(
    of: ze_device_handle_t,
    count: *mut u32,
    devices: *mut ze_device_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    let done = unsafe { device(of).and_then(|of| list_of(count, devices, of.subs())) };
    answer("zeDeviceGetSubDevices", done)
}

pub(super) unsafe extern "C" fn root_device(
    of: ze_device_handle_t,
    root: *mut ze_device_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    answer("zeDeviceGetRootDevice", unsafe { device(of).and_then(|of| give(root, of.root())) })
}

pub(super) unsafe extern "C" fn properties(
    of: ze_device_handle_t,
    properties: *mut ze_device_properties_t,
) -> ze_result_t {
    let is_sub = ze_device_property_flag_t::ZE_DEVICE_PROPERTY_FLAG_SUBDEVICE.0;
    // SAFETY: the specification's promise.
    let filled = unsafe { device(of).and_then(|of| Ok((of, look_mut(properties)?))) };
    let filled = filled.map(|(of, properties)| {
        properties.type_ = ze_device_type_t::ZE_DEVICE_TYPE_GPU;
        properties.vendorId = VENDOR.into();
        properties.deviceId = DEVICE_ID.into();
        properties.flags = if of.says_it_is_sub() { is_sub } else { 0 };
        properties.subdeviceId = of.sub_device_id();
        properties.maxMemAllocSize = DEVICE_BYTES as u64;
        properties.timerResolution = 1;
        properties.uuid.id = of.uuid();
        copy_name(NAME, &mut properties.name);
    });
    answer("zeDeviceGetProperties", filled)
}

/// Copies `name` with its NUL to the front of the array, which has room for it.
fn copy_name(name: &CStr, into: &mut [c_char]) {
    for (to, from) in into.iter_mut().zip(name.to_bytes_with_nul()) {
        *to = c_char::from_ne_bytes([*from]);
    }
}

pub(super) unsafe extern "C" fn compute_properties(
    _device: ze_device_handle_t,
    properties: *mut ze_device_compute_properties_t,
) -> ze_result_t {
    // SAFETY: the specification's promise. No kernels: all sizes stay the caller's zeros.
    answer("zeDeviceGetComputeProperties", unsafe { look_mut(properties) }.map(drop))
}

pub(super) unsafe extern "C" fn queue_group_properties(
    _device: ze_device_handle_t,
    count: *mut u32,
    properties: *mut ze_command_queue_group_properties_t,
) -> ze_result_t {
    let copies = ze_command_queue_group_property_flag_t::ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY;
    let group = ze_command_queue_group_properties_t {
        flags: copies.0,
        maxMemoryFillPatternSize: LARGEST_PATTERN_BYTES,
        numQueues: 1,
        ..Structure::blank()
    };
    // SAFETY: the specification's promise.
    answer("zeDeviceGetCommandQueueGroupProperties", unsafe {
        list_of_one(count, properties, group)
    })
}

pub(super) unsafe extern "C" fn memory_properties(
    _device: ze_device_handle_t,
    count: *mut u32,
    properties: *mut ze_device_memory_properties_t,
) -> ze_result_t {
    let mut memory =
        ze_device_memory_properties_t { totalSize: DEVICE_BYTES as u64, ..Structure::blank() };
    copy_name(c"memfd", &mut memory.name);
    // SAFETY: the specification's promise.
    answer("zeDeviceGetMemoryProperties", unsafe { list_of_one(count, properties, memory) })
}

pub(super) unsafe extern "C" fn memory_access_properties(
    _device: ze_device_handle_t,
    properties: *mut ze_device_memory_access_properties_t,
) -> ze_result_t {
    let read_write = ze_memory_access_cap_flag_t::ZE_MEMORY_ACCESS_CAP_FLAG_RW.0;
    // SAFETY: the specification's promise.
    let filled = unsafe { look_mut(properties) }.map(|properties| {
        properties.hostAllocCapabilities = read_write;
        properties.deviceAllocCapabilities = read_write;
    });
    answer("zeDeviceGetMemoryAccessProperties", filled)
}

pub(super) unsafe extern "C" fn external_memory_properties(
    _device: ze_device_handle_t,
    properties: *mut ze_device_external_memory_properties_t,
) -> ze_result_t {
    let dma_buf = ze_external_memory_type_flag_t::ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF.0;
    // SAFETY: the specification's promise.
    let filled = unsafe { look_mut(properties) }.map(|properties| {
        properties.memoryAllocationImportTypes = dma_buf;
        properties.memoryAllocationExportTypes = dma_buf;
        properties.imageImportTypes = 0;
        properties.imageExportTypes = 0;
    });
    answer("zeDeviceGetExternalMemoryProperties", filled)
}

pub(super) unsafe extern "C" fn pci_properties(
    of: ze_device_handle_t,
    properties: *mut ze_pci_ext_properties_t,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    let filled = unsafe { device(of).and_then(|of| Ok((of, look_mut(properties)?))) };
    let filled = filled.map(|(of, properties)| {
        properties.address =
            ze_pci_address_ext_t { domain: 0, bus: of.bus(), device: 0, function: 0 };
    });
    answer("zeDevicePciGetPropertiesExt", filled)
}

pub(super) unsafe extern "C" fn can_access_peer(
    of: ze_device_handle_t,
    peer: ze_device_handle_t,
    can: *mut ze_bool_t,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    let done =
        unsafe { device(of).and_then(|of| give(can, ze_bool_t::from(of.reaches(device(peer)?)))) };
    answer("zeDeviceCanAccessPeer", done)
}

pub(super) unsafe extern "C" fn status(_device: ze_device_handle_t) -> ze_result_t {
    ze_result_t::ZE_RESULT_SUCCESS
}
