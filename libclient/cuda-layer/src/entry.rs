//! The layer's functions in the place of the driver's. Thin: they stop panics and leave the work to
//! `produce` and `consume`. Must never let a panic reach the program.

use crate::result::{CuDevicePtr, CuMemAllocationProp, CuMemHandle, CuResult, UNKNOWN};
use crate::{broker, consume, produce};
use fdbroker_virtual_fds::inside;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body`; a fault in this layer becomes an answer, its words are on stderr already.
pub fn guard(body: impl FnOnce() -> CuResult) -> CuResult {
    // What a panic interrupts is consistent: the lock is let go between consistent states.
    let caught = inside(|| catch_unwind(AssertUnwindSafe(body)));
    caught.unwrap_or_else(|payload| {
        // The payload's own drop may panic too.
        std::mem::forget(payload);
        UNKNOWN
    })
}

/// Functions of the driver, each carried out by a function of this crate.
macro_rules! entries {
    ($(fn $name:ident = $body:path, ($($argument:ident: $kind:ty),* $(,)?);)*) => {$(
        /// # Safety
        /// That of the driver's function.
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> CuResult {
            broker::note_driver();
            // SAFETY: the caller's promise.
            guard(|| unsafe { $body($($argument),*) })
        }
    )*};
}

entries! {
    fn create = produce::create,
        (handle: *mut CuMemHandle, size: usize, prop: *const CuMemAllocationProp, flags: c_ulonglong);
    fn release = produce::release, (handle: CuMemHandle);
    fn retain = produce::retain, (handle: *mut CuMemHandle, address: *mut c_void);
    fn map = produce::map,
        (base: CuDevicePtr, size: usize, offset: usize, handle: CuMemHandle, flags: c_ulonglong);
    fn unmap = produce::unmap, (base: CuDevicePtr, size: usize);
    fn export = produce::export,
        (shareable: *mut c_void, handle: CuMemHandle, kind: c_int, flags: c_ulonglong);
    fn import = consume::import, (handle: *mut CuMemHandle, shareable: *mut c_void, kind: c_int);
}
