//! Opens the loader and finds its functions. Must never unload it: drivers start threads and
//! register exit handlers.

use crate::error::LoadError;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::error::Error;
use std::ffi::{CStr, c_int};
use std::path::Path;

/// The loader's soname on Linux, the same since spec 1.0.
pub const LOADER: &str = "libze_loader.so.1";

/// `RTLD_NODELETE` of dlfcn.h: the library stays for the life of the process, and its functions
/// with it.
const RTLD_NODELETE: c_int = 0x1000;

/// # Errors
/// [`LoadError::NotLoaded`] with the dynamic linker's reason.
///
/// # Safety
/// Runs the library's initialisers, which must be fit to run in this process.
pub(crate) unsafe fn open(path: &Path) -> Result<Library, LoadError> {
    let flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    // SAFETY: the caller's promise.
    unsafe { Library::open(Some(path), flags) }
        .map_err(|error| LoadError::NotLoaded { library: path.into(), reason: reason(&error) })
}

/// The function pointer of type `F` that the library has under this name.
///
/// # Safety
/// `F` is the type of the function of that name, as a pointer, and the library is never unloaded.
pub(crate) unsafe fn symbol<F: Copy>(library: &Library, name: &CStr) -> Option<F> {
    // SAFETY: the caller's promise about the type; copied out, since the library stays loaded
    // (RTLD_NODELETE).
    unsafe { library.get::<F>(name.to_bytes_with_nul()).ok().map(|symbol| *symbol) }
}

/// The dynamic linker's words, without libloading's around them.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
