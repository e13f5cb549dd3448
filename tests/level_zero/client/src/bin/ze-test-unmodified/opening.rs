//! Opening a handle in several ways. The exporter is this process itself, which the layer treats
//! like any consumer.

use crate::broker;
use crate::fault::{Fault, Outcome, holds, refused, same};
use crate::gpu::{Gpu, handle_fd, pattern};
use crate::peer::{Order, Peer};
use crate::sharing::{BYTES, INVALID, WRITTEN_HERE, export};
use level_zero_sys::ze_ipc_mem_handle_t;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Offsets of the node and of a byte of the MAC in the layer's handle:
/// `level-zero-layer/src/key.rs`.
const NODE: usize = 32;
const MAC: usize = 48;

pub fn twice(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    peer.tell(Order::Allocate, BYTES, 0)??;
    peer.tell(Order::Write, BYTES, WRITTEN_HERE)??;
    let handle = peer.tell(Order::Get, 0, 0)??.handle;

    let first = gpu.open_handle(handle)?;
    let second = gpu.open_handle(handle)?;
    broker::wait_for("two leases", |counts| counts.mapped_leases == 2)?;
    gpu.close_handle(first)?;
    broker::wait_for("one lease", |counts| counts.mapped_leases == 1)?;
    holds(gpu.read(second, BYTES)? == pattern(BYTES, WRITTEN_HERE), || {
        "closing one closed the other".to_string()
    })?;
    gpu.close_handle(second)?;
    refused("a third Close", gpu.close_handle(second), INVALID)?;
    broker::wait_for("no lease", |counts| counts.mapped_leases == 0)?;
    peer.tell(Order::Free, 0, 0)??;
    peer.finish()
}

pub fn freed(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    peer.tell(Order::Allocate, BYTES, 0)??;
    let handle = peer.tell(Order::Get, 0, 0)??.handle;
    gpu.free(gpu.open_handle(handle)?)?;
    gpu.free_ext(gpu.open_handle(handle)?)?;
    broker::wait_for("no lease", |counts| counts.mapped_leases + counts.open_leases == 0)?;
    peer.tell(Order::Free, 0, 0)??;
    peer.finish()
}

/// With equal fd numbers in an opaque handle, the driver would fetch the fd from the exporter,
/// which takes the right to trace it.
pub fn same_number(gpu: &Gpu) -> Outcome {
    // The peer inherits the first of these and not the others, so its exported fd gets a number
    // that is free here.
    const FILLERS: usize = 40;
    const INHERITED: usize = 30;
    let fillers: Vec<OwnedFd> =
        (0..FILLERS).map(|at| filler(at >= INHERITED)).collect::<Result<_, _>>()?;
    let peer = Peer::start()?;
    drop(fillers);
    peer.tell(Order::Allocate, BYTES, 0)??;
    peer.tell(Order::Write, BYTES, WRITTEN_HERE)??;
    let handle = peer.tell(Order::Get, 0, 0)??.handle;
    // The first Open makes the connection, which takes fds.
    gpu.close_handle(gpu.open_handle(handle)?)?;

    let mut below = Vec::new();
    let free = loop {
        let fd = filler(true)?;
        if fd.as_raw_fd() >= handle_fd(handle) {
            break fd;
        }
        below.push(fd);
    };
    same("the number that is free here", free.as_raw_fd(), handle_fd(handle))?;
    drop(free);
    let opened = gpu.open_handle(handle)?;
    same("fds fetched from the exporter", gpu.counters()?.fetched_fds, 0)?;
    holds(gpu.read(opened, BYTES)? == pattern(BYTES, WRITTEN_HERE), || "other bytes".to_string())?;
    gpu.close_handle(opened)?;
    peer.tell(Order::Free, 0, 0)??;
    peer.finish()
}

/// An fd of /dev/null, to fill the lowest free number.
fn filler(close_on_exec: bool) -> Result<OwnedFd, Fault> {
    let flag = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: a C string.
    let fd = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | flag) };
    holds(fd >= 0, || "no fd is free".to_string())?;
    // SAFETY: the call just made it, for nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn other_node(gpu: &Gpu) -> Outcome {
    changed_at(gpu, NODE)
}

pub fn changed(gpu: &Gpu) -> Outcome {
    changed_at(gpu, MAC)
}

fn changed_at(gpu: &Gpu, at: usize) -> Outcome {
    let (memory, handle) = export(gpu)?;
    let mut bytes = handle.to_bytes();
    bytes[at] ^= 1;
    let changed = ze_ipc_mem_handle_t::from_bytes(bytes);
    refused("Open", gpu.open_handle(changed), INVALID)?;
    refused("Open once more", gpu.open_handle(changed), INVALID)?;
    Ok(gpu.free(memory)?)
}

/// The broker here knows nothing of the key, but the program has brought its fd: as without the
/// layer.
pub fn other_broker_with_fd(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    // SAFETY: the driver's fd, which lives until the memory is freed.
    let fd = unsafe { BorrowedFd::borrow_raw(handle_fd(handle)) }.try_clone_to_owned()?;
    for at in [NODE, MAC] {
        let mut bytes = handle.to_bytes();
        bytes[at] ^= 1;
        let theirs = ze_ipc_mem_handle_t::from_bytes(bytes);
        peer.tell_with(Order::OpenMoved, 0, 0, theirs, Some(fd.as_fd()))??;
        same("the peer reads", peer.number(Order::IsPattern, BYTES, WRITTEN_HERE)?, 1)?;
        peer.tell(Order::Close, 0, 0)??;
    }
    gpu.free(memory)?;
    peer.finish()
}

pub fn threads(gpu: &Gpu) -> Outcome {
    const THREADS: usize = 4;
    const ROUNDS: usize = 50;
    let (memory, handle) = export(gpu)?;
    let (context, device, level_zero) = (gpu.context.addr(), gpu.device.addr(), gpu.level_zero);
    let memory_at = memory.addr();
    let round = move || -> Outcome {
        let context = std::ptr::with_exposed_provenance_mut(context);
        let device = std::ptr::with_exposed_provenance_mut(device);
        let mut opened = std::ptr::null_mut();
        let mut again = ze_ipc_mem_handle_t::default();
        let memory = std::ptr::without_provenance(memory_at);
        // SAFETY: live handles of the case, out-pointers to locals.
        unsafe {
            level_zero.zeMemGetIpcHandle(context, memory, &raw mut again)?;
            level_zero.zeMemOpenIpcHandle(context, device, again, 0, &raw mut opened)?;
            level_zero.zeMemCloseIpcHandle(context, opened)?;
            if let Err(error) = level_zero.zeMemPutIpcHandle(context, again) {
                // An old loader has no Put.
                same("Put", error.code(), None)?;
            }
        }
        Ok(())
    };
    let all = |_| (0..ROUNDS).try_for_each(|_| round());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|at| scope.spawn(move || all(at))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a panic")?)
    })?;
    same("allocations", broker::counts()?.allocations, 1)?;
    broker::wait_for("no lease", |counts| counts.mapped_leases + counts.open_leases == 0)?;
    // The first Get has no Put yet.
    gpu.close_handle(gpu.open_handle(handle)?)?;
    Ok(gpu.free(memory)?)
}
