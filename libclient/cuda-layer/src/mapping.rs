//! VMM memory at addresses: reserved, mapped, reached by devices, and taken down. Must never leave
//! behind what a step before had made.

use crate::driver::{self, MISSING};
use crate::limits::{BLOCK_LEAST, DEVICES_MOST};
use crate::result::{
    CuDevicePtr, CuMemAccessDesc, CuMemAllocationProp, CuMemHandle, CuResult, DECOMPRESSION,
    GRANULARITY_MINIMUM, HANDLE_TYPE_POSIX_FD, HAS_POSIX_FD, HAS_RDMA_WITH_VMM, HAS_VMM,
    HW_DECOMPRESS, LOCATION_DEVICE, NO_ACCESS, PINNED, READ_WRITE, SUCCESS,
};
use std::ffi::c_int;
use std::sync::OnceLock;

/// What VMM memory of a device is like.
struct Kind {
    /// The granularity, in bytes.
    step: usize,
    has_rdma: bool,
    /// The driver knows memory for hardware decompression, which all its own is.
    has_decompression: bool,
}

/// What memory of a device is to be that an fd can share, and `bytes` rounded up to its
/// granularity. `None`: it has no such memory.
pub fn of_device(device: c_int, bytes: usize) -> Option<(CuMemAllocationProp, usize)> {
    static SEEN: [OnceLock<Option<Kind>>; DEVICES_MOST] = [const { OnceLock::new() }; DEVICES_MOST];
    let seen = SEEN.get(usize::try_from(device).ok()?)?;
    let kind = seen.get_or_init(|| look_at(device)).as_ref()?;
    Some((prop(device, kind), bytes.checked_next_multiple_of(kind.step)?))
}

fn look_at(device: c_int) -> Option<Kind> {
    let has = |what| driver::attribute_of(device, what) == Some(1);
    if !has(HAS_VMM) || !has(HAS_POSIX_FD) {
        return None;
    }
    let mut kind = Kind {
        step: 0,
        has_rdma: has(HAS_RDMA_WITH_VMM),
        has_decompression: driver::attribute_of(device, DECOMPRESSION).is_some(),
    };
    let prop = prop(device, &kind);
    // SAFETY: reads the structure, which is whole, and writes one size.
    let answer = unsafe {
        driver::GRANULARITY.get()?(&raw mut kind.step, &raw const prop, GRANULARITY_MINIMUM)
    };
    let is_good = answer == SUCCESS && kind.step > 0;
    kind.step = kind.step.max(BLOCK_LEAST);
    is_good.then_some(kind)
}

fn prop(device: c_int, kind: &Kind) -> CuMemAllocationProp {
    CuMemAllocationProp {
        kind: PINNED,
        requested_handle_types: HANDLE_TYPE_POSIX_FD,
        location_kind: LOCATION_DEVICE,
        location: device,
        gpu_direct_rdma: kind.has_rdma.into(),
        usage: if kind.has_decompression { HW_DECOMPRESS } else { 0 },
        ..CuMemAllocationProp::default()
    }
}

/// Maps memory at an address of its own, reached by these devices.
///
/// # Errors
/// The driver's, and nothing is left.
pub fn map(
    handle: CuMemHandle,
    size_bytes: usize,
    devices: &[c_int],
) -> Result<CuDevicePtr, CuResult> {
    let base = reserve(size_bytes)?;
    // SAFETY: a range that was reserved just now, and a handle of the caller's.
    let mapped = driver::MAP.get().map(|map| unsafe { map(base, size_bytes, 0, handle, 0) });
    if mapped != Some(SUCCESS) {
        unreserve(base, size_bytes);
        return Err(mapped.unwrap_or(MISSING));
    }
    match reach(base, size_bytes, devices, true) {
        SUCCESS => Ok(base),
        code => {
            unmap(base, size_bytes);
            Err(code)
        }
    }
}

/// Lets devices reach what is mapped, or no longer.
pub fn reach(base: CuDevicePtr, size_bytes: usize, devices: &[c_int], may: bool) -> CuResult {
    let flags = if may { READ_WRITE } else { NO_ACCESS };
    let desc = |location: &c_int| CuMemAccessDesc {
        location_kind: LOCATION_DEVICE,
        location: *location,
        flags,
    };
    let descs: Vec<_> = devices.iter().map(desc).collect();
    if descs.is_empty() {
        return SUCCESS;
    }
    let Some(set) = driver::SET_ACCESS.get() else { return MISSING };
    // SAFETY: as many structures as are said. Of addresses that are not mapped any more the driver
    // answers an error.
    unsafe { set(base, size_bytes, descs.as_ptr(), descs.len()) }
}

/// Takes down what [`map`] has made. What the driver answers changes nothing: nobody can use it.
pub fn unmap(base: CuDevicePtr, size_bytes: usize) {
    if let Some(unmap) = driver::UNMAP.get() {
        // SAFETY: a mapping of the layer's, which the program has given up.
        unsafe { unmap(base, size_bytes) };
    }
    unreserve(base, size_bytes);
}

fn reserve(size_bytes: usize) -> Result<CuDevicePtr, CuResult> {
    let (reserve, mut base) = (driver::RESERVE.get().ok_or(MISSING)?, 0);
    // SAFETY: writes one address through the pointer.
    match unsafe { reserve(&raw mut base, size_bytes, 0, 0, 0) } {
        SUCCESS => Ok(base),
        code => Err(code),
    }
}

fn unreserve(base: CuDevicePtr, size_bytes: usize) {
    if let Some(free) = driver::UNRESERVE.get() {
        // SAFETY: a range that `reserve` has made, with nothing mapped in it.
        unsafe { free(base, size_bytes) };
    }
}
