//! The producer's side: memory made, exported, mapped and released. Must never let a number lead to
//! other memory than the program exported, nor free memory that another process can still ask for.

use crate::broker;
use crate::driver::{self, MISSING};
use crate::memory::{export as export_below, follow, records};
use crate::records::{Ahead, Begun, Id, Pinned, Release};
use crate::result::{
    CuDevicePtr, CuMemAllocationProp, CuMemHandle, CuResult, HANDLE_TYPE_POSIX_FD, INVALID_VALUE,
    SUCCESS,
};
use crate::say::{News, once};
use fdbroker_client::{
    Client, Deadline, Deposit, DriverData, EarlyRegistration, Error, ErrorCode, Facts, MemoryKind,
    Registration,
};
use fdbroker_layer::{REGISTER_TIMEOUT, is_absent};
use fdbroker_virtual_fds::VirtualFd;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::{AsFd, IntoRawFd, RawFd};

/// # Safety
/// As cuMemCreate.
pub unsafe fn create(
    handle: *mut CuMemHandle,
    size: usize,
    prop: *const CuMemAllocationProp,
    flags: c_ulonglong,
) -> CuResult {
    let Some(below) = driver::CREATE.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let code = broker::allocate(|| unsafe { below(handle, size, prop, flags) });
    if code != SUCCESS || handle.is_null() || prop.is_null() {
        return code;
    }
    // SAFETY: the driver has read the one and written the other.
    let (types, handle) = unsafe { ((*prop).requested_handle_types, *handle) };
    let is_exportable = types & HANDLE_TYPE_POSIX_FD != 0;
    let gone = if is_exportable {
        records().create(handle, size as u64)
    } else {
        records().forget(handle)
    };
    follow(gone, broker::known());
    code
}

/// # Safety
/// As cuMemRelease.
pub unsafe fn release(handle: CuMemHandle) -> CuResult {
    let Some(below) = driver::RELEASE.get() else { return MISSING };
    let begun = records().begin_release(handle);
    match begun {
        // SAFETY: the caller's promise.
        Release::Drivers => unsafe { below(handle) },
        Release::Refused => INVALID_VALUE,
        Release::Held => SUCCESS,
        Release::Real(id) => {
            // SAFETY: the caller's promise.
            let code = unsafe { below(handle) };
            let follows = records().end_release(id, handle, code == SUCCESS);
            follow(follows, broker::known());
            code
        }
    }
}

/// # Safety
/// As cuMemRetainAllocationHandle.
pub unsafe fn retain(handle: *mut CuMemHandle, address: *mut c_void) -> CuResult {
    let Some(below) = driver::RETAIN.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let code = unsafe { below(handle, address) };
    if code == SUCCESS && !handle.is_null() {
        // SAFETY: the driver has just written it.
        records().retain(unsafe { *handle }, address.addr() as u64);
    }
    code
}

/// # Safety
/// As cuMemMap.
pub unsafe fn map(
    base: CuDevicePtr,
    size: usize,
    offset: usize,
    handle: CuMemHandle,
    flags: c_ulonglong,
) -> CuResult {
    let Some(below) = driver::MAP.get() else { return MISSING };
    if records().is_released(handle) {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    let code = unsafe { below(base, size, offset, handle, flags) };
    if code == SUCCESS {
        let follows = records().map(base, size as u64, handle);
        follow(follows, broker::known());
    }
    code
}

/// # Safety
/// As cuMemUnmap.
pub unsafe fn unmap(base: CuDevicePtr, size: usize) -> CuResult {
    let Some(below) = driver::UNMAP.get() else { return MISSING };
    let maps = records().take_maps(base, size as u64);
    // SAFETY: the caller's promise.
    let code = unsafe { below(base, size) };
    if code != SUCCESS {
        records().put_maps(maps);
        return code;
    }
    let follows = records().end_maps(&maps);
    follow(follows, broker::known());
    code
}

/// # Safety
/// As cuMemExportToShareableHandle.
pub unsafe fn export(
    shareable: *mut c_void,
    handle: CuMemHandle,
    kind: c_int,
    flags: c_ulonglong,
) -> CuResult {
    let Some(below) = driver::EXPORT.get() else { return MISSING };
    if records().is_released(handle) {
        return INVALID_VALUE;
    }
    let is_fd = kind == HANDLE_TYPE_POSIX_FD && flags == 0 && !shareable.is_null();
    if is_fd
        && records().is_exportable(handle)
        && let Some(client) = broker::awaited()
        && let Some(exported) = export_number(client, handle)
    {
        // SAFETY: the caller's promise: room for an int, by the type of handle.
        return exported.map_or_else(
            |code| code,
            |fd| unsafe {
                shareable.cast::<c_int>().write(fd);
                SUCCESS
            },
        );
    }
    // SAFETY: the caller's promise.
    unsafe { below(shareable, handle, kind, flags) }
}

/// The number for a handle: a virtual fd, or the driver's own fd where the broker does not take it;
/// an error is the driver's. `None`: the export is the driver's matter alone.
fn export_number(client: &Client, handle: CuMemHandle) -> Option<Result<RawFd, CuResult>> {
    let begun = records().begin_export(handle, |one| client.is_current(one.id()));
    let ahead = match begun {
        Begun::Drivers => return None,
        Begun::Known(number) => return Some(Ok(number.number())),
        Begun::New(ahead) => ahead,
    };
    let memory = ahead.memory;
    Some(go_on(
        client,
        ahead,
        |registered| Ok(enter(client, memory.id, registered)),
        || export_now(client, memory),
    ))
}

/// Goes on in a row: takes the early registration of a pinned record, which `of_early` enters, or
/// else exports and registers it by `now`; and registers early what comes next. Ends the pin.
pub fn go_on<T>(
    client: &Client,
    Ahead { memory, early, is_in_row }: Ahead<EarlyRegistration>,
    of_early: impl FnOnce((VirtualFd, Registration)) -> T,
    now: impl FnOnce() -> T,
) -> T {
    let made = match early {
        Some(early) => {
            // The driver takes longer for the next export than the broker for its answer to the
            // early one.
            export_next(client, memory.id);
            take_early(client, early).map_or_else(now, of_early)
        }
        None => {
            let left = records().leave_row();
            follow(left, Some(client));
            let made = now();
            if is_in_row {
                export_next(client, memory.id);
            }
            made
        }
    };
    let follows = records().unpin(memory.id);
    follow(follows, Some(client));
    made
}

/// Exports and registers a pinned record's memory.
fn export_now(client: &Client, memory: Pinned) -> Result<RawFd, CuResult> {
    let fd = export_below(memory.handle)?;
    let register = || client.register(&deposit_of(memory), fd.as_fd(), soon());
    let registered =
        broker::through_outage(register).and_then(|registration| numbered(client, registration));
    Ok(match registered {
        Ok(registered) => enter(client, memory.id, registered),
        Err(error) => {
            say_refused(&error);
            fd.into_raw_fd()
        }
    })
}

/// Exports and registers early what the program will most likely export next.
fn export_next(client: &Client, after: Id) {
    let next = records().begin_early(after);
    let deposits: Vec<Deposit> = next.iter().map(|it| deposit_of(*it)).collect();
    let export = |index: usize| export_below(next[index].handle).ok();
    let early = client.register_early(&deposits, export, soon());
    let follows = records().end_early(&next, early);
    follow(follows, Some(client));
}

/// The answer to what was registered early. `None`: it was refused, or has ended since, by an
/// administrator for example.
fn take_early(client: &Client, early: EarlyRegistration) -> Option<(VirtualFd, Registration)> {
    let registration = client.take_early(early, soon()).ok()?;
    if !client.is_current(registration.id()) {
        client.unregister_soon([registration]);
        return None;
    }
    numbered(client, registration).ok()
}

fn soon() -> Deadline {
    Deadline::after(REGISTER_TIMEOUT)
}

/// What the driver data of a block begins with, which cuIpcGetMemHandle shares; behind it 8 bytes
/// say the size that was asked for.
pub const BLOCK_MARK: [u8; 8] = *b"cudaIpc1";

/// What the broker is told of memory that an fd shares.
pub fn deposit_of(memory: Pinned) -> Deposit {
    let (owner_allocation_id, gpu) = (memory.id, driver::gpu_of(memory.handle));
    let facts = Facts::new(MemoryKind::CudaVmm, memory.size_bytes)
        .owner_allocation_id(owner_allocation_id)
        .gpu(gpu);
    let deposit = Deposit::from(facts).recallable(true).virtual_fd(true);
    if memory.asked_bytes == 0 {
        return deposit;
    }
    let data = [BLOCK_MARK, memory.asked_bytes.to_le_bytes()].concat();
    DriverData::new(&data).map_or(deposit, |data| deposit.driver_data(data))
}

/// Enters a registration; the number that counts.
fn enter(client: &Client, id: Id, (number, registration): (VirtualFd, Registration)) -> RawFd {
    let is_current = |one: &Registration| client.is_current(one.id());
    let (number, surplus) = records().enter_export(id, number, registration, is_current);
    client.unregister_soon(surplus);
    number.number()
}

fn numbered(
    client: &Client,
    registration: Registration,
) -> Result<(VirtualFd, Registration), Error> {
    match registration.virtual_fd() {
        Some(number) => Ok((number, registration)),
        None => {
            client.unregister_soon([registration]);
            let context = "the broker has more slots than virtual fds (limits.max_slots)";
            Err(Error::new(ErrorCode::NotSupported, context))
        }
    }
}

fn say_refused(error: &Error) {
    if is_absent(error) {
        broker::say_absent(error)
    } else {
        once(
            News::NotRegistered,
            format_args!("cuMemExportToShareableHandle: {error}; the fd is the driver's own"),
        )
    }
}
