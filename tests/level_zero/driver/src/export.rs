//! Exports: IPC handles and fds. Must never make a second fd of one object.

use crate::allocation::{Allocation, Registry};
use crate::answer::Failure;
use crate::handle::{HANDLE_BYTES, Handle, Kind, Origin};
use crate::settings::{Layout, settings};
use level_zero_sys::ze_result_t;
use std::os::fd::RawFd;

/// Where a handle of a second tile has its allocation's number: behind all that the layouts use.
pub const TILE_NUMBER: usize = 48;

const INVALID: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;

/// The handle of the allocation at `address`, counted. An address inside an allocation gives the
/// handle of all of it.
pub fn get(registry: &mut Registry, address: usize) -> Result<[u8; HANDLE_BYTES], Failure> {
    let allocation = registry.find(address).ok_or(INVALID)?;
    let fd = allocation.object.exported(true)?;
    allocation.gets += 1;
    Ok(handle_of(allocation, fd).to_bytes(layout()))
}

/// The number of handles of an allocation.
pub fn tiles(registry: &mut Registry, address: usize) -> Result<u32, Failure> {
    let allocation = registry.find(address).ok_or(INVALID)?;
    Ok(1 + u32::from(allocation.second.is_some()))
}

/// The handle of one tile. The second one's says the allocation's number, too, which its memory
/// begins with.
pub fn get_tile(
    registry: &mut Registry,
    address: usize,
    tile: u32,
) -> Result<[u8; HANDLE_BYTES], Failure> {
    if tile == 0 {
        return get(registry, address);
    }
    let allocation = registry.find(address).ok_or(INVALID)?;
    let fd = allocation.second.as_ref().ok_or(INVALID)?.exported(true)?;
    let whole = Handle { pool_offset: 0, ..handle_of(allocation, fd) };
    let mut bytes = whole.to_bytes(layout());
    bytes[TILE_NUMBER..TILE_NUMBER + 8].copy_from_slice(&allocation.id.to_ne_bytes());
    Ok(bytes)
}

/// Counts down what [`get`] counted up. An unknown handle is no error, as in compute-runtime.
pub fn put(registry: &mut Registry, bytes: &[u8; HANDLE_BYTES]) {
    let handle = Handle::from_bytes(bytes, layout());
    let mut seconds = registry.all().filter_map(|allocation| allocation.second.as_ref());
    if let Some(second) = seconds.find(|second| second.exported_now() == Some(handle.fd)) {
        return second.take_back(1, true);
    }
    drop(seconds);
    let Some(allocation) = named_by(registry, &handle).filter(|allocation| allocation.gets > 0)
    else {
        return;
    };
    allocation.gets -= 1;
    allocation.object.take_back(1, true);
}

/// The exported fd of an allocation, which the driver keeps. It does not count: Free or the last
/// Put of a handle closes it.
pub fn fd(allocation: &Allocation) -> Result<RawFd, Failure> {
    match allocation.kind {
        Kind::Device => allocation.object.exported(false),
        Kind::Host => Err(ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE.into()),
    }
}

/// The fd in a handle of this process's own.
pub fn fd_of_handle(registry: &mut Registry, bytes: &[u8; HANDLE_BYTES]) -> Result<RawFd, Failure> {
    let handle = Handle::from_bytes(bytes, layout());
    named_by(registry, &handle).map(|_| handle.fd).ok_or(INVALID.into())
}

/// A handle for an fd that this process exported; any other fd is an error.
pub fn handle_of_fd(registry: &mut Registry, fd: RawFd) -> Result<[u8; HANDLE_BYTES], Failure> {
    let exported = registry.all().find(|allocation| allocation.object.exported_now() == Some(fd));
    let address = exported.ok_or(INVALID)?.pointer;
    get(registry, address)
}

fn handle_of(allocation: &Allocation, fd: RawFd) -> Handle {
    let origin = match layout() {
        Layout::Legacy => None,
        Layout::Opaque | Layout::OneNumber => Some(Origin { pid: std::process::id(), fd }),
    };
    Handle { fd, pool_offset: allocation.offset as u64, kind: allocation.kind, origin }
}

fn named_by<'a>(registry: &'a mut Registry, handle: &Handle) -> Option<&'a mut Allocation> {
    registry.all().find(|allocation| {
        allocation.object.exported_now() == Some(handle.fd)
            && allocation.offset as u64 == handle.pool_offset
    })
}

pub fn layout() -> Layout {
    settings().map_or(Layout::Legacy, |settings| settings.layout)
}
