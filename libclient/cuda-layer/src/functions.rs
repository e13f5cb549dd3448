//! The functions of the driver that the layer stands before: one row each, for all ways by which a
//! program gets them (a linked symbol, dlsym, cuGetProcAddress). Thin: they stop panics and leave
//! the work to other modules. Must never let a panic reach the program, nor give a function that
//! the driver does not have.

use crate::driver::{self, MISSING, Place};
use crate::result::{
    CuContext, CuDevicePtr, CuIpcHandle, CuMemAllocationProp, CuMemHandle, CuResult, IpcHandle,
    SUCCESS, UNKNOWN, VERSION_OF_V2,
};
use crate::{asked, broker, consume, contexts, dynamic, ipc, looks, malloc, produce};
use fdbroker_virtual_fds::inside;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// The function by which each program begins to use the driver.
pub const INIT: &CStr = c"cuInit";

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
/// arguments of cuda.h. The symbol is for programs that link the driver. The table leads to another
/// function, because the dynamic linker may find the driver's for the symbol.
macro_rules! functions {
    ($($name:ident: $since:tt $of_malloc:literal, $place:ident, $body:path,
        ($($argument:ident: $kind:ty),* $(,)?);)*) => {
        impl Ours {
            $(
                /// # Safety
                /// That of the driver's function of this name.
                #[allow(non_snake_case, reason = "the names of cuda.h")]
                unsafe extern "C" fn $name($($argument: $kind),*) -> CuResult {
                    broker::note_driver();
                    // SAFETY: the caller's promise.
                    guard(|| unsafe { $body($($argument),*) })
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
            name: driver::$place.name(),
            since: $since,
            ours: Ours::$name as *const (),
            place: &driver::$place.place,
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
        name.strip_suffix(b"_v2").unwrap_or(name)
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

/// The function that cuGetProcAddress gives for this name and version: cuda.h maps the plain name
/// to the newest form that the version has.
fn of_version(name: &CStr, version: c_int) -> Option<&'static Named> {
    let forms =
        ALL.iter().filter(|named| named.plain() == name.to_bytes() && named.since <= version);
    forms.max_by_key(|named| named.since)
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
    unsafe { replace(code, symbol, function, version) }
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
    unsafe { replace(code, symbol, function, version) }
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
) -> CuResult {
    // SAFETY: the caller's promise.
    if code != SUCCESS || symbol.is_null() || function.is_null() || unsafe { (*function).is_null() }
    {
        return code;
    }
    // SAFETY: as above.
    if let Some(named) = of_version(unsafe { CStr::from_ptr(symbol) }, version) {
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
        let form = |name, version| of_version(name, version).map(|named| named.name);
        let both = [11030, 12000].map(|version| form(PROC_ADDRESS, version));
        assert_eq!(both, [Some(PROC_ADDRESS), Some(PROC_ADDRESS_V2)]);
        let opens = [4000, 4010, 10020, 11000, 13000].map(|it| form(c"cuIpcOpenMemHandle", it));
        let (old, new) = (Some(c"cuIpcOpenMemHandle"), Some(c"cuIpcOpenMemHandle_v2"));
        assert_eq!(opens, [None, old, old, new, new]);
        assert_eq!([3010, 3020].map(|it| form(c"cuMemAlloc", it)), [None, Some(c"cuMemAlloc_v2")]);
        assert!(
            of_version(c"cuMemMap", 13000).is_some() && of_version(c"cuMemMa", 13000).is_none()
        );
    }
}
