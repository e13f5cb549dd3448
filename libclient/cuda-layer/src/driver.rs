//! The driver's own functions below this layer. Must never answer a function of this layer, which
//! would call itself for ever.

use crate::dynamic;
use crate::result::{
    ATTRIBUTES_OF_PLACE, AddressRange, Alloc, Copy2D, Copy3D, CopyOf, CopyOfAsync, Create,
    CuContext, CuMemAllocationProp, CuMemHandle, CuResult, CurrentContext, CurrentDevice,
    DeviceAttribute, DeviceGet, DeviceUuid, EnablePeer, Export, Free, GetAttribute, GetAttributes,
    GetProcAddress, GetProcAddressV2, Granularity, Import, IpcGet, IpcOpen, LOCATION_DEVICE,
    Linear, LinearAsync, Map, NOT_FOUND, OfContext, OfDevice, PrimaryRetain, PrimaryState,
    Properties, Release, Reserve, Retain, SUCCESS, SetAccess, Unmap,
};
use fdbroker_client::Gpu;
use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The answer for a function that no driver has.
pub const MISSING: CuResult = NOT_FOUND;

/// Where a function is kept.
pub type Place = AtomicPtr<c_void>;

/// One function of the driver, of type `F`.
pub struct Function<F> {
    name: &'static CStr,
    pub place: Place,
    kind: PhantomData<F>,
}

pub static CREATE: Function<Create> = Function::new(c"cuMemCreate");
pub static RELEASE: Function<Release> = Function::new(c"cuMemRelease");
pub static RETAIN: Function<Retain> = Function::new(c"cuMemRetainAllocationHandle");
pub static MAP: Function<Map> = Function::new(c"cuMemMap");
pub static UNMAP: Function<Unmap> = Function::new(c"cuMemUnmap");
pub static EXPORT: Function<Export> = Function::new(c"cuMemExportToShareableHandle");
pub static IMPORT: Function<Import> = Function::new(c"cuMemImportFromShareableHandle");
pub static RESERVE: Function<Reserve> = Function::new(c"cuMemAddressReserve");
pub static UNRESERVE: Function<Unmap> = Function::new(c"cuMemAddressFree");
pub static SET_ACCESS: Function<SetAccess> = Function::new(c"cuMemSetAccess");
pub static GRANULARITY: Function<Granularity> = Function::new(c"cuMemGetAllocationGranularity");
pub static ALLOC: Function<Alloc> = Function::new(c"cuMemAlloc_v2");
pub static FREE: Function<Free> = Function::new(c"cuMemFree_v2");
pub static ADDRESS_RANGE: Function<AddressRange> = Function::new(c"cuMemGetAddressRange_v2");
/// Each copy, in the legacy default stream and in that of the thread.
pub static COPIES: [Function<Linear>; 8] = [
    Function::new(c"cuMemcpy"),
    Function::new(c"cuMemcpy_ptds"),
    Function::new(c"cuMemcpyHtoD_v2"),
    Function::new(c"cuMemcpyHtoD_v2_ptds"),
    Function::new(c"cuMemcpyDtoH_v2"),
    Function::new(c"cuMemcpyDtoH_v2_ptds"),
    Function::new(c"cuMemcpyDtoD_v2"),
    Function::new(c"cuMemcpyDtoD_v2_ptds"),
];
pub static COPIES_ASYNC: [Function<LinearAsync>; 8] = [
    Function::new(c"cuMemcpyAsync"),
    Function::new(c"cuMemcpyAsync_ptsz"),
    Function::new(c"cuMemcpyHtoDAsync_v2"),
    Function::new(c"cuMemcpyHtoDAsync_v2_ptsz"),
    Function::new(c"cuMemcpyDtoHAsync_v2"),
    Function::new(c"cuMemcpyDtoHAsync_v2_ptsz"),
    Function::new(c"cuMemcpyDtoDAsync_v2"),
    Function::new(c"cuMemcpyDtoDAsync_v2_ptsz"),
];
pub static COPIES_2D: [Function<CopyOf<Copy2D>>; 4] = [
    Function::new(c"cuMemcpy2D_v2"),
    Function::new(c"cuMemcpy2D_v2_ptds"),
    Function::new(c"cuMemcpy2DUnaligned_v2"),
    Function::new(c"cuMemcpy2DUnaligned_v2_ptds"),
];
pub static COPIES_2D_ASYNC: [Function<CopyOfAsync<Copy2D>>; 2] =
    [Function::new(c"cuMemcpy2DAsync_v2"), Function::new(c"cuMemcpy2DAsync_v2_ptsz")];
pub static COPIES_3D: [Function<CopyOf<Copy3D>>; 2] =
    [Function::new(c"cuMemcpy3D_v2"), Function::new(c"cuMemcpy3D_v2_ptds")];
pub static COPIES_3D_ASYNC: [Function<CopyOfAsync<Copy3D>>; 2] =
    [Function::new(c"cuMemcpy3DAsync_v2"), Function::new(c"cuMemcpy3DAsync_v2_ptsz")];
pub static IPC_GET: Function<IpcGet> = Function::new(c"cuIpcGetMemHandle");
pub static IPC_OPEN: Function<IpcOpen> = Function::new(c"cuIpcOpenMemHandle");
pub static IPC_OPEN_V2: Function<IpcOpen> = Function::new(c"cuIpcOpenMemHandle_v2");
pub static IPC_CLOSE: Function<Free> = Function::new(c"cuIpcCloseMemHandle");
pub static GET_ATTRIBUTE: Function<GetAttribute> = Function::new(c"cuPointerGetAttribute");
pub static GET_ATTRIBUTES: Function<GetAttributes> = Function::new(c"cuPointerGetAttributes");
pub static ENABLE_PEER: Function<EnablePeer> = Function::new(c"cuCtxEnablePeerAccess");
pub static DISABLE_PEER: Function<OfContext> = Function::new(c"cuCtxDisablePeerAccess");
pub static CTX_DESTROY: Function<OfContext> = Function::new(c"cuCtxDestroy");
pub static CTX_DESTROY_V2: Function<OfContext> = Function::new(c"cuCtxDestroy_v2");
pub static PRIMARY_RELEASE: Function<OfDevice> = Function::new(c"cuDevicePrimaryCtxRelease");
pub static PRIMARY_RELEASE_V2: Function<OfDevice> = Function::new(c"cuDevicePrimaryCtxRelease_v2");
pub static PRIMARY_RESET: Function<OfDevice> = Function::new(c"cuDevicePrimaryCtxReset");
pub static PRIMARY_RESET_V2: Function<OfDevice> = Function::new(c"cuDevicePrimaryCtxReset_v2");
pub static PRIMARY_RETAIN: Function<PrimaryRetain> = Function::new(c"cuDevicePrimaryCtxRetain");
pub static PRIMARY_STATE: Function<PrimaryState> = Function::new(c"cuDevicePrimaryCtxGetState");
static CURRENT_CONTEXT: Function<CurrentContext> = Function::new(c"cuCtxGetCurrent");
static CURRENT_DEVICE: Function<CurrentDevice> = Function::new(c"cuCtxGetDevice");
static PROPERTIES: Function<Properties> = Function::new(c"cuMemGetAllocationPropertiesFromHandle");
static DEVICE_GET: Function<DeviceGet> = Function::new(c"cuDeviceGet");
static DEVICE_UUID: Function<DeviceUuid> = Function::new(c"cuDeviceGetUuid");
static DEVICE_UUID_V2: Function<DeviceUuid> = Function::new(c"cuDeviceGetUuid_v2");
static DEVICE_ATTRIBUTE: Function<DeviceAttribute> = Function::new(c"cuDeviceGetAttribute");
pub static GET_PROC_ADDRESS: Function<GetProcAddress> = Function::new(c"cuGetProcAddress");
pub static GET_PROC_ADDRESS_V2: Function<GetProcAddressV2> = Function::new(c"cuGetProcAddress_v2");

/// The names of the devices, by their numbers, which stay in a process.
static GPUS: [OnceLock<Gpu>; NAMED_GPUS] = [const { OnceLock::new() }; NAMED_GPUS];

/// More than a node has. Further ones are asked for each time.
const NAMED_GPUS: usize = 64;

impl<F: Copy> Function<F> {
    const fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Function { name, place: AtomicPtr::new(null_mut()), kind: PhantomData }
    }

    /// What the dynamic linker knows it by, such as `cuMemAlloc_v2`.
    pub const fn name(&self) -> &'static CStr {
        self.name
    }

    /// The function; `None`: no driver is loaded, or it has none of this name.
    pub fn get(&self) -> Option<F> {
        let function = known(&self.place, self.name);
        // SAFETY: `F` is a function's type (the statics above); the size is checked. The function
        // was found under its name in the driver, and cuda.h gives it this type.
        (!function.is_null()).then(|| unsafe { std::mem::transmute_copy(&function) })
    }
}

/// The function in this place, looked for the first time; null: none.
pub fn known(place: &Place, name: &CStr) -> *mut c_void {
    let function = place.load(Ordering::Acquire);
    if !function.is_null() {
        return function;
    }
    let found = dynamic::below(name);
    if !found.is_null() {
        // What the program has found meanwhile goes first.
        let _ = place.compare_exchange(null_mut(), found, Ordering::AcqRel, Ordering::Relaxed);
    }
    found
}

/// Has the driver release a handle that nobody else can name.
pub fn release(handle: CuMemHandle) {
    if let Some(release) = RELEASE.get() {
        // SAFETY: a reference that the layer has kept. A driver that has ended (exit) has freed the
        // memory already.
        unsafe { release(handle) };
    }
}

/// Which GPU memory is on; [`Gpu::NONE`]: of none, or the driver does not say.
pub fn gpu_of(handle: CuMemHandle) -> Gpu {
    device_of(handle).map_or(Gpu::NONE, |device| {
        // A program exports hundreds in a row, and the driver takes microseconds for a name.
        let known = usize::try_from(device).ok().and_then(|place| GPUS.get(place));
        if let Some(gpu) = known.and_then(OnceLock::get) {
            return *gpu;
        }
        let gpu = gpu_named(device);
        if let Some(place) = known.filter(|_| gpu != Gpu::NONE) {
            // Another thread may have been faster, with the same.
            let _ = place.set(gpu);
        }
        gpu
    })
}

fn gpu_named(device: c_int) -> Gpu {
    let uuids = [&DEVICE_UUID, &DEVICE_UUID_V2].map(|function| {
        let mut uuid = [0; 16];
        // SAFETY: writes a CUuuid, 16 bytes, through the pointer.
        let answer = unsafe { function.get()?(&raw mut uuid, device) };
        (answer == SUCCESS).then_some(uuid)
    });
    let of_device = |attribute| u32::try_from(attribute_of(device, attribute)?).ok();
    fdbroker_client::layer::cuda_gpu_named(uuids, ATTRIBUTES_OF_PLACE.map(of_device))
}

/// What a device has of an attribute. `None`: the driver does not say.
pub fn attribute_of(device: c_int, attribute: c_int) -> Option<c_int> {
    let mut value = 0;
    // SAFETY: writes one int through the pointer.
    let answer = unsafe { DEVICE_ATTRIBUTE.get()?(&raw mut value, attribute, device) };
    (answer == SUCCESS).then_some(value)
}

/// The device that memory is on. `None`: it is on none that this process sees.
pub fn device_of(handle: CuMemHandle) -> Option<c_int> {
    let (mut prop, mut device) = (CuMemAllocationProp::default(), 0);
    // SAFETY: a handle that the caller has pinned; fills in the structure, which is whole.
    let answer = unsafe { PROPERTIES.get()?(&raw mut prop, handle) };
    if answer != SUCCESS || prop.location_kind != LOCATION_DEVICE {
        return None;
    }
    // SAFETY: writes one CUdevice through the pointer.
    let answer = unsafe { DEVICE_GET.get()?(&raw mut device, prop.location) };
    (answer == SUCCESS).then_some(device)
}

/// This thread's context and its device. `None`: it has none.
pub fn current() -> Option<(CuContext, c_int)> {
    let (mut context, mut device) = (0, 0);
    // SAFETY: each writes one value of its type through the pointer.
    let answers = unsafe {
        (CURRENT_CONTEXT.get()?(&raw mut context), CURRENT_DEVICE.get()?(&raw mut device))
    };
    (answers == (SUCCESS, SUCCESS) && context != 0).then_some((context, device))
}
