//! A Level Zero layer for unmodified programs: their IPC handles work by value, in any process of the node.
//! Must never make a program fail that runs with the driver alone, nor let a panic into it.
//!
//! **Layers** (tests/layers checks them): `below, key, limits, mapped, opened <- produced, say <- broker <- consume, produce <-
//! entry <- preload, tables`.
//!
//! Two ways in, one code path:
//!
//! - the loader takes it for its validation layer (`ZE_ENABLE_VALIDATION_LAYER=1`, and a directory with the link
//!   `libze_validation_layer.so.1` on LD_LIBRARY_PATH) and has it look at its tables: [`tables`];
//! - LD_PRELOAD puts it before the loader, and it exports the loader's functions: [`preload`]. The loader's tables then
//!   pass through it, too.
//!
//! | call | what the layer does |
//! |---|---|
//! | zeMemGetIpcHandle | deposits the driver's fd at the broker, once per allocation, and answers a [`key::Key`] |
//! | zeMemOpenIpcHandle | acquires the key's fd, has the driver open its own handle with it, closes the fd, keeps the lease |
//! | zeMemCloseIpcHandle, zeMemFree(Ext) of opened memory | gives the lease back |
//! | zeMemPutIpcHandle, zeMemFree(Ext), zeMemCloseIpcHandle, zeContextDestroy | the last one retires the allocation: its key never matches again |
//! | zeVirtualMemUnmap, zeVirtualMemFree, zePhysicalMemDestroy | retires what is exported in the range, or in the memory's ranges |
//! | zeVirtualMemMap | notes the range of the physical memory |
//!
//! **Fd numbers.** The driver's fd stays open until the program Puts its handle or frees the memory, so its number is good
//! for programs that pass the number alone, and an export at the fd limit fails as with the driver alone. In a key the
//! broker's answer counts, not the fd beside it: only where no broker knows the key is a program's own fd used.
//!
//! Without a broker each call goes to the driver as it is, and one line on stderr says so.
//!
//! **Locks.** One for [`produced`], one for [`opened`], one for [`mapped`]; none is taken while another is held. The driver's functions
//! that Put a handle and describe memory are called under the first: the driver never calls back. A child of fork(2)
//! starts anew, see [`broker`].

mod below;
mod broker;
mod consume;
mod entry;
mod key;
mod limits;
mod mapped;
mod opened;
mod preload;
mod produce;
mod produced;
mod say;
mod tables;
