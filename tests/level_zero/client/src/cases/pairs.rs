//! Two processes: this one and a peer. Whatever the peer imports it gives back, and says so.

use crate::fault::{Fault, Outcome, holds, refused, same};
use crate::gpu::{Address, Gpu, handle_fd, pattern, with_fd};
use crate::peer::{Order, Peer};
use level_zero_sys::{ze_ipc_mem_handle_t, ze_result_t};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const BYTES: usize = 10_000;
const INVALID: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;
const WRITTEN_HERE: u8 = 1;
const WRITTEN_THERE: u8 = 2;

/// Memory of this process with a handle, and the fd in it duplicated, as sending does.
struct Shared {
    memory: Address,
    handle: ze_ipc_mem_handle_t,
    fd: OwnedFd,
}

fn share(gpu: &Gpu) -> Result<Shared, Fault> {
    // A pool's first allocation would be where a forgotten offset points at its neighbour: take the second.
    let neighbour = gpu.allocate(BYTES, false)?;
    let memory = gpu.allocate(BYTES, false)?;
    gpu.write(memory, &pattern(BYTES, WRITTEN_HERE))?;
    let handle = gpu.get(memory)?;
    // SAFETY: the driver's fd, which lives until the memory is freed.
    let fd = unsafe { BorrowedFd::borrow_raw(handle_fd(handle)) }.try_clone_to_owned()?;
    gpu.free(neighbour)?;
    Ok(Shared { memory, handle, fd })
}

/// The peer, which has the memory now, reads what was written here and writes what is read here.
fn both_ways(gpu: &Gpu, peer: &Peer, memory: Address) -> Outcome {
    same("the peer reads", peer.number(Order::IsPattern, BYTES, WRITTEN_HERE)?, 1)?;
    peer.tell(Order::Write, BYTES, WRITTEN_THERE)??;
    let bytes = gpu.read(memory, BYTES)?;
    holds(bytes == pattern(BYTES, WRITTEN_THERE), || "the peer's bytes are not here".to_string())
}

/// The peer opens as `order` says, both write, the peer closes, and neither has anything left.
fn opened_by(gpu: &Gpu, order: Order, sends_fd: bool) -> Outcome {
    let peer = Peer::start()?;
    let Shared { memory, handle, fd } = share(gpu)?;
    let fds_before = peer.number(Order::CountFds, 0, 0)?;

    let lent = sends_fd.then_some(fd.as_fd());
    peer.tell_with(order, 0, 0, handle, lent)??;
    both_ways(gpu, &peer, memory)?;
    peer.tell(Order::Close, 0, 0)??;

    same("the peer's fds", peer.number(Order::CountFds, 0, 0)?, fds_before)?;
    same("all given back there", peer.number(Order::IsAllGivenBack, 0, 0)?, 1)?;
    gpu.free(memory)?;
    peer.finish()
}

/// The peer's Open is refused, with nothing left there.
fn refused_by(gpu: &Gpu, order: Order, sends_fd: bool, frees_first: bool) -> Outcome {
    let peer = Peer::start()?;
    let Shared { memory, handle, fd } = share(gpu)?;
    let fds_before = peer.number(Order::CountFds, 0, 0)?;
    if frees_first {
        gpu.free(memory)?;
    }

    let lent = sends_fd.then_some(fd.as_fd());
    refused("Open", peer.tell_with(order, 0, 0, handle, lent)?, INVALID)?;

    same("the peer's fds", peer.number(Order::CountFds, 0, 0)?, fds_before)?;
    if !frees_first {
        gpu.free(memory)?;
    }
    peer.finish()
}

pub fn patched(gpu: &Gpu) -> Outcome {
    opened_by(gpu, Order::OpenMoved, true)
}

pub fn by_value_opaque(gpu: &Gpu) -> Outcome {
    opened_by(gpu, Order::Open, false)
}

pub fn by_value_legacy(gpu: &Gpu) -> Outcome {
    refused_by(gpu, Order::Open, false, false)
}

pub fn same_number_legacy(gpu: &Gpu) -> Outcome {
    opened_by(gpu, Order::OpenAtSameNumber, true)
}

/// Equal numbers send the driver to the exporter, which has closed it: moving the fd is not a nicety.
pub fn same_number_opaque(gpu: &Gpu) -> Outcome {
    refused_by(gpu, Order::OpenAtSameNumber, true, true)
}

fn imported(gpu: &Gpu, closes: bool) -> Outcome {
    let peer = Peer::start()?;
    let memory = gpu.allocate(BYTES, true)?;
    gpu.write(memory, &pattern(BYTES, WRITTEN_HERE))?;
    // SAFETY: the driver's fd, which lives until the memory is freed.
    let fd = unsafe { BorrowedFd::borrow_raw(gpu.export_fd(memory)?) };
    let fds_before = peer.number(Order::CountFds, 0, 0)?;

    let handle = ze_ipc_mem_handle_t::default();
    let answer = peer.tell_with(Order::ImportFd, BYTES, 0, handle, Some(fd))??;

    same("closed by the driver", answer.number, u64::from(closes))?;
    both_ways(gpu, &peer, memory)?;
    gpu.free(memory)?;
    same("after Free here", peer.number(Order::IsPattern, BYTES, WRITTEN_THERE)?, 1)?;
    peer.tell(Order::Free, 0, 0)??;
    same("the peer's fds", peer.number(Order::CountFds, 0, 0)?, fds_before)?;
    same("all given back there", peer.number(Order::IsAllGivenBack, 0, 0)?, 1)?;
    peer.finish()
}

pub fn imported_driver_closes(gpu: &Gpu) -> Outcome {
    imported(gpu, true)
}

pub fn imported_caller_closes(gpu: &Gpu) -> Outcome {
    imported(gpu, false)
}

/// The peer's memory and its handle, the fd sent along.
fn from_peer(peer: &Peer) -> Result<(ze_ipc_mem_handle_t, OwnedFd), Fault> {
    peer.tell(Order::Allocate, BYTES, 0)??;
    peer.tell(Order::Write, BYTES, WRITTEN_THERE)??;
    let answer = peer.tell(Order::Get, 0, 0)??;
    Ok((answer.handle, answer.fd.ok_or("no fd came with the handle")?))
}

pub fn producer_killed(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (handle, fd) = from_peer(&peer)?;
    let memory = gpu.open_handle(with_fd(handle, fd.as_raw_fd()))?;
    drop(fd);

    peer.kill()?;

    let bytes = gpu.read(memory, BYTES)?;
    holds(bytes == pattern(BYTES, WRITTEN_THERE), || "the dead producer's bytes".to_string())?;
    Ok(gpu.close_handle(memory)?)
}

pub fn fetch_from_the_dead(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (handle, _fd) = from_peer(&peer)?;
    let memory = gpu.open_handle(handle)?;
    gpu.close_handle(memory)?;

    peer.kill()?;

    refused("Open by value", gpu.open_handle(handle), INVALID)
}

/// As compute-runtime: what was fetched from one pid under one number is taken again while it is open, although that
/// number means other memory there by now. Who resolves by value must not meet this.
pub fn stale_fetch(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (first, _) = from_peer(&peer)?;
    let old = gpu.open_handle(first)?;
    peer.tell(Order::Free, 0, 0)??;
    peer.tell(Order::Allocate, BYTES, 0)??;
    peer.tell(Order::Write, BYTES, WRITTEN_HERE)??;
    let second = peer.tell(Order::Get, 0, 0)??.handle;
    same("the same number for other memory", handle_fd(second), handle_fd(first))?;

    let stale = gpu.open_handle(second)?;
    let bytes = gpu.read(stale, BYTES)?;
    holds(bytes == pattern(BYTES, WRITTEN_THERE), || "it was fetched anew".to_string())?;

    gpu.close_handle(old)?;
    gpu.close_handle(stale)?;
    let fresh = gpu.open_handle(second)?;
    let bytes = gpu.read(fresh, BYTES)?;
    holds(bytes == pattern(BYTES, WRITTEN_HERE), || "still the old memory".to_string())?;
    gpu.close_handle(fresh)?;
    peer.tell(Order::Free, 0, 0)??;
    peer.finish()
}
