//! CUDA's own IPC calls: for memory of [`malloc`](crate::malloc) the 64 bytes are the broker's
//! handle. Must never open memory that was not shared by such a call, nor take a driver's handle
//! for ours.

use crate::blocks::{Block, End, Name, Origin};
use crate::broker;
use crate::driver::{self, Function, MISSING};
use crate::malloc::{end_twin, let_reach, make_twin};
use crate::mapping;
use crate::memory::{blocks, export, records};
use crate::produce::{BLOCK_MARK, deposit_of, go_on};
use crate::records::{Pinned, Share};
use crate::result::{
    CuContext, CuDevicePtr, CuIpcHandle, CuMemHandle, CuResult, HANDLE_TYPE_POSIX_FD,
    INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, IpcHandle, IpcOpen, LAZY_PEER_ACCESS,
    OPERATING_SYSTEM, OUT_OF_MEMORY, SUCCESS,
};
use crate::say::{News, once};
use fdbroker_client::layer::lock;
use fdbroker_client::{Client, Deadline, Error, ErrorCode, Handle, MemoryKind, Registration};
use fdbroker_layer::{Fetched, REGISTER_TIMEOUT, SharedLease, is_absent};
use fdbroker_protocol::handle::{HANDLE_MAGIC, HANDLE_VERSION};
use std::ffi::{c_int, c_uint};
use std::os::fd::{AsFd, AsRawFd};

/// The handle of the block that an address lies in; other memory is the driver's matter.
/// OPERATING_SYSTEM: there is no broker; OUT_OF_MEMORY: a cap is full.
///
/// # Safety
/// That of cuIpcGetMemHandle.
pub unsafe fn get(handle: *mut CuIpcHandle, pointer: CuDevicePtr) -> CuResult {
    let Some(below) = driver::IPC_GET.get() else { return MISSING };
    let made = match blocks().at(pointer) {
        Some((_, Origin::Made(memory))) => Some(*memory),
        _ => None,
    };
    let Some(memory) = made.filter(|_| !handle.is_null()) else {
        // SAFETY: the caller's promise.
        return unsafe { below(handle, pointer) };
    };
    match share(memory) {
        Ok(shared) => {
            // SAFETY: the caller's promise.
            unsafe { *handle = shared.to_bytes() };
            SUCCESS
        }
        Err(code) => code,
    }
}

/// The handle of memory, which is registered the first time.
///
/// # Errors
/// The code for the program.
fn share(memory: CuMemHandle) -> Result<Handle, CuResult> {
    let client = broker::awaited().ok_or(OPERATING_SYSTEM)?;
    let is_current = |it: &Registration| client.is_current(it.id());
    let begun = records().begin_share(memory, is_current);
    let ahead = match begun.ok_or(INVALID_VALUE)? {
        Share::Known(registration) => return Ok(registration.handle),
        Share::New(ahead) => ahead,
    };
    let memory = ahead.memory;
    let enter = |registration| {
        let (counts, surplus) = records().enter_share(memory.id, registration, is_current);
        client.unregister_soon(surplus);
        counts.handle
    };
    let of_early = |(_, registration)| Ok(enter(registration));
    go_on(client, ahead, of_early, || register(client, memory).map(enter))
}

fn register(client: &Client, memory: Pinned) -> Result<Registration, CuResult> {
    let fd = export(memory.handle)?;
    let (deposit, deadline) = (deposit_of(memory), || Deadline::after(REGISTER_TIMEOUT));
    let registered = broker::through_outage(|| client.register(&deposit, fd.as_fd(), deadline()));
    registered.map_err(|error| refuse(News::NotShared, "cuIpcGetMemHandle", &error))
}

/// Opens a handle, of which the broker grants an fd; `below`: the driver's form of the call, which
/// opens a handle of its own. INVALID_HANDLE: it is void, of another user or another broker.
///
/// # Safety
/// That of cuIpcOpenMemHandle.
unsafe fn open_by(
    below: &Function<IpcOpen>,
    pointer: *mut CuDevicePtr,
    bytes: IpcHandle,
    flags: c_uint,
) -> CuResult {
    let Some(below) = below.get() else { return MISSING };
    let handle = Handle::from_bytes(bytes.0);
    let is_ours = handle.prefix.magic == HANDLE_MAGIC && handle.prefix.version == HANDLE_VERSION;
    // What a call without a context, and one with nothing to write to, get is the driver's answer.
    let Some(place) = driver::current().filter(|_| is_ours && !pointer.is_null()) else {
        // SAFETY: the caller's promise.
        return unsafe { below(pointer, bytes, flags) };
    };
    if flags != LAZY_PEER_ACCESS {
        return INVALID_VALUE;
    }
    match open_handle(&handle, place) {
        Ok(base) => {
            // SAFETY: the caller's promise.
            unsafe { *pointer = base };
            SUCCESS
        }
        Err(code) => code,
    }
}

/// # Safety
/// As cuIpcOpenMemHandle of CUDA 11.0.
pub unsafe fn open(pointer: *mut CuDevicePtr, handle: IpcHandle, flags: c_uint) -> CuResult {
    // SAFETY: the caller's promise.
    unsafe { open_by(&driver::IPC_OPEN_V2, pointer, handle, flags) }
}

/// # Safety
/// As cuIpcOpenMemHandle of CUDA 4.1.
pub unsafe fn open_v1(pointer: *mut CuDevicePtr, handle: IpcHandle, flags: c_uint) -> CuResult {
    // SAFETY: the caller's promise.
    unsafe { open_by(&driver::IPC_OPEN, pointer, handle, flags) }
}

/// Where a handle's memory is to be seen from.
type Here = (CuContext, c_int);

fn open_handle(handle: &Handle, here: Here) -> Result<CuDevicePtr, CuResult> {
    let name = name_of(handle);
    if let Some(base) = again(name, here.0) {
        return Ok(base);
    }
    let id = handle.owner_allocation_id;
    if records().is_shared(id, |it: &Registration| it.handle.prefix == handle.prefix) {
        // CUDA's answer to the exporter itself.
        return Err(INVALID_CONTEXT);
    }
    if blocks().is_full() {
        return Err(OUT_OF_MEMORY);
    }
    let fetched = broker::acquire(handle)
        .map_err(|error| refuse(News::NotOpened, "cuIpcOpenMemHandle", &error))?;
    let twin = make_twin(here.0)?;
    let opened = import(fetched, name, here, twin);
    if !matches!(opened, Ok((_, true))) {
        end_twin(twin);
    }
    opened.map(|(base, _)| base)
}

/// Imports and maps what was granted. Whether it is a new block, or another thread was faster.
fn import(
    fetched: Fetched,
    name: Name,
    (context, device): Here,
    twin: CuDevicePtr,
) -> Result<(CuDevicePtr, bool), CuResult> {
    let (size_bytes, asked_bytes) = sizes_of(&fetched).ok_or(INVALID_HANDLE)?;
    let (below, mut memory) = (driver::IMPORT.get().ok_or(MISSING)?, 0);
    let fd = std::ptr::without_provenance_mut(fetched.as_fd().as_raw_fd().unsigned_abs() as usize);
    // SAFETY: writes one handle; the fd, whose number stands in the pointer, stays ours.
    let code = unsafe { below(&raw mut memory, fd, HANDLE_TYPE_POSIX_FD) };
    let lease = fetched.lease();
    // What is imported counts as mapped once the fd is closed.
    fetched.close();
    if code != SUCCESS {
        return Err(code);
    }
    let devices = blocks().devices_of(context, device);
    let mapped = if driver::device_of(memory).is_some() {
        mapping::map(memory, size_bytes, &devices)
    } else {
        let why = "cuIpcOpenMemHandle: the memory is on a GPU that this process does not see";
        once(News::NotOpened, why);
        Err(INVALID_VALUE)
    };
    // From here on the mapping has the memory.
    driver::release(memory);
    let base = mapped?;
    let block = Block { base, size_bytes, asked_bytes, twin, context, device };
    // Looked for and entered under one lock: threads that open at once get one address.
    let mut blocks = blocks();
    if let Some(faster) = blocks.open_again(name, context, is_current) {
        drop(blocks);
        mapping::unmap(base, size_bytes);
        return Ok((faster, false));
    }
    let others = blocks.enter(block, Origin::Opened { name, opens: 1, lease }, &devices);
    drop(blocks);
    let_reach(block, &others).map(|base| (base, true))
}

/// The sizes of the memory and of what its owner has asked for, in bytes. `None`: cuIpcGetMemHandle
/// has not shared it.
fn sizes_of(fetched: &Fetched) -> Option<(usize, usize)> {
    let info = fetched.info();
    let asked_bytes = info.driver_data.as_bytes().strip_prefix(&BLOCK_MARK)?.try_into().ok()?;
    let asked_bytes = usize::try_from(u64::from_le_bytes(asked_bytes)).ok()?;
    let size_bytes = usize::try_from(info.facts.size_bytes).ok()?;
    let is_good = info.facts.kind == MemoryKind::CudaVmm && asked_bytes <= size_bytes;
    is_good.then_some((size_bytes, asked_bytes))
}

fn again(name: Name, context: CuContext) -> Option<CuDevicePtr> {
    blocks().open_again(name, context, is_current)
}

fn is_current(lease: &SharedLease) -> bool {
    lock(lease).is_current()
}

fn name_of(handle: &Handle) -> Name {
    let bytes = handle.to_bytes();
    std::array::from_fn(|at| bytes[at])
}

/// Closes once what was opened; the last close waits for the work of the context, as the driver's.
///
/// # Safety
/// That of cuIpcCloseMemHandle.
pub unsafe fn close(pointer: CuDevicePtr) -> CuResult {
    let Some(below) = driver::IPC_CLOSE.get() else { return MISSING };
    let ended = blocks().close(pointer);
    match ended {
        // SAFETY: the caller's promise.
        End::Drivers => unsafe { below(pointer) },
        End::Counted => SUCCESS,
        End::Last(block, origin) => {
            // A kernel may use it still.
            let code = end_twin(block.twin);
            if code == SUCCESS {
                mapping::unmap(block.base, block.size_bytes);
            } else {
                blocks().enter(block, origin, &[]);
            }
            code
        }
    }
}

/// Tells the user once why, and the code for the program.
fn refuse(news: News, call: &str, error: &Error) -> CuResult {
    if is_absent(error) {
        broker::say_absent(error);
    } else {
        once(news, format_args!("{call}: {error}"));
    }
    match error.code {
        ErrorCode::NoQuota | ErrorCode::LocalFdLimit => OUT_OF_MEMORY,
        ErrorCode::TimedOut | ErrorCode::Again | ErrorCode::OwnerSilent => OPERATING_SYSTEM,
        _ if is_absent(error) => OPERATING_SYSTEM,
        _ => INVALID_HANDLE,
    }
}
