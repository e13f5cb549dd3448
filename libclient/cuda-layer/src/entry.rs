//! The layer's functions in the place of the driver's. Thin: they stop panics and leave the work to
//! other modules. Must never let a panic reach the program.

use crate::result::{
    CuContext, CuDevicePtr, CuIpcHandle, CuMemAllocationProp, CuMemHandle, CuResult, IpcHandle,
    UNKNOWN,
};
use crate::{broker, consume, contexts, ipc, looks, malloc, produce};
use fdbroker_virtual_fds::inside;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
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
    fn retain = looks::retain, (handle: *mut CuMemHandle, address: *mut c_void);
    fn map = produce::map,
        (base: CuDevicePtr, size: usize, offset: usize, handle: CuMemHandle, flags: c_ulonglong);
    fn unmap = produce::unmap, (base: CuDevicePtr, size: usize);
    fn export = produce::export,
        (shareable: *mut c_void, handle: CuMemHandle, kind: c_int, flags: c_ulonglong);
    fn import = consume::import, (handle: *mut CuMemHandle, shareable: *mut c_void, kind: c_int);
    fn allocate = malloc::allocate, (pointer: *mut CuDevicePtr, bytes: usize);
    fn free = malloc::free, (pointer: CuDevicePtr);
    fn range = looks::range, (base: *mut CuDevicePtr, bytes: *mut usize, address: CuDevicePtr);
    fn attribute = looks::attribute, (data: *mut c_void, attribute: c_int, address: CuDevicePtr);
    fn attributes = looks::attributes,
        (count: c_uint, attributes: *mut c_int, data: *mut *mut c_void, address: CuDevicePtr);
    fn ipc_get = ipc::get, (handle: *mut CuIpcHandle, pointer: CuDevicePtr);
    fn ipc_open_v1 = ipc::open_v1, (pointer: *mut CuDevicePtr, handle: IpcHandle, flags: c_uint);
    fn ipc_open = ipc::open, (pointer: *mut CuDevicePtr, handle: IpcHandle, flags: c_uint);
    fn ipc_close = ipc::close, (pointer: CuDevicePtr);
    fn enable_peer = contexts::enable_peer, (of: CuContext, flags: c_uint);
    fn disable_peer = contexts::disable_peer, (of: CuContext);
    fn destroy_v1 = contexts::destroy_v1, (context: CuContext);
    fn destroy = contexts::destroy, (context: CuContext);
    fn primary_release_v1 = contexts::release_v1, (device: c_int);
    fn primary_release = contexts::release, (device: c_int);
    fn primary_reset_v1 = contexts::reset_v1, (device: c_int);
    fn primary_reset = contexts::reset, (device: c_int);
}
