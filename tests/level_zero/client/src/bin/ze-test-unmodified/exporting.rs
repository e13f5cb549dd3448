//! Events that end a handle, and events that do not. This process exports, a peer opens.

use crate::broker;
use crate::fault::{Fault, Outcome, holds, refused, same};
use crate::gpu::{Address, Gpu, handle_fd, is_virtual, pattern};
use crate::peer::{Order, Peer};
use crate::sharing::{BYTES, INVALID, WRITTEN_HERE, export};
use level_zero_sys::{CallError, ze_ipc_mem_handle_t};

/// Whether the loader has Put, by `ZE_TEST_LOADER`.
pub fn has_put() -> Result<bool, Fault> {
    Ok(std::env::var("ZE_TEST_LOADER")? != "1.8.12")
}

/// Calls Put and answers true. False where the loader has no Put: the layer must not add one.
pub fn put_if_there(gpu: &Gpu, handle: ze_ipc_mem_handle_t) -> Result<bool, Fault> {
    match (has_put()?, gpu.put(handle)) {
        (true, Ok(())) => Ok(true),
        (false, Err(CallError::Missing { .. })) => Ok(false),
        (_, other) => Err(format!("Put: {other:?}").into()),
    }
}

/// The peer opens the handle and reads the bytes written here.
pub fn is_shared(peer: &Peer, handle: ze_ipc_mem_handle_t, salt: u16) -> Outcome {
    peer.tell_with(Order::Open, 0, 0, handle, None)??;
    same("the peer reads", peer.number(Order::IsPattern, BYTES, salt)?, 1)?;
    peer.tell(Order::Close, 0, 0)??;
    Ok(())
}

pub fn is_refused(peer: &Peer, handle: ze_ipc_mem_handle_t) -> Outcome {
    refused("the peer's Open", peer.tell_with(Order::Open, 0, 0, handle, None)?, INVALID)?;
    same("all given back there", peer.number(Order::IsAllGivenBack, 0, 0)?, 1)
}

pub fn one_registration(gpu: &Gpu) -> Outcome {
    let before = broker::counts()?;
    let (memory, handle) = export(gpu)?;
    for _ in 0..10 {
        same("the handle", gpu.get(memory)?.to_bytes(), handle.to_bytes())?;
    }
    let after = broker::counts()?;
    same("registrations", after.registrations - before.registrations, 1)?;
    same("fds in the broker", after.held_fds, 1)?;
    let gpus = broker::told("gpus")?;
    let is_listed = gpus.contains("\"api\":\"level-zero\"") && gpus.contains("\"allocations\":1");
    holds(is_listed, || format!("the GPU of the memory is not listed: {gpus}"))?;
    Ok(gpu.free(memory)?)
}

pub fn inside(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    let inner: Address = memory.wrapping_byte_add(5000);
    same("the handle", gpu.get(inner)?.to_bytes(), handle.to_bytes())?;
    is_shared(&peer, handle, WRITTEN_HERE)?;
    gpu.free(memory)?;
    is_refused(&peer, handle)?;
    peer.finish()
}

/// What was sent stays good, as an fd in flight does, and the next Get gives the same handle. The
/// driver's fd is closed.
pub fn put(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    is_shared(&peer, handle, WRITTEN_HERE)?;
    if put_if_there(gpu, handle)? {
        same("fds in the driver", gpu.counters()?.exported_fds, 0)?;
        same("Gets in the driver", gpu.counters()?.gets, 0)?;
        is_shared(&peer, handle, WRITTEN_HERE)?;
        broker::evict_all()?;
        is_shared(&peer, handle, WRITTEN_HERE)?;
        let again = gpu.get(memory)?;
        is_shared(&peer, again, WRITTEN_HERE)?;
        same("allocations", broker::counts()?.allocations, 1)?;
        put_if_there(gpu, again)?;
    }
    gpu.free(memory)?;
    is_refused(&peer, handle)?;
    peer.finish()
}

pub fn put_not_last(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    let again = gpu.get(memory)?;
    put_if_there(gpu, again)?;
    is_shared(&peer, handle, WRITTEN_HERE)?;
    gpu.free(memory)?;
    is_refused(&peer, handle)?;
    peer.finish()
}

pub fn put_finished(gpu: &Gpu) -> Outcome {
    let (memory, handle) = export(gpu)?;
    gpu.free(memory)?;
    put_if_there(gpu, handle)?;
    put_if_there(gpu, handle)?;
    Ok(())
}

pub fn free(gpu: &Gpu) -> Outcome {
    freed(gpu, Gpu::free)
}

pub fn free_ext(gpu: &Gpu) -> Outcome {
    freed(gpu, Gpu::free_ext)
}

fn freed(gpu: &Gpu, free: fn(&Gpu, Address) -> Result<(), CallError>) -> Outcome {
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    is_shared(&peer, handle, WRITTEN_HERE)?;
    free(gpu, memory)?;
    // The broker must not keep freed memory by its fd.
    broker::wait_for("no fd", |counts| counts.held_fds == 0)?;
    is_refused(&peer, handle)?;
    peer.finish()
}

/// What a program has opened and exported again ends with its own handle, not with the first
/// owner's.
pub fn import_closed(gpu: &Gpu) -> Outcome {
    let (owner, peer) = (Peer::start()?, Peer::start()?);
    owner.tell(Order::Allocate, BYTES, 0)??;
    owner.tell(Order::Write, BYTES, WRITTEN_HERE)??;
    let first = owner.tell(Order::Get, 0, 0)??.handle;
    let opened = gpu.open_handle(first)?;
    let again = gpu.get(opened)?;
    is_shared(&peer, again, WRITTEN_HERE)?;
    gpu.close_handle(opened)?;
    is_refused(&peer, again)?;
    is_shared(&peer, first, WRITTEN_HERE)?;
    owner.tell(Order::Free, 0, 0)??;
    owner.finish()?;
    peer.finish()
}

pub fn free_pooled(gpu: &Gpu) -> Outcome {
    const OTHER: u16 = 7;
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    let other = gpu.allocate(BYTES, false)?;
    gpu.write(other, &pattern(BYTES, OTHER))?;
    let others = gpu.get(other)?;
    if !is_virtual(handle_fd(handle)) {
        same("one fd for the pool", handle_fd(others), handle_fd(handle))?;
    }
    is_shared(&peer, handle, WRITTEN_HERE)?;
    is_shared(&peer, others, OTHER)?;
    gpu.free(memory)?;
    is_refused(&peer, handle)?;
    is_shared(&peer, others, OTHER)?;
    gpu.free(other)?;
    is_refused(&peer, others)?;
    peer.finish()
}

/// Address, fd number and size are the same as before, but the memory is another.
pub fn address_reused(gpu: &Gpu) -> Outcome {
    const TRIES: usize = 100;
    const OTHER: u16 = 7;
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    is_shared(&peer, handle, WRITTEN_HERE)?;
    let fd = handle_fd(handle);
    gpu.free(memory)?;
    let mut others = Vec::new();
    while others.last() != Some(&memory) {
        holds(others.len() < TRIES, || "the address did not come again".to_string())?;
        others.push(gpu.allocate(BYTES, false)?);
    }
    gpu.write(memory, &pattern(BYTES, OTHER))?;
    let again = gpu.get(memory)?;
    if is_virtual(fd) {
        holds(handle_fd(again) != fd, || format!("{fd} names two memories"))?
    } else {
        same("the fd number", handle_fd(again), fd)?
    }
    is_refused(&peer, handle)?;
    is_shared(&peer, again, OTHER)?;
    for other in others {
        gpu.free(other)?;
    }
    is_refused(&peer, again)?;
    peer.finish()
}

pub fn fd_of_handle(gpu: &Gpu) -> Outcome {
    let (memory, handle) = export(gpu)?;
    match (has_put()?, gpu.fd_of_handle(handle)) {
        (true, Ok(fd)) => same("the fd", fd, u64::from(handle_fd(handle).unsigned_abs()))?,
        (false, Err(CallError::Missing { .. })) => {}
        (_, other) => return Err(format!("the fd of a handle: {other:?}").into()),
    }
    Ok(gpu.free(memory)?)
}
