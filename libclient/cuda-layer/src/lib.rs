//! A layer for CUDA programs that know nothing of fdbroker: what they export as an fd is a number
//! that works in any process of the node. Must never make a program fail that runs with the driver
//! alone, nor let a panic into it.
//!
//! **Layers** (tests/layers checks them): `asked, limits, result <- blocks, dynamic, records, say
//! <- driver <- mapping, memory <- broker <- consume, produce <- malloc <- contexts, copies, ipc,
//! looks <- functions <- linker`.
//!
//! LD_PRELOAD puts it before the driver. A program gets a driver's function by its linked symbol,
//! by dlsym ([`linker`]) or by cuGetProcAddress; for those in [`functions`] it gets the layer's.
//!
//! | call | what the layer does |
//! |---|---|
//! | cuMemCreate | makes a record of memory that can be exported as an fd |
//! | cuMemExportToShareableHandle | deposits the driver's fd at the broker, closes it, and answers a virtual fd; again: the same one, counted. Of memory mapped side by side, exported one after the other, the next one's fd is deposited before the program asks |
//! | close of the virtual fd | the last one ends the registration |
//! | cuMemImportFromShareableHandle | of a virtual fd: a grant; of an fd that pidfd_getfd gave: its lease. The lease lasts as long as the import |
//! | cuMemRelease | the last one waits while the memory is exported, because a recall needs the handle |
//! | cuMemRetainAllocationHandle, cuMemMap, cuMemUnmap | are counted |
//!
//! With `FDBROKER_CUDA_MALLOC=1` (`fdbroker run --cuda=malloc`) these, too:
//!
//! | call | what the layer does |
//! |---|---|
//! | cuMemAlloc from 2 MiB on, cuMemFree | makes VMM memory that an fd can share: a block, with a twin of the driver's own ([`malloc`]) |
//! | cuIpcGetMemHandle of a block | registers it once; the 64 bytes are the broker's handle |
//! | cuIpcOpenMemHandle, cuIpcCloseMemHandle | a grant, imported and mapped; again in a context: the same address, counted |
//! | cuPointerGetAttribute(s), cuMemGetAddressRange, cuMemRetainAllocationHandle | of a block what they answer for the driver's own memory ([`looks`]) |
//! | cuCtxEnablePeerAccess, cuCtxDisablePeerAccess | the device reaches the blocks of the other context, or no longer |
//! | cuMemcpy and its kin | the driver's; a block that it refuses because another device has it is brought in reach, and copied ([`copies`]) |
//! | cuCtxDestroy, cuDevicePrimaryCtxRelease, ...Reset | the blocks of a context that is gone go with it |
//!
//! **An exported allocation lives as long as with the driver alone**: while the program has a
//! handle, a mapping or an open number of it, or another process an import or an fd. The number
//! stands for the fd that the program would have open.
//!
//! The driver's own are: other types of handles, pools, multicast objects, memory that was
//! imported, and memory that the layer has not seen the making of. Without a broker everything is,
//! and one line on stderr says so.
//!
//! **Locks.** One each for the [`records`] and the [`blocks`]. Neither is held over a call of the
//! driver or of the broker, nor while the other is taken. A child of fork(2) has both of its own
//! ([`memory`]) and makes its own connection.
#![deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, missing_debug_implementations)]

mod asked;
mod blocks;
mod broker;
mod consume;
mod contexts;
mod copies;
mod driver;
mod dynamic;
mod functions;
mod ipc;
mod limits;
mod linker;
mod looks;
mod malloc;
mod mapping;
mod memory;
mod produce;
mod records;
mod result;
mod say;

/// Run by the dynamic linker as a constructor.
#[used]
// SAFETY: the section holds pointers to such functions (System V ABI, "Initialization and
// Termination Functions").
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    broker::install();
    // A program that is linked to the driver may call cuInit unseen.
    if dynamic::is_driver_loaded() {
        broker::note_driver();
    }
}
