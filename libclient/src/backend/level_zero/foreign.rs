//! Memory that somebody else in this process allocated, by pointer: one registration per
//! allocation. Must never give out a handle of memory that the driver does not know any more.

use super::device::{Device, check_window};
use super::fd;
use crate::backend::device::{Foreign, MemoryDevice, Others};
use crate::deadline::Deadline;
use crate::deposit::{Deposit, DriverData};
use crate::error::Error;
use crate::exports::Exports;
use fdbroker_protocol::{AllocationId, Facts, Handle, Share};
use level_zero_sys::without_exporter;
use std::os::fd::AsFd;

/// The handle of device memory that anybody in this process allocated with this driver: of the
/// whole allocation, whichever address in it `pointer` is, with the offset of `pointer` in it. The
/// allocation is registered by the first call, recallable, with the driver's handle bytes; later
/// calls look it up, without a message. `device` must be one of the pointer's driver, and the
/// recalls are answered as long as it is open.
///
/// The driver's fd is duplicated and the driver's own given back (zeMemPutIpcHandle), counted with
/// the application's Gets. The one thing that is not counted is `ze_external_memory_export_fd_t`:
/// who uses that fd number of the same memory must duplicate it.
///
/// Memory that is freed is found out when its address is exported again or recalled; until then the
/// broker's fd keeps it alive. So call [`retire_pointer`] before zeMemFree.
///
/// # Errors
/// STALE: no memory of this driver's, or freed meanwhile. NOT_SUPPORTED: the driver does not export
/// it; `own_fds` of the client is below 2. LOCAL_FD_LIMIT: nothing lost, retry. As
/// [`Exports::register`].
pub fn export_pointer(
    device: &Device,
    exports: &Exports,
    pointer: u64,
    share: Share,
    deadline: Deadline,
) -> Result<Handle, Error> {
    let context = device.context();
    let range = context.range(pointer)?;
    let base = range.base;
    let facts = Facts {
        owner_allocation_id: range.id,
        device: device.ordinal(),
        ..Facts::new(fdbroker_protocol::MemoryKind::DmaBuf, range.bytes)
    };
    let mut deposit = Deposit { base, recallable: true, share, ..facts.into() };
    if let Some(handle) = exports.known(&deposit) {
        return Ok(handle.at(pointer - base));
    }
    check_window(exports.client())?;

    // What the fd is must be known before the one that is sent is made.
    let first = context.export_any(base)?;
    deposit.facts.kind = fd::kind_of(first.fd.as_fd());
    deposit.driver_data = DriverData::new(&without_exporter(first.handle))?;
    // In host memory those bytes have had other uses, and it is in no pool.
    deposit.facts.fd_offset = if range.is_device { fd::offset_in(&first.handle) } else { 0 };
    drop(first);

    let foreign = Foreign { bytes: range.bytes, id: range.id, fd_offset: deposit.facts.fd_offset };
    let owner = device.owner(exports.client());
    // Before it is registered: a recall may come at once.
    if !owner.has_buffer(base) {
        // A buffer of this library's at the same address stays what it is.
        owner.others.add(base, foreign);
    }
    let handle = exports.register(&deposit, || foreign.export(&**context, base), deadline)?;
    Ok(handle.at(pointer - base))
}

/// The allocation that `pointer` lies in is about to be freed: its registration is ended at once,
/// by one message without an answer; which it was. To be called before zeMemFree; after it, with
/// the allocation's first address.
pub fn retire_pointer(device: &Device, exports: &Exports, pointer: u64) -> Option<AllocationId> {
    let base = device.context().range(pointer).map_or(pointer, |range| range.base);
    device.owner(exports.client()).others.forget(base);
    exports.retire(device.ordinal(), base)
}
