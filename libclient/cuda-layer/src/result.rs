//! The names of cuda.h (CUDA 13.0) that the layer needs. Must never hold more.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

/// `CUresult`.
pub type CuResult = c_uint;
/// `CUmemGenericAllocationHandle`.
pub type CuMemHandle = c_ulonglong;
/// `CUdeviceptr`: 64 bits wide.
pub type CuDevicePtr = u64;

pub const SUCCESS: CuResult = 0;
pub const INVALID_VALUE: CuResult = 1;
pub const OUT_OF_MEMORY: CuResult = 2;
pub const OPERATING_SYSTEM: CuResult = 304;
pub const INVALID_HANDLE: CuResult = 400;
/// `CUDA_ERROR_NOT_FOUND`: the answer for a function that no driver has.
pub const NOT_FOUND: CuResult = 500;
/// `CUDA_ERROR_UNKNOWN`: the answer for a fault in this layer.
pub const UNKNOWN: CuResult = 999;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`; in `requestedHandleTypes` a bit.
pub const HANDLE_TYPE_POSIX_FD: c_int = 1;

/// The first cudaVersion for which `cuGetProcAddress` means `cuGetProcAddress_v2`.
pub const VERSION_OF_V2: c_int = 12_000;

/// `CU_MEM_LOCATION_TYPE_DEVICE`
pub const LOCATION_DEVICE: c_int = 1;

/// `CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID`, `..._PCI_BUS_ID`, `..._PCI_DEVICE_ID`.
pub const ATTRIBUTES_OF_PLACE: [c_int; 3] = [50, 33, 34];

/// `CUmemAllocationProp_v1`; what is not read here is `rest`.
#[derive(Default)]
#[repr(C)]
pub struct CuMemAllocationProp {
    pub kind: c_int,
    pub requested_handle_types: c_int,
    pub location_kind: c_int,
    pub location: c_int,
    rest: [u64; 2],
}

pub type Create = unsafe extern "C" fn(
    *mut CuMemHandle,
    usize,
    *const CuMemAllocationProp,
    c_ulonglong,
) -> CuResult;
pub type Properties = unsafe extern "C" fn(*mut CuMemAllocationProp, CuMemHandle) -> CuResult;
pub type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> CuResult;
pub type DeviceUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> CuResult;
pub type DeviceAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> CuResult;
pub type Release = unsafe extern "C" fn(CuMemHandle) -> CuResult;
pub type Retain = unsafe extern "C" fn(*mut CuMemHandle, *mut c_void) -> CuResult;
pub type Map =
    unsafe extern "C" fn(CuDevicePtr, usize, usize, CuMemHandle, c_ulonglong) -> CuResult;
pub type Unmap = unsafe extern "C" fn(CuDevicePtr, usize) -> CuResult;
pub type Export = unsafe extern "C" fn(*mut c_void, CuMemHandle, c_int, c_ulonglong) -> CuResult;
pub type Import = unsafe extern "C" fn(*mut CuMemHandle, *mut c_void, c_int) -> CuResult;
pub type GetProcAddress =
    unsafe extern "C" fn(*const libc::c_char, *mut *mut c_void, c_int, u64) -> CuResult;
pub type GetProcAddressV2 =
    unsafe extern "C" fn(*const libc::c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> CuResult;
