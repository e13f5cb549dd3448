//! The driver's functions that the layer stands before, by name; cuGetProcAddress, which gives them
//! by name. Must never give one that the driver does not have.

use crate::driver::{self, MISSING, Place};
use crate::entry::{self, guard};
use crate::result::{CuResult, SUCCESS, VERSION_OF_V2};
use crate::{broker, dynamic};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering;

/// The function by which each program begins to use the driver.
pub const INIT: &CStr = c"cuInit";

const PROC_ADDRESS: &CStr = c"cuGetProcAddress";
const PROC_ADDRESS_V2: &CStr = c"cuGetProcAddress_v2";

pub struct Named {
    name: &'static CStr,
    ours: *const (),
    place: &'static Place,
}

// SAFETY: `ours` is the address of code.
unsafe impl Sync for Named {}

static ALL: [Named; 9] = [
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
    Named::new(PROC_ADDRESS_V2, proc_address_v2 as *const (), &driver::GET_PROC_ADDRESS_V2.place),
];

impl Named {
    const fn new(name: &'static CStr, ours: *const (), place: &'static Place) -> Self {
        Named { name, ours, place }
    }

    /// Whether there is a driver's function of this name.
    pub fn is_known(&self) -> bool {
        !driver::known(self.place, self.name).is_null()
    }

    /// The layer's function in the place of the driver's. The latest one counts: a program may have
    /// closed a driver and opened another. A driver whose own symbols are bound by the dynamic
    /// linker answers the layer's already.
    pub fn instead_of(&self, drivers: *mut c_void) -> *mut c_void {
        if dynamic::is_own(drivers) {
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
/// to the newest form.
fn of_version(name: &CStr, version: c_int) -> Option<&'static Named> {
    if name == PROC_ADDRESS && version >= VERSION_OF_V2 {
        of_symbol(PROC_ADDRESS_V2)
    } else {
        of_symbol(name)
    }
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
    fn of_version_when_12_or_later_then_the_second_form_of_cu_get_proc_address() {
        let form = |version| of_version(PROC_ADDRESS, version).map(|named| named.name);
        assert_eq!([11030, 12000].map(form), [Some(PROC_ADDRESS), Some(PROC_ADDRESS_V2)]);
        assert!(
            of_version(c"cuMemMap", 13000).is_some() && of_version(c"cuMemMa", 13000).is_none()
        );
    }
}
