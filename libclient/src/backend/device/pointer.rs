//! Device memory that somebody else in this process allocated, by pointer: one registration per
//! allocation. Must never give out a handle of memory that the driver does not know any more.

use super::foreign::{ByAddress, Foreign, Place};
use super::sharing::MemoryDevice;
use crate::deadline::Deadline;
use crate::deposit::Deposit;
use crate::error::Error;
use crate::exports::Exports;
use fdbroker_protocol::{AllocationId, Facts, Handle, MemoryKind, Share};

/// The handle of device memory that anybody in this process allocated: of the whole allocation,
/// whichever address in it `pointer` is, with the offset of `pointer` in it. With CUDA, what was
/// mapped by cuMemMap, as PyTorch's expandable segments are; with Level Zero, what this driver
/// allocated, with its handle bytes. It is registered by the first call, recallable; later calls
/// look it up, without a message. `device` is the memory's own (with Level Zero: one of the
/// pointer's driver), and recalls are answered as long as it is open.
///
/// Level Zero's fd is duplicated and the driver's own given back (zeMemPutIpcHandle), counted with
/// the application's Gets. The one thing that is not counted is `ze_external_memory_export_fd_t`:
/// who uses that fd number of the same memory must duplicate it.
///
/// Memory that is freed is found out when its address is exported again or recalled; until then the
/// broker's fd keeps it alive. So call [`retire_pointer`] before cuMemUnmap or zeMemFree.
///
/// # Errors
/// STALE: no memory of this driver's, or freed meanwhile. NOT_SUPPORTED: it is of another device,
/// or the driver does not export it (CUDA: it was allocated by cuMemAlloc, or without
/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR); `own_fds` of the client is 0, with Level Zero below
/// 2. LOCAL_FD_LIMIT: nothing lost, retry. As [`Exports::register`].
pub fn export_pointer<D: MemoryDevice>(
    device: &D,
    exports: &Exports,
    pointer: u64,
    share: Share,
    deadline: Deadline,
) -> Result<Handle, Error> {
    let (context, client) = (device.context(), exports.client());
    let place = context.find(pointer)?;
    let Place { base, bytes, id, .. } = place;
    // The kind is told by the driver.
    let facts = Facts::new(MemoryKind::DmaBuf, bytes)
        .owner_allocation_id(id)
        .device(device.ordinal())
        .gpu(device.gpu());
    let mut deposit = Deposit { base, recallable: true, share, ..facts.into() };
    if let Some(handle) = exports.known(&deposit) {
        return Ok(handle.at(pointer - base));
    }
    context.complete(client, place, &mut deposit)?;
    let foreign = Foreign { bytes, id, fd_offset: deposit.facts.fd_offset };
    let owner = device.owner(client);
    // Before it is registered: a recall may come at once.
    if !owner.has_buffer(base) {
        // A buffer of this library's at the same address stays what it is.
        owner.others.add(base, foreign);
    }
    let handle = exports.register(&deposit, || foreign.export(&**context, base), deadline)?;
    Ok(handle.at(pointer - base))
}

/// The allocation or mapping that `pointer` lies in is about to end: its registration is ended at
/// once, by one message without an answer; which it was. To be called before cuMemUnmap or
/// zeMemFree; after it, with the first address.
pub fn retire_pointer<D: MemoryDevice>(
    device: &D,
    exports: &Exports,
    pointer: u64,
) -> Option<AllocationId> {
    let base = device.context().find(pointer).map_or(pointer, |place| place.base);
    device.owner(exports.client()).others.forget(base);
    exports.retire(device.ordinal(), base)
}
