//! CUDA memory that somebody else in this process allocated, by pointer: one registration per
//! allocation. Must never give out a handle of memory that the driver does not know any more, nor
//! keep that memory allocated.

use super::device::Device;
use super::driver::absent;
use crate::backend::device::{ByAddress, Foreign, MemoryDevice, Others};
use crate::deadline::Deadline;
use crate::deposit::Deposit;
use crate::error::Error;
use crate::exports::Exports;
use fdbroker_protocol::{AllocationId, Facts, Handle, MemoryKind, Share};

/// The handle of device memory that anybody in this process mapped with cuMemMap, as PyTorch's
/// expandable segments are: of the whole mapping, whichever address in it `pointer` is, with the
/// offset of `pointer` in it. It is registered by the first call, recallable; later calls look it
/// up, without a message. `device` is the memory's own, and recalls are answered as long as it is
/// open.
///
/// Memory that is freed is found out when its address is exported again or recalled; until then the
/// broker's fd keeps it alive. So call [`retire_pointer`] before cuMemUnmap.
///
/// # Errors
/// STALE: no device memory, or freed meanwhile. NOT_SUPPORTED: it is of another device, or was
/// allocated in a way that no fd can share: by cuMemAlloc, or without
/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; `own_fds` of the client is 0. LOCAL_FD_LIMIT: nothing
/// lost, retry. As [`Exports::register`].
pub fn export_pointer(
    device: &Device,
    exports: &Exports,
    pointer: u64,
    share: Share,
    deadline: Deadline,
) -> Result<Handle, Error> {
    let context = device.context();
    let range = context.find(pointer)?;
    let base = range.base;
    let facts = Facts {
        owner_allocation_id: range.id,
        device: device.ordinal(),
        ..Facts::new(MemoryKind::CudaVmm, range.bytes)
    };
    let deposit = Deposit { base, recallable: true, share, ..facts.into() };
    if let Some(handle) = exports.known(&deposit) {
        return Ok(handle.at(pointer - base));
    }
    if exports.client().own_fds() == 0 {
        return Err(absent("every export is a new fd, so `own_fds` must be 1 or more"));
    }
    context.check_shareable(base)?;

    let foreign = Foreign { bytes: range.bytes, id: range.id, fd_offset: 0 };
    let owner = device.owner(exports.client());
    // Before it is registered: a recall may come at once.
    if !owner.has_buffer(base) {
        // A buffer of this library's at the same address stays what it is.
        owner.others.add(base, foreign);
    }
    let handle = exports.register(&deposit, || foreign.export(&**context, base), deadline)?;
    Ok(handle.at(pointer - base))
}

/// The mapping that `pointer` lies in is about to end: its registration is ended at once, by one
/// message without an answer; which it was. To be called before cuMemUnmap; after it, with the
/// mapping's first address.
pub fn retire_pointer(device: &Device, exports: &Exports, pointer: u64) -> Option<AllocationId> {
    let base = device.context().find(pointer).map_or(pointer, |range| range.base);
    device.owner(exports.client()).others.forget(base);
    exports.retire(device.ordinal(), base)
}
