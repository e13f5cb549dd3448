//! A Level Zero layer for unmodified programs: their IPC handles work by value, in any process of
//! the node. Must never make a program fail that runs with the driver alone, nor let a panic into
//! it.
//!
//! **Layers** (tests/layers checks them): `below, guard, key, limits, mapped, opened <-
//! allocation <- kept, produced, say <- broker <- retire <- consume, produce <- pools, tiles <-
//! entry <- preload, tables`.
//!
//! Two ways in, one code path:
//!
//! - the loader takes it for its validation layer (`ZE_ENABLE_VALIDATION_LAYER=1`, and a directory
//!   with the link `libze_validation_layer.so.1` on LD_LIBRARY_PATH) and has it look at its tables:
//!   [`tables`];
//! - LD_PRELOAD puts it before the loader, and it exports the loader's functions: [`preload`]. The
//!   loader's tables then pass through it, too.
//!
//! `fdbroker run --level-zero` does both: the first catches every user of the loader, and only the
//! second can put the C library's functions of [`fdbroker_virtual_fds`] before the C library. A
//! call passes the layer once all the same.
//!
//! | call | what the layer does |
//! |---|---|
//! | zeMemGetIpcHandle, zexMemGetIpcHandles | deposits the driver's fd at the broker, once per allocation, and answers a [`key::Key`] |
//! | zeMemOpenIpcHandle, zexMemOpenIpcHandles | acquires the key's fd, has the driver open its own handle with it, closes the fd, keeps the lease |
//! | all that allocate memory | a moment's patience with a full card: the broker may still be closing what has ended |
//! | zeMemGetIpcHandleFromFileDescriptorExp and back | translates between keys and virtual fds |
//! | zeMemCloseIpcHandle, zeMemFree(Ext) of opened memory | gives the lease back |
//! | zeMemGetAllocProperties | notes memory whose fd the program asks for: the driver's, which then stays open |
//! | zeMemPutIpcHandle | counts. What was sent stays good, and the next Get costs nothing |
//! | zeMemFree(Ext), zeMemCloseIpcHandle, zeContextDestroy, close(2) of the last virtual fd | retires the allocation: its key never matches again |
//! | zeVirtualMemUnmap, zeVirtualMemFree, zePhysicalMemDestroy | retires what is exported in the range, or in the memory's ranges |
//! | zeVirtualMemMap | notes the range of the physical memory |
//! | zeEventPoolGetIpcHandle | a virtual fd stands in the handle in the place of the driver's |
//! | its Open, Close, zeEventPoolDestroy | as for memory |
//!
//! **Fd numbers.** A key begins with a virtual fd, and nothing that the program has names the
//! driver's fd. So the layer Puts the driver's handle once the broker has the fd, and this process
//! holds no fd for what it has exported; a recall exports anew. Of a program that sends virtual fds
//! of its own by SCM_RIGHTS the last export's handle waits for its message, which then needs no
//! broker: one fd, until that message or the next export. The driver's fd that a program has
//! asked for (`ze_external_memory_export_fd_t`) is the same as a handle's: there the handle stays
//! open until the program Puts its own, as without the layer. Where the loader has no Put (before
//! spec 1.6) the driver's fd stays open until the memory is freed. Where this library does not
//! stand before the C library, a key begins with the driver's fd, which stays open until the
//! program Puts its handles.
//!
//! In a key the broker's answer counts, not the fd beside it: only where no broker knows the key is
//! a program's own fd used.
//!
//! **Opened memory is not kept** for the next Open: what the driver opens and closes is the
//! program's matter. Libraries that open handles often keep them open by themselves (MPICH, oneCCL
//! and UMF, by default). What is kept for a moment is the fd that the broker has granted, see
//! fdbroker-layer.
//!
//! Without a broker each call goes to the driver as it is, and one line on stderr says so.
//!
//! **Locks.** One each for [`produced`], [`opened`], [`mapped`] and [`kept`]; none is taken while
//! another is held, and none is held over a call of the driver's. A child of fork(2) starts anew,
//! see [`broker`].
#![deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, missing_debug_implementations)]

mod allocation;
mod below;
mod broker;
mod consume;
mod entry;
mod guard;
mod kept;
mod key;
mod limits;
mod mapped;
mod opened;
mod pools;
mod preload;
mod produce;
mod produced;
mod retire;
mod say;
mod tables;
mod tiles;

/// Run by the dynamic linker as a constructor: a program may use a virtual fd before it uses Level
/// Zero.
#[used]
// SAFETY: the section holds pointers to such functions (System V ABI, "Initialization and
// Termination Functions").
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    broker::install();
}
