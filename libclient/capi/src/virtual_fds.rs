//! Virtual fds: numbers that name an allocation to processes that pass fd numbers. Must never open
//! anything.

use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::guard;
use crate::handle::fdbroker_handle_t;
use crate::sized::place;
use fdbroker_client::{Deadline, ErrorCode, VirtualFd};
use std::ffi::c_int;

/// The virtual fd of an allocation that was registered with FDBROKER_VIRTUAL_FD: a number from 2^30
/// to 2^31-1 that no process has open. -1: it has none, or handle is NULL. Needs no context and
/// sends nothing. Also inside a callback and in a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_handle_virtual_fd(handle: *const fdbroker_handle_t) -> c_int {
    // SAFETY: the caller's pointer, as the header states.
    let handle = unsafe { handle.as_ref() };
    handle.and_then(|handle| handle.get().virtual_fd()).map_or(-1, VirtualFd::number)
}

/// The handle of the allocation that a virtual fd names, for clients of its owner's user and
/// socket, whoever it is shared with. Takes nothing: acquire or import it like any other. After a
/// crash of the broker it waits for the owner to come back, until the deadline at most.
///
/// A number does not say which broker it is of. One of another broker names nothing here, but for a
/// chance of one in 2^30 for each live allocation.
///
/// Errors: FDBROKER_BAD_HANDLE (no live allocation of this user has the number), FDBROKER_AGAIN
/// (its owner has not come back), FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED,
/// FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_INVALID_ARGUMENT (also: the number is below
/// 2^30). *handle is all zero then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_resolve(
    broker: *mut fdbroker_t,
    virtual_fd: c_int,
    deadline_ms: u32,
    handle: *mut fdbroker_handle_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointer, as the header states.
        let handle = unsafe { place(handle, "resolve: handle", fdbroker_handle_t::NONE) }?;
        // SAFETY: as above.
        let context = unsafe { context(broker, "resolve") }?;
        let number = VirtualFd::new(virtual_fd).ok_or_else(|| {
            Failure::argument(format!(
                "resolve: {virtual_fd} is no virtual fd, which are from 2^30"
            ))
        })?;
        let found = context.client.resolve(number, 0, Deadline::from_ms(deadline_ms))?;
        let found = found.first().ok_or_else(|| Failure::new(ErrorCode::BadHandle, "resolve"))?;
        *handle = (*found).into();
        Ok(())
    })
}
