//! Event pools: in their handles a virtual fd stands in the place of the driver's fd, and the rest
//! is the driver's. Must never Put a handle for the program: the driver keeps this fd as long as
//! the pool lives.

use crate::allocation::{DriversFd, bytes_of, open_fd};
use crate::below::{self, MISSING};
use crate::broker::{self, Broker};
use crate::consume;
use crate::guard::{beside, guard};
use crate::kept::{self, Kept};
use crate::key::{Bytes, fd_of, with_fd};
use crate::limits::RETIRE_TIMEOUT;
use crate::produce::say_why;
use fdbroker_client::layer::kind_of;
use fdbroker_client::{Deadline, Deposit, Error, Facts, Registration};
use fdbroker_layer::REGISTER_TIMEOUT;
use fdbroker_virtual_fds::VirtualFd;
use level_zero_sys::*;
use std::os::fd::AsRawFd;

const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;

/// The handle that the driver has just made for a pool, with a virtual fd in the place of its fd.
/// Where that is not possible the handle stays.
fn exchanged(pool: usize, handle: Bytes) -> Bytes {
    if !below::is_interposed() {
        return handle;
    }
    let Some(broker) = broker::awaited() else { return handle };
    match broker.name(pool, &handle) {
        Ok(fd) => fd.map_or(handle, |fd| with_fd(handle, fd.number())),
        Err(error) => {
            say_why(&error);
            handle
        }
    }
}

impl Broker {
    /// The virtual fd for the fd that the driver keeps for a pool; `None`: there is no such fd, or
    /// the broker has no number left.
    fn name(&self, pool: usize, handle: &Bytes) -> Result<Option<VirtualFd>, Error> {
        let Some((fd, size_bytes)) = open_fd(handle).and_then(|fd| Some((fd, bytes_of(fd)?)))
        else {
            return Ok(None);
        };
        let mut kept = self.kept();
        let known = kept.of_pool(pool).map(|kept| &kept.registration);
        if let Some(known) = known.filter(|it| self.client.is_current(it.id())) {
            return Ok(known.virtual_fd());
        }
        let id = kept.next_id();
        drop(kept);
        let facts =
            Facts::new(kind_of(fd), size_bytes).owner_allocation_id(id).device(kept::DEVICE);
        let deposit = Deposit::from(facts).recallable(true).virtual_fd(true);
        let register = || self.client.register(&deposit, fd, Deadline::after(REGISTER_TIMEOUT));
        let registration = broker::through_outage(register)?;
        let number = registration.virtual_fd();
        let fd = DriversFd::new(fd.as_raw_fd());
        let replaced = self.kept().add(pool, Kept { id, fd, registration });
        // Another thread was as fast, or the broker had ended it.
        replaced.iter().for_each(|it| self.unregister(it));
        Ok(number)
    }

    fn unregister(&self, registration: &Registration) {
        // Ended already, or by the broker's own end.
        let _ = self.client.unregister_within(registration, Deadline::after(RETIRE_TIMEOUT));
    }
}

/// Ends what a pool has exported, before it is destroyed.
fn forget(pool: usize) {
    if let Some(broker) = broker::known()
        && let Some(ended) = { broker.kept().end_of(pool) }
    {
        broker.unregister(&ended);
    }
}

/// # Safety
/// As zeEventPoolGetIpcHandle.
pub unsafe extern "C" fn get(
    pool: ze_event_pool_handle_t,
    handle: *mut ze_ipc_event_pool_handle_t,
) -> ze_result_t {
    guard(|| {
        let Some(below) = below::POOL_GET.get() else { return MISSING };
        // SAFETY: the caller's promise.
        let code = unsafe { below(pool, handle) };
        if code == SUCCESS && !handle.is_null() {
            // SAFETY: the driver has just written it.
            let handle = unsafe { &mut *handle };
            let bytes = exchanged(pool.addr(), handle.to_bytes());
            *handle = ze_ipc_event_pool_handle_t::from_bytes(bytes);
        }
        code
    })
}

/// # Safety
/// As zeEventPoolPutIpcHandle.
pub unsafe extern "C" fn put(
    context: ze_context_handle_t,
    handle: ze_ipc_event_pool_handle_t,
) -> ze_result_t {
    guard(|| {
        let Some(below) = below::POOL_PUT.get() else { return MISSING };
        let bytes = handle.to_bytes();
        let drivers = VirtualFd::new(fd_of(&bytes))
            .and_then(|fd| broker::known()?.kept().drivers_fd(fd))
            .map_or(bytes, |fd| with_fd(bytes, fd));
        let handle = ze_ipc_event_pool_handle_t::from_bytes(drivers);
        // SAFETY: the caller's promise; the driver gets the handle that it made.
        unsafe { below(context, handle) }
    })
}

/// # Safety
/// As zeEventPoolOpenIpcHandle.
pub unsafe extern "C" fn open(
    context: ze_context_handle_t,
    handle: ze_ipc_event_pool_handle_t,
    pool: *mut ze_event_pool_handle_t,
) -> ze_result_t {
    guard(|| {
        let Some(below) = below::POOL_OPEN.get() else { return MISSING };
        let ready = match consume::ready_pool(handle.to_bytes()) {
            Ok(ready) => ready,
            Err(code) => return code,
        };
        let handle = ze_ipc_event_pool_handle_t::from_bytes(ready.handle);
        // SAFETY: the caller's promise; the fd stays ours.
        let code = unsafe { below(context, handle, pool) };
        if code == SUCCESS {
            // SAFETY: the driver has just written there.
            consume::keep(unsafe { *pool }.addr(), ready.opened());
        }
        code
    })
}

/// # Safety
/// As zeEventPoolCloseIpcHandle.
pub unsafe extern "C" fn close(pool: ze_event_pool_handle_t) -> ze_result_t {
    let Some(below) = below::POOL_CLOSE.get() else { return MISSING };
    // A program may have exported what it opened.
    beside(|| forget(pool.addr()));
    // SAFETY: the caller's promise.
    guard(|| consume::end(pool, || unsafe { below(pool) }))
}

/// # Safety
/// As zeEventPoolDestroy.
pub unsafe extern "C" fn destroy(pool: ze_event_pool_handle_t) -> ze_result_t {
    let Some(below) = below::POOL_DESTROY.get() else { return MISSING };
    beside(|| forget(pool.addr()));
    // SAFETY: the caller's promise.
    guard(|| consume::end(pool, || unsafe { below(pool) }))
}
