//! The functions of the driver that the layer stands before: one row each, for all ways by which a
//! program gets them (a linked symbol, dlsym, cuGetProcAddress). Thin: they stop panics and leave
//! the work to other modules. Must never let a panic reach the program, nor give a function that
//! the driver does not have.

use crate::driver::{self, MISSING, Place};
use crate::result::{
    Copy2D, Copy3D, CuContext, CuDevicePtr, CuIpcHandle, CuMemAllocationProp, CuMemHandle,
    CuResult, CuStream, IpcHandle, SUCCESS, UNKNOWN, VERSION_OF_V2,
};
use crate::{asked, broker, consume, contexts, copies, dynamic, ipc, looks, malloc, produce};
use fdbroker_virtual_fds::inside;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// The function by which each program begins to use the driver.
pub const INIT: &CStr = c"cuInit";

/// What cuda.h adds to the name of a form whose default stream is the thread's own, and the flag by
/// which cuGetProcAddress gives it for the plain name.
const PER_THREAD: [&[u8]; 2] = [b"_ptds", b"_ptsz"];
const PER_THREAD_FLAG: u64 = 2;

pub struct Named {
    /// The symbol.
    name: &'static CStr,
    /// The first cudaVersion for which its plain name means this form.
    since: c_int,
    ours: *const (),
    place: &'static Place,
    /// It is the layer's only where the user wants memory of cuMemAlloc to be.
    of_malloc: bool,
}

// SAFETY: `ours` is the address of code.
unsafe impl Sync for Named {}

/// Runs `body`; a fault in this layer becomes an answer, its words are on stderr already.
fn guard(body: impl FnOnce() -> CuResult) -> CuResult {
    // What a panic interrupts is consistent: the lock is let go between consistent states.
    let caught = inside(|| catch_unwind(AssertUnwindSafe(body)));
    caught.unwrap_or_else(|payload| {
        // The payload's own drop may panic too.
        std::mem::forget(payload);
        UNKNOWN
    })
}

/// The functions that the table leads to.
struct Ours;

/// The table, with a row for each symbol: the first cudaVersion of this form, whether it is for
/// memory of cuMemAlloc alone, where the driver's own is kept, what carries it out, and the
/// arguments of cuda.h. What carries out several rows is told where the driver's own is. The symbol
/// is for programs that link the driver. The table leads to another function, because the dynamic
/// linker may find the driver's for the symbol.
macro_rules! functions {
    ($($name:ident: $since:tt $of_malloc:literal, $place:ident $([$at:literal])?, $body:path,
        ($($argument:ident: $kind:ty),* $(,)?);)*) => {
        impl Ours {
            $(
                /// # Safety
                /// That of the driver's function of this name.
                #[allow(non_snake_case, reason = "the names of cuda.h")]
                unsafe extern "C" fn $name($($argument: $kind),*) -> CuResult {
                    broker::note_driver();
                    // SAFETY: the caller's promise.
                    guard(|| unsafe { $body($(&driver::$place[$at],)? $($argument),*) })
                }
            )*
        }
        $(
            /// # Safety
            /// That of the driver's function of this name.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the names of cuda.h")]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> CuResult {
                // SAFETY: the caller's promise.
                unsafe { Ours::$name($($argument),*) }
            }
        )*
        static ALL: &[Named] = &[$(Named {
            name: driver::$place $([$at])?.name(),
            since: $since,
            ours: Ours::$name as *const (),
            place: &driver::$place $([$at])?.place,
            of_malloc: $of_malloc,
        }),*];
        #[cfg(test)]
        const SYMBOLS: &[&str] = &[$(stringify!($name)),*];
    };
}

functions! {
    cuMemCreate: 0 false, CREATE, produce::create,
        (handle: *mut CuMemHandle, size: usize, prop: *const CuMemAllocationProp, flags: c_ulonglong);
    cuMemRelease: 0 false, RELEASE, produce::release, (handle: CuMemHandle);
    cuMemRetainAllocationHandle: 0 false, RETAIN, looks::retain,
        (handle: *mut CuMemHandle, address: *mut c_void);
    cuMemMap: 0 false, MAP, produce::map,
        (base: CuDevicePtr, size: usize, offset: usize, handle: CuMemHandle, flags: c_ulonglong);
    cuMemUnmap: 0 false, UNMAP, produce::unmap, (base: CuDevicePtr, size: usize);
    cuMemExportToShareableHandle: 0 false, EXPORT, produce::export,
        (shareable: *mut c_void, handle: CuMemHandle, kind: c_int, flags: c_ulonglong);
    cuMemImportFromShareableHandle: 0 false, IMPORT, consume::import,
        (handle: *mut CuMemHandle, shareable: *mut c_void, kind: c_int);
    cuMemAlloc_v2: 3_020 true, ALLOC, malloc::allocate, (pointer: *mut CuDevicePtr, bytes: usize);
    cuMemFree_v2: 3_020 true, FREE, malloc::free, (pointer: CuDevicePtr);
    cuMemGetAddressRange_v2: 3_020 true, ADDRESS_RANGE, looks::range,
        (base: *mut CuDevicePtr, bytes: *mut usize, address: CuDevicePtr);
    cuPointerGetAttribute: 4_000 true, GET_ATTRIBUTE, looks::attribute,
        (data: *mut c_void, attribute: c_int, address: CuDevicePtr);
    cuPointerGetAttributes: 7_000 true, GET_ATTRIBUTES, looks::attributes,
        (count: c_uint, attributes: *mut c_int, data: *mut *mut c_void, address: CuDevicePtr);
    cuIpcGetMemHandle: 4_010 true, IPC_GET, ipc::get,
        (handle: *mut CuIpcHandle, pointer: CuDevicePtr);
    cuIpcOpenMemHandle: 4_010 true, IPC_OPEN, ipc::open_v1,
        (pointer: *mut CuDevicePtr, handle: IpcHandle, flags: c_uint);
    cuIpcOpenMemHandle_v2: 11_000 true, IPC_OPEN_V2, ipc::open,
        (pointer: *mut CuDevicePtr, handle: IpcHandle, flags: c_uint);
    cuIpcCloseMemHandle: 4_010 true, IPC_CLOSE, ipc::close, (pointer: CuDevicePtr);
    cuCtxEnablePeerAccess: 4_000 true, ENABLE_PEER, contexts::enable_peer,
        (of: CuContext, flags: c_uint);
    cuCtxDisablePeerAccess: 4_000 true, DISABLE_PEER, contexts::disable_peer, (of: CuContext);
    cuCtxDestroy: 2_000 true, CTX_DESTROY, contexts::destroy_v1, (context: CuContext);
    cuCtxDestroy_v2: 4_000 true, CTX_DESTROY_V2, contexts::destroy, (context: CuContext);
    cuDevicePrimaryCtxRelease: 7_000 true, PRIMARY_RELEASE, contexts::release_v1, (device: c_int);
    cuDevicePrimaryCtxRelease_v2: 11_000 true, PRIMARY_RELEASE_V2, contexts::release,
        (device: c_int);
    cuDevicePrimaryCtxReset: 7_000 true, PRIMARY_RESET, contexts::reset_v1, (device: c_int);
    cuDevicePrimaryCtxReset_v2: 11_000 true, PRIMARY_RESET_V2, contexts::reset, (device: c_int);
    cuMemcpy: 4_000 true, COPIES[0], copies::copy,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize);
    cuMemcpy_ptds: 7_000 true, COPIES[1], copies::copy,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize);
    cuMemcpyHtoD_v2: 3_020 true, COPIES[2], copies::copy,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize);
    cuMemcpyHtoD_v2_ptds: 7_000 true, COPIES[3], copies::copy,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize);
    cuMemcpyDtoH_v2: 3_020 true, COPIES[4], copies::copy,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize);
    cuMemcpyDtoH_v2_ptds: 7_000 true, COPIES[5], copies::copy,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize);
    cuMemcpyDtoD_v2: 3_020 true, COPIES[6], copies::copy,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize);
    cuMemcpyDtoD_v2_ptds: 7_000 true, COPIES[7], copies::copy,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize);
    cuMemcpyAsync: 4_000 true, COPIES_ASYNC[0], copies::copy_async,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);
    cuMemcpyAsync_ptsz: 7_000 true, COPIES_ASYNC[1], copies::copy_async,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);
    cuMemcpyHtoDAsync_v2: 3_020 true, COPIES_ASYNC[2], copies::copy_async,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);
    cuMemcpyHtoDAsync_v2_ptsz: 7_000 true, COPIES_ASYNC[3], copies::copy_async,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);
    cuMemcpyDtoHAsync_v2: 3_020 true, COPIES_ASYNC[4], copies::copy_async,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);
    cuMemcpyDtoHAsync_v2_ptsz: 7_000 true, COPIES_ASYNC[5], copies::copy_async,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);
    cuMemcpyDtoDAsync_v2: 3_020 true, COPIES_ASYNC[6], copies::copy_async,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);
    cuMemcpyDtoDAsync_v2_ptsz: 7_000 true, COPIES_ASYNC[7], copies::copy_async,
        (to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);
    cuMemcpy2D_v2: 3_020 true, COPIES_2D[0], copies::copy_of,
        (what: *const Copy2D);
    cuMemcpy2D_v2_ptds: 7_000 true, COPIES_2D[1], copies::copy_of,
        (what: *const Copy2D);
    cuMemcpy2DUnaligned_v2: 3_020 true, COPIES_2D[2], copies::copy_of,
        (what: *const Copy2D);
    cuMemcpy2DUnaligned_v2_ptds: 7_000 true, COPIES_2D[3], copies::copy_of,
        (what: *const Copy2D);
    cuMemcpy2DAsync_v2: 3_020 true, COPIES_2D_ASYNC[0], copies::copy_of_async,
        (what: *const Copy2D, stream: CuStream);
    cuMemcpy2DAsync_v2_ptsz: 7_000 true, COPIES_2D_ASYNC[1], copies::copy_of_async,
        (what: *const Copy2D, stream: CuStream);
    cuMemcpy3D_v2: 3_020 true, COPIES_3D[0], copies::copy_of,
        (what: *const Copy3D);
    cuMemcpy3D_v2_ptds: 7_000 true, COPIES_3D[1], copies::copy_of,
        (what: *const Copy3D);
    cuMemcpy3DAsync_v2: 3_020 true, COPIES_3D_ASYNC[0], copies::copy_of_async,
        (what: *const Copy3D, stream: CuStream);
    cuMemcpy3DAsync_v2_ptsz: 7_000 true, COPIES_3D_ASYNC[1], copies::copy_of_async,
        (what: *const Copy3D, stream: CuStream);
    cuGetProcAddress: 0 false, GET_PROC_ADDRESS, proc_address,
        (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64);
    cuGetProcAddress_v2: VERSION_OF_V2 false, GET_PROC_ADDRESS_V2, proc_address_v2,
        (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64,
         status: *mut c_int);
}

impl Named {
    /// What cuda.h calls it.
    fn plain(&self) -> &[u8] {
        let name = self.name.to_bytes();
        let name = PER_THREAD.iter().find_map(|it| name.strip_suffix(*it)).unwrap_or(name);
        name.strip_suffix(b"_v2").unwrap_or(name)
    }

    /// Whether this form's default stream is the thread's own.
    fn is_per_thread(&self) -> bool {
        PER_THREAD.iter().any(|suffix| self.name.to_bytes().ends_with(suffix))
    }

    /// Whether there is a driver's function of this name.
    pub fn is_known(&self) -> bool {
        !driver::known(self.place, self.name).is_null()
    }

    /// The layer's function in the place of the driver's. The latest one counts: a program may have
    /// closed a driver and opened another. A driver whose own symbols are bound by the dynamic
    /// linker answers the layer's already.
    pub fn instead_of(&self, drivers: *mut c_void) -> *mut c_void {
        if dynamic::is_own(drivers) || self.of_malloc && !asked::is_malloc() {
            return drivers;
        }
        self.place.store(drivers, Ordering::Release);
        self.ours.cast_mut().cast()
    }
}

/// The function that the dynamic linker knows by this name.
pub fn of_symbol(name: &CStr) -> Option<&'static Named> {
    ALL.iter().find(|named| named.name == name)
}

/// The function that cuGetProcAddress gives for this name, version and flags: cuda.h maps the plain
/// name to the newest form that the version has, and to that of the stream which is asked for.
fn of_version(name: &CStr, version: c_int, flags: u64) -> Option<&'static Named> {
    let is_wanted = flags & PER_THREAD_FLAG != 0;
    let forms = ALL.iter().filter(|named| {
        let is_right = is_wanted || !named.is_per_thread();
        is_right && named.plain() == name.to_bytes() && named.since <= version
    });
    forms.max_by_key(|named| (named.is_per_thread(), named.since))
}

/// # Safety
/// As cuGetProcAddress of CUDA 11.3.
unsafe fn proc_address(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CuResult {
    let Some(below) = driver::GET_PROC_ADDRESS.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let code = unsafe { below(symbol, function, version, flags) };
    // SAFETY: the driver has just read and written there.
    unsafe { replace(code, symbol, function, version, flags) }
}

/// # Safety
/// As cuGetProcAddress of CUDA 12.0.
unsafe fn proc_address_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> CuResult {
    let Some(below) = driver::GET_PROC_ADDRESS_V2.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let code = unsafe { below(symbol, function, version, flags, status) };
    // SAFETY: the driver has just read and written there.
    unsafe { replace(code, symbol, function, version, flags) }
}

/// Puts the layer's function in the place of the one that the driver has answered.
///
/// # Safety
/// As cuGetProcAddress, which has answered `code`.
unsafe fn replace(
    code: CuResult,
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's promise.
    if code != SUCCESS || symbol.is_null() || function.is_null() || unsafe { (*function).is_null() }
    {
        return code;
    }
    // SAFETY: as above.
    if let Some(named) = of_version(unsafe { CStr::from_ptr(symbol) }, version, flags) {
        // SAFETY: as above.
        unsafe { *function = named.instead_of(*function) };
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_when_it_is_of_a_symbol_then_the_drivers_is_kept_by_the_same_name() {
        let names: Vec<_> = ALL.iter().map(|named| named.name.to_str().expect("ASCII")).collect();
        assert_eq!(names, SYMBOLS);
    }

    #[test]
    fn of_version_when_a_call_has_forms_then_the_newest_that_the_version_has() {
        const PROC_ADDRESS: &CStr = c"cuGetProcAddress";
        const PROC_ADDRESS_V2: &CStr = c"cuGetProcAddress_v2";
        let form = |name, version| of_version(name, version, 1).map(|named| named.name);
        let both = [11030, 12000].map(|version| form(PROC_ADDRESS, version));
        assert_eq!(both, [Some(PROC_ADDRESS), Some(PROC_ADDRESS_V2)]);
        let opens = [4000, 4010, 10020, 11000, 13000].map(|it| form(c"cuIpcOpenMemHandle", it));
        let (old, new) = (Some(c"cuIpcOpenMemHandle"), Some(c"cuIpcOpenMemHandle_v2"));
        assert_eq!(opens, [None, old, old, new, new]);
        assert_eq!([3010, 3020].map(|it| form(c"cuMemAlloc", it)), [None, Some(c"cuMemAlloc_v2")]);
        assert!(form(c"cuMemMap", 13000).is_some() && form(c"cuMemMa", 13000).is_none());
    }

    #[test]
    fn of_version_when_the_threads_stream_is_asked_for_then_its_form_where_there_is_one() {
        let form = |name, version, flags| of_version(name, version, flags).map(|it| it.name);
        let copies = [0, 1, PER_THREAD_FLAG].map(|flags| form(c"cuMemcpyHtoD", 12000, flags));
        let (legacy, threads) = (Some(c"cuMemcpyHtoD_v2"), Some(c"cuMemcpyHtoD_v2_ptds"));
        assert_eq!(copies, [legacy, legacy, threads]);
        assert_eq!(form(c"cuMemcpyHtoD", 6050, PER_THREAD_FLAG), legacy);
        assert_eq!(form(c"cuMemcpyAsync", 7000, PER_THREAD_FLAG), Some(c"cuMemcpyAsync_ptsz"));
        assert_eq!(form(c"cuMemAlloc", 12000, PER_THREAD_FLAG), Some(c"cuMemAlloc_v2"));
    }
}
