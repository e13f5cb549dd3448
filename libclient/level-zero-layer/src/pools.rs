//! Event pools, and events with a counter: in their handles virtual fds stand in the places of the
//! driver's fds, and the rest is the driver's. Must never Put a handle for the program: the driver
//! keeps these fds as long as pool and event live.

use crate::allocation::{DriversFd, bytes_of, kind_of, open_fd};
use crate::below::{self, MISSING};
use crate::broker::{self, Broker};
use crate::consume::{self, acquire};
use crate::kept;
use crate::key::{Bytes, fd_of, with_fd};
use crate::limits::{REGISTER_TIMEOUT, RETIRE_TIMEOUT};
use crate::opened::Hold;
use crate::produce::say_why;
use fdbroker_client::{Deadline, Deposit, Error, Facts, Grant};
use fdbroker_virtual_fds::VirtualFd;
use level_zero_sys::*;
use std::os::fd::{AsRawFd, OwnedFd};

const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;

/// Where a counter's handle has its fds: first the one of the device's memory, then the host's, if
/// there is one.
const COUNTER_FDS: [usize; 2] = [0, 8];

/// Where a pool's handle has its fd.
const POOL_FDS: [usize; 1] = [0];

/// Puts virtual fds in the places of the fds in a handle that the driver has just made for `owner`.
/// Where that is not possible the handle stays.
fn exchange(owner: usize, handle: &mut Bytes, places: &[usize]) {
    if !below::is_interposed() {
        return;
    }
    let Some(broker) = broker::connected() else { return };
    let mut exchanged = *handle;
    for place in places {
        let word = word_at(handle, *place);
        // No second fd.
        if *place > 0 && fd_of(&word) == 0 {
            continue;
        }
        match broker.name(owner, &word) {
            Ok(Some(fd)) => put_word(&mut exchanged, *place, fd.number()),
            Ok(None) => return,
            Err(error) => return say_why(&error),
        }
    }
    *handle = exchanged;
}

impl Broker {
    /// The virtual fd for an fd that the driver keeps; `None`: there is no such fd, or the broker
    /// has no number left.
    fn name(&self, owner: usize, handle: &Bytes) -> Result<Option<VirtualFd>, Error> {
        let Some(fd) = open_fd(handle) else { return Ok(None) };
        let drivers = DriversFd::new(fd.as_raw_fd());
        let (Some(file), Some(size_bytes)) = (drivers.file(), bytes_of(fd)) else {
            return Ok(None);
        };
        let mut kept = self.kept();
        let is_good = |it: &fdbroker_client::Registration| self.client.is_current(it.id());
        if let Some(known) = kept.known(file, owner, is_good) {
            return Ok(Some(known));
        }
        let id = kept.next_id();
        drop(kept);
        let facts = Facts {
            owner_allocation_id: id,
            device: kept::DEVICE,
            ..Facts::new(kind_of(fd), size_bytes)
        };
        let deposit = Deposit { recallable: true, virtual_fd: true, ..facts.into() };
        let registration = self.client.register(&deposit, fd, Deadline::after(REGISTER_TIMEOUT))?;
        let number = registration.virtual_fd();
        let replaced = self.kept().add(file, (id, drivers), owner, registration);
        // Another thread was as fast, or the broker had ended it.
        self.unregister(replaced);
        Ok(number)
    }

    fn unregister(&self, ended: impl IntoIterator<Item = fdbroker_client::Registration>) {
        for registration in ended {
            // Ended already, or by the broker's own end.
            let _ = self.client.unregister_within(&registration, Deadline::after(RETIRE_TIMEOUT));
        }
    }
}

/// Ends what a pool or event has exported, before it is destroyed.
pub fn forget(owner: usize) {
    if let Some(broker) = broker::known().filter(Broker::has_kept) {
        let ended = broker.kept().end_of(owner);
        broker.unregister(ended);
    }
}

/// A handle for the driver, and what must live: the fds until it is open, the holds until it is
/// closed.
struct Ready {
    handle: Bytes,
    fds: Vec<OwnedFd>,
    holds: Vec<Hold>,
}

impl Ready {
    /// # Errors
    /// The code for the program.
    fn of(handle: Bytes, places: &[usize]) -> Result<Self, ze_result_t> {
        let mut ready = Ready { handle, fds: Vec::new(), holds: Vec::new() };
        if !below::is_interposed() {
            return Ok(ready);
        }
        for place in places {
            let number = fd_of(&word_at(&handle, *place));
            let Some(fd) = VirtualFd::new(number) else {
                ready.holds.extend(consume::hold_of(number));
                continue;
            };
            let Grant { fd, lease, .. } = acquire(fd)?;
            put_word(&mut ready.handle, *place, fd.as_raw_fd());
            ready.fds.push(fd);
            ready.holds.push(Hold::Own(lease));
        }
        Ok(ready)
    }

    /// It is open as `object`: the fds are closed.
    fn keep<H>(self, object: *const H) {
        drop(self.fds);
        consume::keep(object.addr(), self.holds.into_iter().map(Hold::mapped));
    }
}

/// The fd at a place of a handle, as the first bytes of one.
fn word_at(handle: &Bytes, place: usize) -> Bytes {
    let mut word = [0; 64];
    word[..8].copy_from_slice(&handle[place..place + 8]);
    word
}

fn put_word(handle: &mut Bytes, place: usize, number: i32) {
    handle[place..place + 4].copy_from_slice(&number.to_ne_bytes());
}

/// # Safety
/// As zeEventPoolGetIpcHandle.
pub unsafe fn get_pool(
    pool: ze_event_pool_handle_t,
    handle: *mut ze_ipc_event_pool_handle_t,
) -> ze_result_t {
    let Some(below) = below::POOL_GET.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let code = unsafe { below(pool, handle) };
    if code == SUCCESS && !handle.is_null() {
        // SAFETY: the driver has just written it.
        let data = unsafe { &mut (*handle).data };
        let mut bytes = data.map(|byte| byte.cast_unsigned());
        exchange(pool.addr(), &mut bytes, &POOL_FDS);
        *data = bytes.map(u8::cast_signed);
    }
    code
}

/// # Safety
/// As zeEventPoolPutIpcHandle.
pub unsafe fn put_pool(
    context: ze_context_handle_t,
    handle: ze_ipc_event_pool_handle_t,
) -> ze_result_t {
    let Some(below) = below::POOL_PUT.get() else { return MISSING };
    let bytes = handle.data.map(|byte| byte.cast_unsigned());
    let drivers = VirtualFd::new(fd_of(&bytes))
        .and_then(|fd| broker::known()?.kept().drivers_fd(fd))
        .map_or(bytes, |fd| with_fd(bytes, fd));
    let handle = ze_ipc_event_pool_handle_t { data: drivers.map(u8::cast_signed) };
    // SAFETY: the caller's promise; the driver gets the handle that it made.
    unsafe { below(context, handle) }
}

/// # Safety
/// As zeEventPoolOpenIpcHandle.
pub unsafe fn open_pool(
    context: ze_context_handle_t,
    handle: ze_ipc_event_pool_handle_t,
    pool: *mut ze_event_pool_handle_t,
) -> ze_result_t {
    let Some(below) = below::POOL_OPEN.get() else { return MISSING };
    let ready = match Ready::of(handle.data.map(|byte| byte.cast_unsigned()), &POOL_FDS) {
        Ok(ready) => ready,
        Err(code) => return code,
    };
    let handle = ze_ipc_event_pool_handle_t { data: ready.handle.map(u8::cast_signed) };
    // SAFETY: the caller's promise; the fd stays ours.
    let code = unsafe { below(context, handle, pool) };
    if code == SUCCESS {
        // SAFETY: the driver has just written there.
        ready.keep(unsafe { *pool });
    }
    code
}

/// # Safety
/// As zeEventCounterBasedGetIpcHandle; `below` is that, or Intel's older form.
pub unsafe fn get_counter(
    below: ze_pfnEventCounterBasedGetIpcHandle_t,
    event: ze_event_handle_t,
    handle: *mut ze_ipc_event_counter_based_handle_t,
) -> ze_result_t {
    let Some(below) = below else { return MISSING };
    // SAFETY: the caller's promise.
    let code = unsafe { below(event, handle) };
    if code == SUCCESS && !handle.is_null() {
        // SAFETY: the driver has just written it.
        let data = unsafe { &mut (*handle).data };
        let mut bytes = data.map(|byte| byte.cast_unsigned());
        exchange(event.addr(), &mut bytes, &COUNTER_FDS);
        *data = bytes.map(u8::cast_signed);
    }
    code
}

/// # Safety
/// As zeEventCounterBasedOpenIpcHandle; `below` is that, or Intel's older form.
pub unsafe fn open_counter(
    below: ze_pfnEventCounterBasedOpenIpcHandle_t,
    context: ze_context_handle_t,
    handle: ze_ipc_event_counter_based_handle_t,
    event: *mut ze_event_handle_t,
) -> ze_result_t {
    let Some(below) = below else { return MISSING };
    let ready = match Ready::of(handle.data.map(|byte| byte.cast_unsigned()), &COUNTER_FDS) {
        Ok(ready) => ready,
        Err(code) => return code,
    };
    let handle = ze_ipc_event_counter_based_handle_t { data: ready.handle.map(u8::cast_signed) };
    // SAFETY: the caller's promise; the fds stay ours.
    let code = unsafe { below(context, handle, event) };
    if code == SUCCESS {
        // SAFETY: the driver has just written there.
        ready.keep(unsafe { *event });
    }
    code
}
