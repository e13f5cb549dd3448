//! The CUDA driver as cuda.h has it: constants, layouts, and a table of functions found at run time
//! in libcuda.so.1. Must never be a link dependency, call anything itself, nor give out a table
//! with a hole in it.
//!
//! Written by hand from cuda.h of CUDA 13.0 (`CUDA_VERSION` 13000); everything here but the dma-buf
//! export (11.7) is there since 11.0. Where cuda.h renames a function by a macro, the symbol is the
//! renamed one (`_v2`).

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::NonNull;

/// `CUresult`.
pub type CuResult = c_uint;
/// `CUdevice`.
pub type CuDevice = c_int;
/// `CUdeviceptr`, `CUdeviceptr_v2`: 64 bits wide.
pub type CuDevicePtr = u64;
/// `CUmemGenericAllocationHandle`.
pub type CuMemHandle = c_ulonglong;
/// `CUcontext`, `CUstream`: pointers to what only the driver knows.
pub type CuOpaque = *mut c_void;

/// `CUresult` values that mean something to this library.
pub mod result {
    use crate::backend::cuda::raw::CuResult;
    pub const SUCCESS: CuResult = 0;
    pub const INVALID_VALUE: CuResult = 1;
    pub const NOT_INITIALIZED: CuResult = 3;
    pub const DEINITIALIZED: CuResult = 4;
    pub const INVALID_DEVICE: CuResult = 101;
    pub const OPERATING_SYSTEM: CuResult = 304;
    pub const INVALID_HANDLE: CuResult = 400;
    pub const NOT_FOUND: CuResult = 500;
    pub const NOT_SUPPORTED: CuResult = 801;
}

/// `CU_DEVICE_ATTRIBUTE_PCI_BUS_ID`, `..._PCI_DEVICE_ID`, `..._PCI_DOMAIN_ID`.
pub const ATTRIBUTE_PCI_BUS: c_int = 33;
pub const ATTRIBUTE_PCI_DEVICE: c_int = 34;
pub const ATTRIBUTE_PCI_DOMAIN: c_int = 50;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
pub const ATTRIBUTE_VIRTUAL_MEMORY: c_int = 102;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED`.
pub const ATTRIBUTE_POSIX_FD: c_int = 103;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`.
pub const ATTRIBUTE_VMM_RDMA: c_int = 110;
/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
pub const ATTRIBUTE_DMA_BUF: c_int = 124;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const HANDLE_TYPE_POSIX_FD: c_int = 1;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
pub const RANGE_HANDLE_TYPE_DMA_BUF: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const LOCATION_TYPE_DEVICE: c_int = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub const ALLOCATION_TYPE_PINNED: c_int = 1;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
pub const GRANULARITY_MINIMUM: c_int = 0;
/// `CU_POINTER_ATTRIBUTE_BUFFER_ID`: an `unsigned long long`.
pub const POINTER_ATTRIBUTE_BUFFER_ID: c_int = 7;
/// `CU_MEM_ACCESS_FLAGS_PROT_READ`.
pub const ACCESS_READ: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub const ACCESS_READ_WRITE: c_int = 3;

/// `CUmemLocation_v1`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CuMemLocation {
    pub kind: c_int,
    pub id: c_int,
}

/// `CUmemAllocationProp_v1`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CuMemAllocationProp {
    pub kind: c_int,
    pub handle_types: c_int,
    pub location: CuMemLocation,
    pub win32_metadata: *mut c_void,
    pub compression: u8,
    pub gpu_direct_rdma: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// `CUmemAccessDesc_v1`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CuMemAccessDesc {
    pub location: CuMemLocation,
    pub flags: c_int,
}

// As a C compiler lays them out from cuda.h 13.0 on x86-64 and aarch64 (LP64).
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<CuMemLocation>() == 8 && align_of::<CuMemLocation>() == 4);
    assert!(offset_of!(CuMemLocation, id) == 4);
    assert!(size_of::<CuMemAllocationProp>() == 32 && align_of::<CuMemAllocationProp>() == 8);
    assert!(offset_of!(CuMemAllocationProp, handle_types) == 4);
    assert!(offset_of!(CuMemAllocationProp, location) == 8);
    assert!(offset_of!(CuMemAllocationProp, win32_metadata) == 16);
    assert!(offset_of!(CuMemAllocationProp, compression) == 24);
    assert!(offset_of!(CuMemAllocationProp, gpu_direct_rdma) == 25);
    assert!(offset_of!(CuMemAllocationProp, usage) == 26);
    assert!(offset_of!(CuMemAllocationProp, reserved) == 28);
    assert!(size_of::<CuMemAccessDesc>() == 12 && align_of::<CuMemAccessDesc>() == 4);
    assert!(offset_of!(CuMemAccessDesc, flags) == 8);
    assert!(size_of::<CuOpaque>() == 8 && size_of::<usize>() == 8);
};

/// A library opened; never closed again, since the driver leaves threads and handlers behind.
#[derive(Clone, Copy, Debug)]
pub struct Library(NonNull<c_void>);

// SAFETY: a handle of dlopen(3) belongs to the process; dlsym(3) may be called by any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// dlopen(3); the error is the loader's own words, which name the file and what is wrong with
    /// it.
    pub fn open(name: &CStr) -> Result<Self, String> {
        // SAFETY: a C string, valid for the call. The library's initialisers run, as in every user
        // of CUDA.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Library).ok_or_else(last_loader_error)
    }

    /// The driver's own function; `None` when there is no such symbol. Never that of the CUDA layer
    /// for programs that do not know fdbroker, whose exports are numbers and no fds.
    fn symbol(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: an open library and a C string, valid for the call.
        NonNull::new(unsafe { own_dlsym()(self.0.as_ptr(), name.as_ptr()) })
    }
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The version of the C library's first dlsym: it is there in all that came later, too. The CUDA
/// layer's has none.
#[cfg(target_arch = "aarch64")]
const DLSYM_VERSION: &CStr = c"GLIBC_2.17";
#[cfg(not(target_arch = "aarch64"))]
const DLSYM_VERSION: &CStr = c"GLIBC_2.2.5";

/// The C library's dlsym(3).
fn own_dlsym() -> Dlsym {
    let (name, version) = (c"dlsym".as_ptr(), DLSYM_VERSION.as_ptr());
    // SAFETY: C strings.
    let own = unsafe { libc::dlvsym(libc::RTLD_DEFAULT, name, version) };
    if own.is_null() {
        return libc::dlsym;
    }
    // SAFETY: the function of this name has this type: dlsym(3).
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(own) }
}

fn last_loader_error() -> String {
    // SAFETY: dlerror(3) takes nothing; its text is this thread's own until the next call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader does not say why".into();
    }
    // SAFETY: not null, so a C string by dlerror(3).
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

macro_rules! table {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal ( $($argument:ty),* );)*) => {
        /// The functions, each as cuda.h declares it.
        #[derive(Clone, Copy, Debug)]
        pub struct Table {
            $($(#[$doc])* pub $field: unsafe extern "C" fn($($argument),*) -> CuResult,)*
            /// `cuMemGetHandleForAddressRange(handle, ptr, bytes, type, flags)`; drivers from CUDA
            /// 11.7 on.
            pub mem_get_handle_for_address_range: Option<
                unsafe extern "C" fn(*mut c_void, CuDevicePtr, usize, c_int, c_ulonglong) -> CuResult,
            >,
            /// `cuCtxSynchronize()`.
            pub ctx_synchronize: Option<unsafe extern "C" fn() -> CuResult>,
            /// `cuEventSynchronize(event)`.
            pub event_synchronize: Option<unsafe extern "C" fn(CuOpaque) -> CuResult>,
            /// `cuDeviceGetUuid(uuid, device)`: of a MIG instance, that of its GPU.
            pub device_get_uuid: Option<unsafe extern "C" fn(*mut [u8; 16], CuDevice) -> CuResult>,
            /// `cuDeviceGetUuid_v2(uuid, device)`: of a MIG instance, its own; from CUDA 11.4 on.
            pub device_get_uuid_v2: Option<unsafe extern "C" fn(*mut [u8; 16], CuDevice) -> CuResult>,
        }

        impl Table {
            /// Finds them all; the error is the first symbol that is missing.
            pub fn load(library: Library) -> Result<Self, &'static CStr> {
                Ok(Table {
                    $($field: {
                        let symbol = library.symbol($symbol).ok_or($symbol)?;
                        // SAFETY: the function of this name has this signature in cuda.h.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> CuResult>(symbol.as_ptr()) }
                    },)*
                    mem_get_handle_for_address_range: library
                        .symbol(c"cuMemGetHandleForAddressRange")
                        // SAFETY: as above.
                        .map(|symbol| unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, CuDevicePtr, usize, c_int, c_ulonglong) -> CuResult>(symbol.as_ptr()) }),
                    ctx_synchronize: library
                        .symbol(c"cuCtxSynchronize")
                        // SAFETY: as above.
                        .map(|symbol| unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> CuResult>(symbol.as_ptr()) }),
                    event_synchronize: library
                        .symbol(c"cuEventSynchronize")
                        // SAFETY: as above.
                        .map(|symbol| unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(CuOpaque) -> CuResult>(symbol.as_ptr()) }),
                    device_get_uuid: library
                        .symbol(c"cuDeviceGetUuid")
                        // SAFETY: as above; CUuuid is 16 bytes.
                        .map(|symbol| unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut [u8; 16], CuDevice) -> CuResult>(symbol.as_ptr()) }),
                    device_get_uuid_v2: library
                        .symbol(c"cuDeviceGetUuid_v2")
                        // SAFETY: as above.
                        .map(|symbol| unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut [u8; 16], CuDevice) -> CuResult>(symbol.as_ptr()) }),
                })
            }
        }
    };
}

table! {
    /// `cuInit(flags)`.
    init = c"cuInit"(c_uint);
    /// `cuDriverGetVersion(version)`.
    driver_get_version = c"cuDriverGetVersion"(*mut c_int);
    /// `cuGetErrorName(result, text)`.
    get_error_name = c"cuGetErrorName"(CuResult, *mut *const c_char);
    /// `cuDeviceGetCount(count)`.
    device_get_count = c"cuDeviceGetCount"(*mut c_int);
    /// `cuDeviceGet(device, ordinal)`.
    device_get = c"cuDeviceGet"(*mut CuDevice, c_int);
    /// `cuDeviceGetName(name, bytes, device)`.
    device_get_name = c"cuDeviceGetName"(*mut c_char, c_int, CuDevice);
    /// `cuDeviceGetAttribute(value, attribute, device)`.
    device_get_attribute = c"cuDeviceGetAttribute"(*mut c_int, c_int, CuDevice);
    /// `cuDevicePrimaryCtxRetain(context, device)`.
    primary_ctx_retain = c"cuDevicePrimaryCtxRetain"(*mut CuOpaque, CuDevice);
    /// `cuDevicePrimaryCtxRelease(device)`.
    primary_ctx_release = c"cuDevicePrimaryCtxRelease_v2"(CuDevice);
    /// `cuCtxPushCurrent(context)`.
    ctx_push_current = c"cuCtxPushCurrent_v2"(CuOpaque);
    /// `cuCtxPopCurrent(context)`.
    ctx_pop_current = c"cuCtxPopCurrent_v2"(*mut CuOpaque);
    /// `cuStreamSynchronize(stream)`; null: the default stream.
    stream_synchronize = c"cuStreamSynchronize"(CuOpaque);
    /// `cuMemGetInfo(free, total)`.
    mem_get_info = c"cuMemGetInfo_v2"(*mut usize, *mut usize);
    /// `cuMemAlloc(pointer, bytes)`.
    mem_alloc = c"cuMemAlloc_v2"(*mut CuDevicePtr, usize);
    /// `cuMemFree(pointer)`.
    mem_free = c"cuMemFree_v2"(CuDevicePtr);
    /// `cuMemcpyHtoD(to, from, bytes)`.
    memcpy_htod = c"cuMemcpyHtoD_v2"(CuDevicePtr, *const c_void, usize);
    /// `cuMemcpyDtoH(to, from, bytes)`.
    memcpy_dtoh = c"cuMemcpyDtoH_v2"(*mut c_void, CuDevicePtr, usize);
    /// `cuMemsetD8(to, byte, bytes)`.
    memset_d8 = c"cuMemsetD8_v2"(CuDevicePtr, u8, usize);
    /// `cuMemGetAllocationGranularity(bytes, prop, option)`.
    mem_get_allocation_granularity =
        c"cuMemGetAllocationGranularity"(*mut usize, *const CuMemAllocationProp, c_int);
    /// `cuMemCreate(handle, bytes, prop, flags)`.
    mem_create =
        c"cuMemCreate"(*mut CuMemHandle, usize, *const CuMemAllocationProp, c_ulonglong);
    /// `cuMemRelease(handle)`.
    mem_release = c"cuMemRelease"(CuMemHandle);
    /// `cuMemExportToShareableHandle(fd, handle, type, flags)`.
    mem_export = c"cuMemExportToShareableHandle"(*mut c_void, CuMemHandle, c_int, c_ulonglong);
    /// `cuMemImportFromShareableHandle(handle, fd, type)`; the fd's number stands in the pointer.
    mem_import = c"cuMemImportFromShareableHandle"(*mut CuMemHandle, *mut c_void, c_int);
    /// `cuMemAddressReserve(pointer, bytes, alignment, wanted, flags)`.
    mem_address_reserve =
        c"cuMemAddressReserve"(*mut CuDevicePtr, usize, usize, CuDevicePtr, c_ulonglong);
    /// `cuMemAddressFree(pointer, bytes)`.
    mem_address_free = c"cuMemAddressFree"(CuDevicePtr, usize);
    /// `cuMemMap(pointer, bytes, offset, handle, flags)`; the offset must be 0.
    mem_map = c"cuMemMap"(CuDevicePtr, usize, usize, CuMemHandle, c_ulonglong);
    /// `cuMemUnmap(pointer, bytes)`.
    mem_unmap = c"cuMemUnmap"(CuDevicePtr, usize);
    /// `cuMemSetAccess(pointer, bytes, desc, count)`.
    mem_set_access = c"cuMemSetAccess"(CuDevicePtr, usize, *const CuMemAccessDesc, usize);
    /// `cuMemRetainAllocationHandle(handle, address)`; to be released like any other.
    mem_retain = c"cuMemRetainAllocationHandle"(*mut CuMemHandle, *mut c_void);
    /// `cuMemGetAllocationPropertiesFromHandle(prop, handle)`.
    mem_get_properties =
        c"cuMemGetAllocationPropertiesFromHandle"(*mut CuMemAllocationProp, CuMemHandle);
    /// `cuMemGetAddressRange(base, bytes, address)`; of VMM memory: the mapping that the address
    /// lies in.
    mem_get_address_range = c"cuMemGetAddressRange_v2"(*mut CuDevicePtr, *mut usize, CuDevicePtr);
    /// `cuPointerGetAttribute(value, attribute, address)`.
    pointer_get_attribute = c"cuPointerGetAttribute"(*mut c_void, c_int, CuDevicePtr);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_when_no_such_library_then_the_loader_names_it() {
        let error = Library::open(c"libcuda-is-not-there.so.1").unwrap_err();
        assert!(error.contains("libcuda-is-not-there.so.1"), "{error}");
    }

    #[test]
    fn load_when_a_library_is_no_driver_then_the_first_missing_symbol_is_named() {
        let library = Library::open(c"libc.so.6").unwrap();
        assert_eq!(Table::load(library).unwrap_err(), c"cuInit");
    }
}
