//! The consumer's side: zeMemOpenIpcHandle, and the ends of opened memory.
//! Must never open memory whose allocation has ended, keep an fd, or close the program's fd.

use crate::below::{self, MISSING};
use crate::broker::{self, Broker};
use crate::key::{Bytes, Key, fd_of, with_fd};
use crate::limits::ACQUIRE_TIMEOUT;
use crate::say::{News, once};
use fdbroker_client::{Deadline, Error, ErrorCode, Grant};
use level_zero_sys::*;
use nix::fcntl::{FcntlArg, fcntl};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const INVALID: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;
const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;

/// The arguments of zeMemOpenIpcHandle, without the handle.
pub struct Opening {
    pub context: ze_context_handle_t,
    pub device: ze_device_handle_t,
    pub flags: ze_ipc_memory_flags_t,
    pub pointer: *mut *mut c_void,
}

impl Opening {
    /// # Safety
    /// As zeMemOpenIpcHandle.
    pub unsafe fn open(&self, handle: ze_ipc_mem_handle_t) -> ze_result_t {
        let Some(key) = Key::from_bytes(&handle.to_bytes()) else {
            // SAFETY: the caller's promise.
            return unsafe { self.open_below(handle.to_bytes()) };
        };
        let Some(broker) = broker::connected() else {
            // SAFETY: the caller's promise.
            return unsafe { self.open_as_the_driver_does(&key) };
        };
        match broker.client.acquire(&key.handle(), Deadline::after(ACQUIRE_TIMEOUT)) {
            // SAFETY: the caller's promise.
            Ok(grant) => unsafe { self.open_granted(broker, &key, grant) },
            Err(error) if broker::is_absent(&error) => {
                broker::say_absent(&error);
                // SAFETY: the caller's promise.
                unsafe { self.open_as_the_driver_does(&key) }
            }
            Err(error) if key.has_programs_fd() && is_of_another_broker(&error) => {
                // SAFETY: the caller's promise.
                unsafe { self.open_as_the_driver_does(&key) }
            }
            Err(error) => refuse(&error),
        }
    }

    /// Where no broker knows the key: opens the driver's handle, with the fd that the program has put into it if it has,
    /// as without the layer.
    unsafe fn open_as_the_driver_does(&self, key: &Key) -> ze_result_t {
        match key.driver_handle() {
            // SAFETY: the caller's promise.
            Some(driver) => unsafe { self.open_below(with_fd(driver, key.fd())) },
            None => INVALID,
        }
    }

    /// Opens with the broker's fd, which is closed once the driver has opened it.
    unsafe fn open_granted(&self, broker: Broker, key: &Key, grant: Grant) -> ze_result_t {
        let Grant { fd, mut lease, info } = grant;
        let driver = Bytes::try_from(info.driver_data.as_bytes()).ok().and_then(|mut driver| {
            key.put_offset(&mut driver, info.size_bytes)?;
            Some(driver)
        });
        let Some(driver) = driver else {
            let context = format!("open {}: the handle does not fit the allocation", info.id);
            return refuse(&Error::new(ErrorCode::BadHandle, context));
        };
        let fd = match moved_off(fd_of(&driver), fd) {
            Ok(fd) => fd,
            Err(code) => return code,
        };
        // SAFETY: the caller's promise; the fd stays ours.
        let code = unsafe { self.open_below(with_fd(driver, fd.as_raw_fd())) };
        drop(fd);
        if code == SUCCESS {
            lease.mapped();
            // SAFETY: the driver has just written there.
            let address = unsafe { *self.pointer };
            broker.opened().add(address.addr(), lease);
        }
        code
    }

    unsafe fn open_below(&self, handle: Bytes) -> ze_result_t {
        let Some(below) = below::OPEN.get() else { return MISSING };
        let handle = ze_ipc_mem_handle_t::from_bytes(handle);
        // SAFETY: the caller's promise.
        unsafe { below(self.context, self.device, handle, self.flags, self.pointer) }
    }
}

/// Has the driver close or free memory, and gives its lease back if it was opened. The lease is taken out first: once the
/// driver has closed the memory, another thread may get this address.
pub fn end(pointer: *const c_void, below: impl FnOnce() -> ze_result_t) -> ze_result_t {
    let broker = broker::known();
    let lease = broker.and_then(|broker| broker.opened().take(pointer.addr()));
    let code = below();
    if let (Some(broker), Some(lease)) = (broker, lease)
        && code != SUCCESS
    {
        // The memory is still open.
        broker.opened().add(pointer.addr(), lease);
    }
    code
}

/// Whether the broker here has never known the key: another broker of this node made it, and only that one knows whether
/// its memory still lives.
fn is_of_another_broker(error: &Error) -> bool {
    matches!(error.code, ErrorCode::BadHandle | ErrorCode::WrongNode)
}

/// Moves the fd off the exporter's number: with equal numbers a driver of 26.18 or later asks the exporter.
fn moved_off(exporters: RawFd, fd: OwnedFd) -> Result<OwnedFd, ze_result_t> {
    if fd.as_raw_fd() != exporters {
        return Ok(fd);
    }
    // Any other number will do. The lowest free one is always below the limit; a higher one may not be.
    let moved = fcntl(&fd, FcntlArg::F_DUPFD_CLOEXEC(0));
    let moved = moved.map_err(|_| ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY)?;
    // SAFETY: the call just made it, for nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(moved) })
}

/// The code that the program gets; the user gets the reason on stderr.
fn refuse(error: &Error) -> ze_result_t {
    let news = match error.code {
        ErrorCode::WrongNode => News::OtherNode,
        _ => News::NotOpened,
    };
    once(news, format_args!("zeMemOpenIpcHandle: {error}"));
    match error.code {
        // Later it may succeed: the driver's answer when no fd is free. OWNER_SILENT is also the owner's own lack of fds.
        ErrorCode::LocalFdLimit
        | ErrorCode::NoQuota
        | ErrorCode::TimedOut
        | ErrorCode::Again
        | ErrorCode::OwnerSilent => ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY,
        _ => INVALID,
    }
}
