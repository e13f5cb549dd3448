//! The consumer's side: cuMemImportFromShareableHandle. Must never close the program's fd, nor
//! import memory that has ended.

use crate::broker;
use crate::driver::{self, MISSING};
use crate::memory::records;
use crate::result::{
    CuMemHandle, CuResult, HANDLE_TYPE_POSIX_FD, Import, OPERATING_SYSTEM, SUCCESS,
};
use crate::say::{News, once};
use fdbroker_layer::{ProgramsFd, SharedLease};
use fdbroker_virtual_fds::VirtualFd;
use nix::errno::Errno;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// # Safety
/// As cuMemImportFromShareableHandle.
pub unsafe fn import(handle: *mut CuMemHandle, shareable: *mut c_void, kind: c_int) -> CuResult {
    let Some(below) = driver::IMPORT.get() else { return MISSING };
    // The fd's number stands in the pointer.
    let fd = RawFd::try_from(shareable.addr()).ok().filter(|_| kind == HANDLE_TYPE_POSIX_FD);
    match fd.and_then(VirtualFd::new) {
        // SAFETY: the caller's promise.
        Some(number) => unsafe { import_number(below, handle, shareable, number) },
        None => {
            // Before the driver has the fd: the program may close it on another thread.
            let lease = fd.and_then(ProgramsFd::of).map(|fd| fd.lease());
            // SAFETY: the caller's promise.
            unsafe { import_fd(below, handle, shareable, kind, lease) }
        }
    }
}

/// Imports with a granted fd, which is closed once the driver has the memory.
///
/// # Safety
/// As cuMemImportFromShareableHandle.
unsafe fn import_number(
    below: Import,
    handle: *mut CuMemHandle,
    shareable: *mut c_void,
    number: VirtualFd,
) -> CuResult {
    match broker::fetch(number) {
        Ok(fetched) => {
            let real = fetched.as_fd().as_raw_fd().unsigned_abs() as usize;
            let real = std::ptr::without_provenance_mut(real);
            let lease = Some(fetched.lease());
            // SAFETY: the caller's promise; the fd stays ours.
            let code = unsafe { import_fd(below, handle, real, HANDLE_TYPE_POSIX_FD, lease) };
            // What is imported counts as mapped once the fd is closed.
            fetched.close();
            code
        }
        // Nobody has it: the driver's own answer for an fd that is not open.
        // SAFETY: the caller's promise.
        Err(Errno::EBADF) => unsafe { below(handle, shareable, HANDLE_TYPE_POSIX_FD) },
        Err(errno) => {
            once(News::NotImported, format_args!("cuMemImportFromShareableHandle: {errno}"));
            OPERATING_SYSTEM
        }
    }
}

/// # Safety
/// As cuMemImportFromShareableHandle.
unsafe fn import_fd(
    below: Import,
    handle: *mut CuMemHandle,
    shareable: *mut c_void,
    kind: c_int,
    lease: Option<SharedLease>,
) -> CuResult {
    // SAFETY: the caller's promise.
    let code = unsafe { below(handle, shareable, kind) };
    if code == SUCCESS && !handle.is_null() {
        // SAFETY: the driver has just written it.
        records().import(unsafe { *handle }, lease);
    }
    code
}
