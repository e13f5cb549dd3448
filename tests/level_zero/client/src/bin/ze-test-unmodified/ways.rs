//! The other ways to a handle or an fd: tiles, external memory, event pools. A peer opens what this
//! process exports. Must never open in this process alone what is to be shared.

use crate::broker;
use crate::exporting::{has_put, put_if_there};
use crate::fault::{Outcome, holds, refused, same};
use crate::gpu::{Address, DRIVER, Gpu, handle_fd, is_open, is_virtual, pattern};
use crate::peer::{Order, Peer};
use crate::shapes::start_peer;
use crate::sharing::{BYTES, INVALID, WRITTEN_HERE, both_ways};
use level_zero_sys::{CallError, ze_ipc_mem_handle_t, ze_result_t};
use std::os::fd::BorrowedFd;

fn written(gpu: &Gpu, exportable: bool) -> Result<Address, CallError> {
    let memory = gpu.allocate(BYTES, exportable)?;
    gpu.write(memory, &pattern(BYTES, WRITTEN_HERE))?;
    Ok(memory)
}

/// The broker may be about to close fds of memory that has ended.
pub fn full_card(gpu: &Gpu) -> Outcome {
    let (device, host) = (gpu.allocate(BYTES, false)?, gpu.allocate_host(BYTES)?);
    let physical = gpu.create_physical()?;
    gpu.destroy_physical(physical)?;
    gpu.free(host)?;
    Ok(gpu.free(device)?)
}

/// Each tile's fd is a registration of its own, and comes back after an eviction.
pub fn tiles(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let memory = written(gpu, true)?;
    let handles = gpu.get_tiles(memory)?;
    let [first, second] = handles.as_slice() else { Err("two tiles have two handles")? };
    same("allocations", broker::counts()?.allocations, 2)?;
    for _ in 0..2 {
        peer.tell_with(Order::KeepHandle, 0, 0, *first, None)??;
        peer.tell_with(Order::OpenTiles, 0, 0, *second, None)??;
        both_ways(gpu, &peer, memory)?;
        broker::wait_for("two leases", |counts| counts.mapped_leases == 2)?;
        peer.tell(Order::Close, 0, 0)??;
        broker::wait_for("no lease", |counts| counts.mapped_leases + counts.open_leases == 0)?;
        broker::evict_all()?;
    }
    // The first tile's memory is not the second's.
    peer.tell_with(Order::KeepHandle, 0, 0, *second, None)??;
    let swapped = peer.tell_with(Order::OpenTiles, 0, 0, *first, None)?;
    refused("tiles in another order", swapped, INVALID)?;
    for handle in &handles {
        put_if_there(gpu, *handle)?;
    }
    gpu.free(memory)?;
    peer.tell_with(Order::KeepHandle, 0, 0, *first, None)??;
    let freed = peer.tell_with(Order::OpenTiles, 0, 0, *second, None)?;
    refused("tiles of freed memory", freed, INVALID)?;
    same("all given back there", peer.number(Order::IsAllGivenBack, 0, 0)?, 1)?;
    peer.finish()
}

/// MPICH and ISHMEM ask for the function by its name first.
pub fn one_tile(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let memory = written(gpu, false)?;
    let handles = gpu.get_tiles(memory)?;
    let [handle] = handles.as_slice() else { Err("one tile has one handle")? };
    same("the handle", gpu.get(memory)?.to_bytes(), handle.to_bytes())?;
    peer.tell_with(Order::OpenTiles, 0, 0, *handle, None)??;
    both_ways(gpu, &peer, memory)?;
    peer.tell(Order::Close, 0, 0)??;
    gpu.free(memory)?;
    peer.finish()
}

/// The program has asked the first driver for its functions before.
pub fn two_drivers(gpu: &Gpu) -> Outcome {
    let memory = written(gpu, false)?;
    gpu.get_tiles(memory)?;
    gpu.free(memory)?;
    // SAFETY: this process has no other thread that reads the environment.
    unsafe { std::env::set_var(DRIVER, "1") };
    let second = Gpu::open()?;
    one_tile(&second)?;
    second.nothing_left()
}

/// An fd for another driver is the driver's own, which any of the kernel's interfaces takes.
pub fn external_fd(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let memory = written(gpu, true)?;
    let number = gpu.export_fd(memory)?;
    holds(!is_virtual(number), || format!("fd {number} is a virtual one"))?;
    // SAFETY: the driver's fd, which lives until the memory is freed.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    peer.tell_with(Order::ImportFd, BYTES, 0, ze_ipc_mem_handle_t::default(), Some(fd))??;
    both_ways(gpu, &peer, memory)?;
    peer.tell(Order::Free, 0, 0)??;
    gpu.free(memory)?;
    peer.finish()
}

/// As with the driver alone: one fd, whichever is asked for first, which stays open until the
/// program Puts its handle, also when the broker has asked for the memory.
pub fn external_fd_of_handle(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    for is_shown_first in [true, false] {
        let memory = written(gpu, true)?;
        let shown = if is_shown_first { Some(gpu.export_fd(memory)?) } else { None };
        let handle = gpu.get(memory)?;
        let number = shown.map_or_else(|| gpu.export_fd(memory), Ok)?;
        same("asked for again", gpu.export_fd(memory)?, number)?;
        if has_put()? {
            same("the handle's", gpu.fd_of_handle(handle)?, u64::from(number.unsigned_abs()))?;
            same("and back", gpu.handle_of_fd(number)?.to_bytes(), handle.to_bytes())?;
            put_if_there(gpu, handle)?;
        }
        for _ in 0..2 {
            holds(is_open(number), || format!("fd {number} is closed"))?;
            // SAFETY: the driver's fd, which the handle keeps open.
            let fd = unsafe { BorrowedFd::borrow_raw(number) };
            peer.tell_with(Order::ImportFd, BYTES, 0, ze_ipc_mem_handle_t::default(), Some(fd))??;
            both_ways(gpu, &peer, memory)?;
            peer.tell(Order::Free, 0, 0)??;
            broker::evict_all()?;
            peer.tell_with(Order::Open, 0, 0, handle, None)??;
            peer.tell(Order::Close, 0, 0)??;
        }
        if has_put()? {
            put_if_there(gpu, handle)?;
            holds(!is_open(number), || format!("fd {number} is open after Put"))?;
        }
        gpu.free(memory)?;
    }
    peer.finish()
}

/// Allocations of a pool have one fd. The program has asked for it by one of them: neither what the
/// layer gives back of the others' handles nor a recall closes it.
pub fn external_fd_of_pool(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    for is_exported_first in [true, false] {
        let (memory, other) = (written(gpu, false)?, written(gpu, false)?);
        let before = if is_exported_first { Some(gpu.get(other)?) } else { None };
        let number = gpu.export_fd(memory)?;
        let is_there = |what: &str| {
            holds(is_open(number), || format!("fd {number} is closed after {what}"))?;
            same("asked for again", gpu.export_fd(memory)?, number)
        };
        let theirs = before.map_or_else(|| gpu.get(other), Ok)?;
        is_there("an export of the other")?;
        let ours = gpu.get(memory)?;
        for (of, handle) in [(other, theirs), (memory, ours), (other, theirs)] {
            broker::evict_all()?;
            peer.tell_with(Order::Open, 0, 0, handle, None)??;
            is_there("a recall")?;
            both_ways(gpu, &peer, of)?;
            peer.tell(Order::Close, 0, 0)??;
        }
        // SAFETY: the driver's fd, which the handle keeps open.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        peer.tell_with(Order::OpenMoved, 0, 0, ours, Some(fd))??;
        both_ways(gpu, &peer, memory)?;
        peer.tell(Order::Close, 0, 0)??;
        put_if_there(gpu, theirs)?;
        is_there("a Put of the other")?;
        put_if_there(gpu, ours)?;
        gpu.free(other)?;
        peer.tell_with(Order::Open, 0, 0, ours, None)??;
        both_ways(gpu, &peer, memory)?;
        peer.tell(Order::Close, 0, 0)??;
        gpu.free(memory)?;
    }
    peer.finish()
}

/// From a handle to its fd and back.
pub fn handle_of_fd(gpu: &Gpu) -> Outcome {
    let memory = written(gpu, false)?;
    let handle = gpu.get(memory)?;
    match gpu.handle_of_fd(handle_fd(handle)) {
        Err(CallError::Missing { .. }) if !has_put()? => {}
        again => same("the handle", again?.to_bytes(), handle.to_bytes())?,
    }
    Ok(gpu.free(memory)?)
}

pub fn event_pool(gpu: &Gpu) -> Outcome {
    shared_pool(gpu, Peer::start()?, Order::OpenPool)
}

pub fn event_pool_fetched(gpu: &Gpu) -> Outcome {
    shared_pool(gpu, start_peer()?, Order::OpenPoolFetched)
}

/// Each process sees what the other one signals.
fn shared_pool(gpu: &Gpu, peer: Peer, order: Order) -> Outcome {
    let exporter = std::process::id() as usize;
    let pool = gpu.create_pool(4, true)?;
    let handle = gpu.get_pool(pool)?;
    holds(is_virtual(handle_fd(handle)), || "its fd is the driver's".to_string())?;
    same("the handle once more", gpu.get_pool(pool)?.to_bytes(), handle.to_bytes())?;
    let events = [gpu.create_event(pool, 1)?, gpu.create_event(pool, 2)?];
    gpu.signal(events[0])?;
    for _ in 0..2 {
        peer.tell_with(order, exporter, 0, handle, None)??;
        same("the peer sees event 1", peer.number(Order::IsSignalled, 1, 0)?, 1)?;
        same("the peer sees event 3", peer.number(Order::IsSignalled, 3, 0)?, 0)?;
        peer.tell(Order::SignalEvent, 2, 0)??;
        same("event 2 here", gpu.is_signalled(events[1])?, true)?;
        peer.tell(Order::ClosePool, 0, 0)??;
        broker::wait_for("no lease", |counts| counts.mapped_leases + counts.open_leases == 0)?;
        broker::evict_all()?;
    }
    same("all given back there", peer.number(Order::IsAllGivenBack, 0, 0)?, 1)?;
    for event in events {
        gpu.destroy_event(event)?;
    }
    gpu.destroy_pool(pool)?;
    peer.finish()
}

pub fn event_pool_destroyed(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let pool = gpu.create_pool(1, true)?;
    let handle = gpu.get_pool(pool)?;
    // The driver's own answer.
    if has_put()? {
        let unsupported = ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
        refused("Put", gpu.put_pool(handle), unsupported)?;
    }
    peer.tell_with(Order::OpenPool, 0, 0, handle, None)??;
    gpu.destroy_pool(pool)?;
    // What is open stays so.
    peer.tell(Order::SignalEvent, 0, 0)??;
    same("the peer's event", peer.number(Order::IsSignalled, 0, 0)?, 1)?;
    peer.tell(Order::ClosePool, 0, 0)??;
    let opened = peer.tell_with(Order::OpenPool, 0, 0, handle, None)?;
    refused("Open of a destroyed pool", opened, INVALID)?;
    peer.finish()
}

pub fn private_pool(gpu: &Gpu) -> Outcome {
    let pool = gpu.create_pool(1, false)?;
    let unsupported = ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    refused("Get", gpu.get_pool(pool), unsupported)?;
    Ok(gpu.destroy_pool(pool)?)
}
