//! The driver's functions that the layer stands before, by name; cuGetProcAddress, which gives them
//! by name. Must never give one that the driver does not have.

use crate::driver::{self, MISSING, Place};
use crate::entry::{self, guard};
use crate::result::{CuResult, SUCCESS, VERSION_OF_V2};
use crate::{asked, broker, dynamic};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering;

/// The function by which each program begins to use the driver.
pub const INIT: &CStr = c"cuInit";

const PROC_ADDRESS: &CStr = c"cuGetProcAddress";
const PROC_ADDRESS_V2: &CStr = c"cuGetProcAddress_v2";

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

/// A row of what belongs to memory of cuMemAlloc.
macro_rules! of_malloc {
    ($name:literal, $since:literal, $ours:ident, $function:ident) => {
        Named {
            since: $since,
            of_malloc: true,
            ..Named::new($name, entry::$ours as *const (), &driver::$function.place)
        }
    };
}

static ALL: [Named; 26] = [
    Named::new(c"cuMemCreate", entry::create as *const (), &driver::CREATE.place),
    Named::new(c"cuMemRelease", entry::release as *const (), &driver::RELEASE.place),
    Named::new(c"cuMemRetainAllocationHandle", entry::retain as *const (), &driver::RETAIN.place),
    Named::new(c"cuMemMap", entry::map as *const (), &driver::MAP.place),
    Named::new(c"cuMemUnmap", entry::unmap as *const (), &driver::UNMAP.place),
    Named::new(c"cuMemExportToShareableHandle", entry::export as *const (), &driver::EXPORT.place),
    Named::new(
        c"cuMemImportFromShareableHandle",
        entry::import as *const (),
        &driver::IMPORT.place,
    ),
    Named::new(PROC_ADDRESS, proc_address as *const (), &driver::GET_PROC_ADDRESS.place),
    Named {
        since: VERSION_OF_V2,
        ..Named::new(
            PROC_ADDRESS_V2,
            proc_address_v2 as *const (),
            &driver::GET_PROC_ADDRESS_V2.place,
        )
    },
    of_malloc!(c"cuMemAlloc_v2", 3_020, allocate, ALLOC),
    of_malloc!(c"cuMemFree_v2", 3_020, free, FREE),
    of_malloc!(c"cuMemGetAddressRange_v2", 3_020, range, ADDRESS_RANGE),
    of_malloc!(c"cuPointerGetAttribute", 4_000, attribute, GET_ATTRIBUTE),
    of_malloc!(c"cuPointerGetAttributes", 7_000, attributes, GET_ATTRIBUTES),
    of_malloc!(c"cuIpcGetMemHandle", 4_010, ipc_get, IPC_GET),
    of_malloc!(c"cuIpcOpenMemHandle", 4_010, ipc_open_v1, IPC_OPEN),
    of_malloc!(c"cuIpcOpenMemHandle_v2", 11_000, ipc_open, IPC_OPEN_V2),
    of_malloc!(c"cuIpcCloseMemHandle", 4_010, ipc_close, IPC_CLOSE),
    of_malloc!(c"cuCtxEnablePeerAccess", 4_000, enable_peer, ENABLE_PEER),
    of_malloc!(c"cuCtxDisablePeerAccess", 4_000, disable_peer, DISABLE_PEER),
    of_malloc!(c"cuCtxDestroy", 2_000, destroy_v1, CTX_DESTROY),
    of_malloc!(c"cuCtxDestroy_v2", 4_000, destroy, CTX_DESTROY_V2),
    of_malloc!(c"cuDevicePrimaryCtxRelease", 7_000, primary_release_v1, PRIMARY_RELEASE),
    of_malloc!(c"cuDevicePrimaryCtxRelease_v2", 11_000, primary_release, PRIMARY_RELEASE_V2),
    of_malloc!(c"cuDevicePrimaryCtxReset", 7_000, primary_reset_v1, PRIMARY_RESET),
    of_malloc!(c"cuDevicePrimaryCtxReset_v2", 11_000, primary_reset, PRIMARY_RESET_V2),
];

impl Named {
    const fn new(name: &'static CStr, ours: *const (), place: &'static Place) -> Self {
        Named { name, since: 0, ours, place, of_malloc: false }
    }

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
pub unsafe extern "C" fn proc_address(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CuResult {
    let Some(below) = driver::GET_PROC_ADDRESS.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let code = unsafe { below(symbol, function, version, flags) };
    // SAFETY: the driver has just read and written there.
    guard(|| unsafe { replace(code, symbol, function, version) })
}

/// # Safety
/// As cuGetProcAddress of CUDA 12.0.
pub unsafe extern "C" fn proc_address_v2(
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
    guard(|| unsafe { replace(code, symbol, function, version) })
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
    broker::note_driver();
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
    fn of_version_when_a_call_has_forms_then_the_newest_that_the_version_has() {
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
