//! Sharing between this process and a peer. In every case the peer gives back all that it imported,
//! and confirms it.

use crate::fault::{Fault, Outcome, holds, refused, same};
use crate::gpu::{Address, Gpu, handle_fd, pattern, with_fd};
use crate::peer::{Order, Peer};
use level_zero_sys::{ze_ipc_mem_handle_t, ze_result_t};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const BYTES: usize = 10_000;
const INVALID: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;
const WRITTEN_HERE: u16 = 1;
const WRITTEN_THERE: u16 = 2;

/// Memory of this process, its handle, and a duplicate of the handle's fd: what a sender sends.
struct Shared {
    memory: Address,
    handle: ze_ipc_mem_handle_t,
    fd: OwnedFd,
}

fn share(gpu: &Gpu) -> Result<Shared, Fault> {
    // The second allocation of a pool: with a forgotten offset, an import shows its neighbour's
    // bytes.
    let neighbour = gpu.allocate(BYTES, false)?;
    let memory = gpu.allocate(BYTES, false)?;
    gpu.write(memory, &pattern(BYTES, WRITTEN_HERE))?;
    let handle = gpu.get(memory)?;
    // SAFETY: the driver's fd, which lives until the memory is freed.
    let fd = unsafe { BorrowedFd::borrow_raw(handle_fd(handle)) }.try_clone_to_owned()?;
    gpu.free(neighbour)?;
    Ok(Shared { memory, handle, fd })
}

/// Both directions: the peer reads the bytes written here, and this process reads the peer's.
fn both_ways(gpu: &Gpu, peer: &Peer, memory: Address) -> Outcome {
    same("the peer reads", peer.number(Order::IsPattern, BYTES, WRITTEN_HERE)?, 1)?;
    peer.tell(Order::Write, BYTES, WRITTEN_THERE)??;
    let bytes = gpu.read(memory, BYTES)?;
    holds(bytes == pattern(BYTES, WRITTEN_THERE), || "the peer's bytes are not here".to_string())
}

/// The peer opens by `order`, both write, the peer closes, and no process has anything left.
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

/// The driver refuses the peer's Open, and nothing is left there.
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

/// With equal numbers the driver asks the exporter, which has closed the fd. So an importer has to
/// move its fd.
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

/// The handle of the peer's memory, and the fd sent with it.
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

/// Like compute-runtime, the driver reuses an fd that it fetched from a pid and number while it is
/// open, although the number means other memory there by now. A layer that resolves handles by
/// value must avoid this.
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
