//! The names of cuda.h (CUDA 13.0) that the layer needs. Must never hold more.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::mem::{MaybeUninit, offset_of};

/// `CUresult`.
pub type CuResult = c_uint;
/// `CUmemGenericAllocationHandle`.
pub type CuMemHandle = c_ulonglong;
/// `CUdeviceptr`: 64 bits wide.
pub type CuDevicePtr = u64;
/// `CUcontext`, which the layer compares and gives back alone.
pub type CuContext = usize;
/// `CUstream`, which the layer passes on.
pub type CuStream = usize;
/// `CUipcMemHandle`, by value.
pub type CuIpcHandle = [u8; 64];

pub const SUCCESS: CuResult = 0;
pub const INVALID_VALUE: CuResult = 1;
pub const OUT_OF_MEMORY: CuResult = 2;
pub const INVALID_CONTEXT: CuResult = 201;
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

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`,
/// `..._HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED`,
/// `..._GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`.
pub const HAS_VMM: c_int = 102;
pub const HAS_POSIX_FD: c_int = 103;
pub const HAS_RDMA_WITH_VMM: c_int = 110;

/// `CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK`, which drivers have since CUDA 12.8 whatever
/// the device can, and `CU_MEM_CREATE_USAGE_HW_DECOMPRESS`, which they take since then.
pub const DECOMPRESSION: c_int = 136;
pub const HW_DECOMPRESS: u16 = 2;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
pub const PINNED: c_int = 1;
pub const GRANULARITY_MINIMUM: c_int = 0;

/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`, `..._PROT_READWRITE`.
pub const NO_ACCESS: c_int = 0;
pub const READ_WRITE: c_int = 3;

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`: the one flag that there is, and it is needed.
pub const LAZY_PEER_ACCESS: c_uint = 1;

/// `CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID`, `..._PCI_BUS_ID`, `..._PCI_DEVICE_ID`.
pub const ATTRIBUTES_OF_PLACE: [c_int; 3] = [50, 33, 34];

/// `CUipcMemHandle` as C passes it: by value, in memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IpcHandle(pub CuIpcHandle);

/// `CUmemAllocationProp_v1`.
#[derive(Default)]
#[repr(C)]
pub struct CuMemAllocationProp {
    pub kind: c_int,
    pub requested_handle_types: c_int,
    pub location_kind: c_int,
    pub location: c_int,
    pub win32: u64,
    pub compression: u8,
    pub gpu_direct_rdma: u8,
    pub usage: u16,
    pub rest: [u8; 4],
}

/// `CUmemAccessDesc_v1`.
#[repr(C)]
pub struct CuMemAccessDesc {
    pub location_kind: c_int,
    pub location: c_int,
    pub flags: c_int,
}

/// The begin of `CUDA_MEMCPY2D`: x, y, kind and host pointer of the source, its device pointer,
/// array and pitch, and as much of the target.
#[repr(C)]
pub struct Copy2D {
    _source: [MaybeUninit<u64>; 4],
    source_device: CuDevicePtr,
    _between: [MaybeUninit<u64>; 6],
    target_device: CuDevicePtr,
}

/// The begin of `CUDA_MEMCPY3D`: as [`Copy2D`], with z and level of detail before the kind, and a
/// reserved word and the height before and behind the pitch.
#[repr(C)]
pub struct Copy3D {
    _source: [MaybeUninit<u64>; 6],
    source_device: CuDevicePtr,
    _between: [MaybeUninit<u64>; 10],
    target_device: CuDevicePtr,
}

const _: () = assert!(offset_of!(Copy2D, source_device) == 32);
const _: () = assert!(offset_of!(Copy2D, target_device) == 88);
const _: () = assert!(offset_of!(Copy3D, source_device) == 48);
const _: () = assert!(offset_of!(Copy3D, target_device) == 136);

/// The device pointers of a copy, as they stand there: of host memory and arrays they say nothing.
pub trait Ends {
    fn ends(&self) -> [CuDevicePtr; 2];
}

impl Ends for Copy2D {
    fn ends(&self) -> [CuDevicePtr; 2] {
        [self.source_device, self.target_device]
    }
}

impl Ends for Copy3D {
    fn ends(&self) -> [CuDevicePtr; 2] {
        [self.source_device, self.target_device]
    }
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
pub type Reserve =
    unsafe extern "C" fn(*mut CuDevicePtr, usize, usize, CuDevicePtr, c_ulonglong) -> CuResult;
pub type SetAccess =
    unsafe extern "C" fn(CuDevicePtr, usize, *const CuMemAccessDesc, usize) -> CuResult;
pub type Granularity =
    unsafe extern "C" fn(*mut usize, *const CuMemAllocationProp, c_int) -> CuResult;
pub type Alloc = unsafe extern "C" fn(*mut CuDevicePtr, usize) -> CuResult;
pub type Free = unsafe extern "C" fn(CuDevicePtr) -> CuResult;
/// Host pointers, too, are 64 bits wide, and passed as addresses are.
pub type Linear = unsafe extern "C" fn(CuDevicePtr, CuDevicePtr, usize) -> CuResult;
pub type LinearAsync = unsafe extern "C" fn(CuDevicePtr, CuDevicePtr, usize, CuStream) -> CuResult;
pub type CopyOf<T> = unsafe extern "C" fn(*const T) -> CuResult;
pub type CopyOfAsync<T> = unsafe extern "C" fn(*const T, CuStream) -> CuResult;
pub type AddressRange = unsafe extern "C" fn(*mut CuDevicePtr, *mut usize, CuDevicePtr) -> CuResult;
pub type IpcGet = unsafe extern "C" fn(*mut CuIpcHandle, CuDevicePtr) -> CuResult;
pub type IpcOpen = unsafe extern "C" fn(*mut CuDevicePtr, IpcHandle, c_uint) -> CuResult;
pub type GetAttribute = unsafe extern "C" fn(*mut c_void, c_int, CuDevicePtr) -> CuResult;
pub type GetAttributes =
    unsafe extern "C" fn(c_uint, *mut c_int, *mut *mut c_void, CuDevicePtr) -> CuResult;
pub type EnablePeer = unsafe extern "C" fn(CuContext, c_uint) -> CuResult;
pub type OfContext = unsafe extern "C" fn(CuContext) -> CuResult;
pub type OfDevice = unsafe extern "C" fn(c_int) -> CuResult;
pub type CurrentContext = unsafe extern "C" fn(*mut CuContext) -> CuResult;
pub type CurrentDevice = unsafe extern "C" fn(*mut c_int) -> CuResult;
pub type PrimaryState = unsafe extern "C" fn(c_int, *mut c_uint, *mut c_int) -> CuResult;
pub type PrimaryRetain = unsafe extern "C" fn(*mut CuContext, c_int) -> CuResult;
pub type GetProcAddress =
    unsafe extern "C" fn(*const libc::c_char, *mut *mut c_void, c_int, u64) -> CuResult;
pub type GetProcAddressV2 =
    unsafe extern "C" fn(*const libc::c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> CuResult;
