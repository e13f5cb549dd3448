//! The C library's dlsym, which is not this library's, and what it finds. Must never allocate or
//! take a lock of its own: allocators and the driver call it, before the layer's constructor, too.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

pub type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The version of the C library's first dlsym: it is there in all that came later, too, and finding
/// it allocates nothing.
#[cfg(target_arch = "x86_64")]
const VERSION: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const VERSION: &CStr = c"GLIBC_2.17";

/// The driver's soname, the same since CUDA 3.
const DRIVER: &CStr = c"libcuda.so.1";

/// What the name of each driver's file begins with.
const DRIVER_FILE: &[u8] = b"libcuda.so";

/// What the name of the C library's file begins with.
const C_LIBRARY_FILE: &[u8] = b"libc.so.";

/// The C library's dlsym.
#[inline]
pub fn dlsym() -> Dlsym {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let mut real = REAL.load(Ordering::Relaxed);
    if real.is_null() {
        // SAFETY: C strings; RTLD_NEXT is about this library, whose own dlsym has no version.
        real = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), VERSION.as_ptr()) };
        if real.is_null() {
            // No C library is without it, and without it nothing can go on.
            std::process::abort();
        }
        REAL.store(real, Ordering::Relaxed);
    }
    // SAFETY: the function of this name has this type: dlsym(3).
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(real) }
}

/// What a handle of dlopen(3) has under a name; null: nothing, and dlerror(3) says so.
///
/// # Safety
/// A handle that is open, RTLD_DEFAULT or RTLD_NEXT, both of which are about this library.
pub unsafe fn symbol(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { dlsym()(handle, name) }
}

/// The driver's function of this name: the next one behind this library, else that of a driver
/// which the program has opened. Null: none.
pub fn below(name: &CStr) -> *mut c_void {
    // SAFETY: a C string; this library is preloaded, so it stands in the order of search.
    let next = unsafe { symbol(libc::RTLD_NEXT, name.as_ptr()) };
    if !next.is_null() {
        return next;
    }
    // SAFETY: C strings; NOLOAD runs nothing, and the count it adds only keeps the driver loaded.
    unsafe {
        match libc::dlopen(DRIVER.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) {
            none if none.is_null() => null_mut(),
            driver => symbol(driver, name.as_ptr()),
        }
    }
}

/// This library's own function of a name, whatever comes before it in the order of search. Null: it
/// has none, and dlerror(3) says nothing of it.
pub fn own(name: &CStr) -> *mut c_void {
    static OWN: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let mut own = OWN.load(Ordering::Relaxed);
    if own.is_null() {
        let Some(object) = object_of(is_own as *const c_void) else { return null_mut() };
        // SAFETY: the file's name, a C string; NOLOAD runs nothing, and this library stays loaded
        // anyway.
        own = unsafe { libc::dlopen(object.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        OWN.store(own, Ordering::Relaxed);
    }
    // A null handle is RTLD_DEFAULT.
    let found = if own.is_null() {
        null_mut()
    } else {
        // SAFETY: a handle that is never closed, and a C string.
        unsafe { symbol(own, name.as_ptr()) }
    };
    if found.is_null() {
        // SAFETY: it takes nothing; its text is not read.
        unsafe { libc::dlerror() };
    }
    found
}

/// Whether an address lies in the driver.
pub fn is_in_driver(address: *const c_void) -> bool {
    is_in_file(address, DRIVER_FILE)
}

/// Whether an address lies in the C library.
pub fn is_in_c_library(address: *const c_void) -> bool {
    is_in_file(address, C_LIBRARY_FILE)
}

/// Whether an address lies in an object whose file's name begins so.
fn is_in_file(address: *const c_void, begin: &[u8]) -> bool {
    let Some(object) = object_of(address).filter(|object| !object.dli_fname.is_null()) else {
        return false;
    };
    // SAFETY: a C string that lives as long as the object.
    is_file(unsafe { CStr::from_ptr(object.dli_fname) }, begin)
}

/// Whether the program has the driver, linked or opened. Without a look for a symbol: one that is
/// not found leaves an error for dlerror(3), whose text the next dlsym frees, be it an allocator's
/// own in its first free.
pub fn is_driver_loaded() -> bool {
    // SAFETY: the callback takes no data. dl_iterate_phdr(3).
    unsafe { libc::dl_iterate_phdr(Some(look_at), null_mut()) != 0 }
}

unsafe extern "C" fn look_at(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut c_void,
) -> c_int {
    // SAFETY: dl_iterate_phdr's promise: a live object, with a name or none.
    let path = unsafe { (*object).dlpi_name };
    // SAFETY: as above: a C string.
    c_int::from(!path.is_null() && is_file(unsafe { CStr::from_ptr(path) }, DRIVER_FILE))
}

/// Whether the file's name begins so.
fn is_file(path: &CStr, begin: &[u8]) -> bool {
    let path = path.to_bytes();
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    file.starts_with(begin)
}

/// Whether an address lies in this library.
pub fn is_own(address: *const c_void) -> bool {
    let own = object_of(is_own as *const c_void);
    let both = object_of(address).zip(own);
    both.is_some_and(|(object, own)| object.dli_fbase == own.dli_fbase)
}

/// The object in which an address lies: dladdr(3).
fn object_of(address: *const c_void) -> Option<libc::Dl_info> {
    // SAFETY: plain data, for which all zero is a value.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address, which is only compared, and a structure to fill in.
    (unsafe { libc::dladdr(address, &raw mut found) } != 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dlsym_when_asked_then_the_c_librarys_own() {
        // SAFETY: C strings.
        let found = unsafe { symbol(libc::RTLD_DEFAULT, c"getpid".as_ptr()) };
        assert!(!found.is_null() && !is_in_driver(found) && !is_own(found));
        assert!(is_own(is_own as *const c_void));
        assert!(below(c"cuNoSuchFunction").is_null());
        assert!(is_in_c_library(found) && !is_in_c_library(is_own as *const c_void));
    }
}
