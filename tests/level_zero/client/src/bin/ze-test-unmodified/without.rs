//! Without a broker: everything is as if the layer were not there.

use crate::broker;
use crate::fault::{Outcome, holds, refused, same};
use crate::gpu::{Gpu, handle_fd, is_open, is_virtual, pattern, with_fd};
use crate::peer::{Order, Peer};
use crate::sharing::{BYTES, INVALID, WRITTEN_HERE, export};
use level_zero_sys::ze_ipc_mem_handle_t;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Where the layer's handles have their magic, and the driver's a pid or a type:
/// `level-zero-layer/src/key.rs`.
const MAGIC: std::ops::Range<usize> = 16..20;

fn is_of_the_layer(handle: ze_ipc_mem_handle_t) -> bool {
    handle.to_bytes()[MAGIC] == *b"FZE1"
}

/// The driver's handle, good for who has the fd.
fn is_the_drivers(gpu: &Gpu, peer: &Peer) -> Outcome {
    let (memory, handle) = export(gpu)?;
    same("a handle of the layer", is_of_the_layer(handle), false)?;
    same("its fd", is_open(handle_fd(handle)), true)?;
    // SAFETY: the driver's fd, which lives until the memory is freed.
    let fd = unsafe { BorrowedFd::borrow_raw(handle_fd(handle)) }.try_clone_to_owned()?;
    peer.tell_with(Order::OpenMoved, 0, 0, handle, Some(fd.as_fd()))??;
    same("the peer reads", peer.number(Order::IsPattern, BYTES, WRITTEN_HERE)?, 1)?;
    peer.tell(Order::Close, 0, 0)??;

    let opened = gpu.open_handle(with_fd(handle, fd.as_raw_fd()))?;
    holds(gpu.read(opened, BYTES)? == pattern(BYTES, WRITTEN_HERE), || "other bytes".to_string())?;
    gpu.close_handle(opened)?;
    if let Err(error) = gpu.put(handle) {
        same("Put", error.code(), None)?;
    }
    Ok(gpu.free(memory)?)
}

pub fn absent(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    is_the_drivers(gpu, &peer)?;
    is_the_drivers(gpu, &peer)?;
    peer.finish()
}

/// How often a broker is started again.
const RESTARTS: u32 = 5;

/// A broker that is killed is waited for. After the last one a program's own fd opens the memory,
/// and new handles are the driver's.
pub fn lost(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let mut killed = 0;
    for _ in 0..RESTARTS {
        killed = broker::kill_after(killed)?;
        let (memory, handle) = export(gpu)?;
        same("a handle of the layer", is_of_the_layer(handle), true)?;
        peer.tell_with(Order::Open, 0, 0, handle, None)??;
        same("the peer reads", peer.number(Order::IsPattern, BYTES, WRITTEN_HERE)?, 1)?;
        peer.tell(Order::Close, 0, 0)??;
        gpu.free(memory)?;
    }
    let (memory, handle) = export(gpu)?;
    same("a handle of the layer", is_of_the_layer(handle), true)?;
    // SAFETY: the driver's fd, which lives until the memory is freed.
    let fd = unsafe { BorrowedFd::borrow_raw(handle_fd(handle)) }.try_clone_to_owned()?;
    let opened = gpu.open_handle(handle)?;
    peer.tell_with(Order::Open, 0, 0, handle, None)??;
    broker::kill_after(killed)?;

    // Opened memory stays in both processes, and Close works as before.
    same("the peer reads", peer.number(Order::IsPattern, BYTES, WRITTEN_HERE)?, 1)?;
    holds(gpu.read(opened, BYTES)? == pattern(BYTES, WRITTEN_HERE), || "other bytes".to_string())?;
    gpu.close_handle(opened)?;
    peer.tell(Order::Close, 0, 0)??;

    // A program's own fd is good again: nobody can be asked about the key.
    peer.tell_with(Order::OpenMoved, 0, 0, handle, Some(fd.as_fd()))??;
    same("the peer reads", peer.number(Order::IsPattern, BYTES, WRITTEN_HERE)?, 1)?;
    peer.tell(Order::Close, 0, 0)??;
    let by_value = peer.tell_with(Order::Open, 0, 0, handle, None)?;
    if is_virtual(handle_fd(handle)) {
        // Only the broker knows what is behind a virtual fd.
        refused("the peer's Open by value", by_value, INVALID)?;
    } else {
        // The driver resolves an opaque handle by value where processes may trace each other, as
        // these may.
        by_value?;
        same("the peer reads", peer.number(Order::IsPattern, BYTES, WRITTEN_HERE)?, 1)?;
        peer.tell(Order::Close, 0, 0)??;
    }
    is_the_drivers(gpu, &peer)?;

    gpu.free(memory)?;
    refused("the peer's Open", peer.tell_with(Order::Open, 0, 0, handle, None)?, INVALID)?;
    peer.finish()
}
