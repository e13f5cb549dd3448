//! A Level Zero layer that makes the IPC handles of unmodified programs good by value: in any process of the node.
//! Must never be the reason that a program fails which runs with the driver alone, nor let a panic into it.
//!
//! Two ways in, one code path:
//!
//! - the loader takes it for its validation layer (`ZE_ENABLE_VALIDATION_LAYER=1`, and a directory with the link
//!   `libze_validation_layer.so.1` on LD_LIBRARY_PATH) and has it look at its tables: [`tables`];
//! - LD_PRELOAD puts it before the loader, whose functions it exports: [`preload`]. The loader's tables come by then too.
//!
//! | call | what the layer does |
//! |---|---|
//! | zeMemGetIpcHandle | deposits the driver's fd at the broker, once per allocation, and answers a [`key::Key`] |
//! | zeMemOpenIpcHandle | a key: acquires the fd, has the driver open its own handle with it, closes the fd, keeps the lease |
//! | zeMemCloseIpcHandle | gives the lease back |
//! | zeMemPutIpcHandle, zeMemFree(Ext), zeContextDestroy | the last one retires the allocation: its key never matches again |
//!
//! Without a broker each of them is the driver's own, and a line on stderr says so.
//!
//! **Locks.** One for what is exported, one for what is opened; neither is taken while the other is held. Functions of
//! the driver that give back or export again are called under the first: the driver never calls up. In a child of
//! fork(2) everything starts anew, see [`broker`].

mod below;
mod broker;
mod consume;
mod entry;
mod key;
mod limits;
mod preload;
mod produce;
mod say;
mod tables;
