//! The driver's functions that programs ask for by name. Must never give a function for another
//! driver's of the same name.

use crate::below::{self, MISSING};
use crate::guard::beside;
use crate::limits::DRIVERS;
use crate::tiles;
use level_zero_sys::*;
use std::ffi::{CStr, c_char, c_void};

/// A function of the driver's by its name: where the layer has one for it, that.
///
/// # Safety
/// As zeDriverGetExtensionFunctionAddress.
pub unsafe extern "C" fn extension(
    driver: ze_driver_handle_t,
    name: *const c_char,
    function: *mut *mut c_void,
) -> ze_result_t {
    let Some(below) = below::EXTENSION.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let code = unsafe { below(driver, name, function) };
    if code == ze_result_t::ZE_RESULT_SUCCESS && !name.is_null() && !function.is_null() {
        // SAFETY: the caller's promise: a C string, and a place that the driver has just written.
        beside(|| unsafe { replace(CStr::from_ptr(name), &mut *function) });
    }
    code
}

/// Puts the layer's function for this very driver in the place of the driver's of this name.
fn replace(name: &CStr, function: &mut *mut c_void) {
    macro_rules! replace {
        ($below:ident: $ours:expr) => {
            if name == below::$below[0].name() {
                let ours = $ours.map(|ours| ours as *mut c_void);
                let is_it = |driver: &usize| below::$below[*driver].is_this(*function);
                if !ours.contains(function)
                    && let Some(driver) = (0..DRIVERS).find(is_it)
                {
                    *function = ours[driver];
                }
            }
        };
    }
    replace!(GET_TILES: tiles::GET);
    replace!(OPEN_TILES: tiles::OPEN);
}
