//! What the user has asked for, by variables. Must never allocate: dlsym asks, too.

use std::ffi::CStr;

/// What `fdbroker run --cuda=malloc` sets to 1.
const MALLOC: &CStr = c"FDBROKER_CUDA_MALLOC";

/// With this limit a client of MPS gets an error of cuMemAlloc. Whether VMM memory counts under it
/// no page says.
const MPS_LIMIT: &CStr = c"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

/// Whether memory of cuMemAlloc is to be the layer's.
pub fn is_malloc() -> bool {
    value_of(MALLOC) == Some(c"1")
}

/// Whether MPS is to limit this process's memory.
pub fn has_mps_limit() -> bool {
    value_of(MPS_LIMIT).is_some()
}

fn value_of(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: C strings. A program that changes the variable meanwhile races with each getenv(3).
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}
