//! Two processes share memory. In every case the peer closes all that it opened, and confirms that
//! nothing is left.

use crate::broker;
use crate::fault::{Fault, Outcome, holds, refused, same};
use crate::gpu::{Address, Gpu, handle_fd, pattern};
use crate::peer::{Order, Peer};
use crate::shapes::start_peer;
use level_zero_sys::{ze_ipc_mem_handle_t, ze_result_t};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::ForkResult;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub const BYTES: usize = 10_000;
pub const INVALID: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;
pub const WRITTEN_HERE: u16 = 1;
pub const WRITTEN_THERE: u16 = 2;

/// Memory with the pattern in it, and its handle. In a pool it is the second allocation: with a
/// forgotten offset an import shows its neighbour's bytes.
pub fn export(gpu: &Gpu) -> Result<(Address, ze_ipc_mem_handle_t), Fault> {
    let neighbour = gpu.allocate(BYTES, false)?;
    let memory = gpu.allocate(BYTES, false)?;
    gpu.write(memory, &pattern(BYTES, WRITTEN_HERE))?;
    gpu.free(neighbour)?;
    Ok((memory, gpu.get(memory)?))
}

/// A duplicate of the handle's fd: what a sender sends.
fn copy_of_fd(handle: ze_ipc_mem_handle_t) -> Result<OwnedFd, Fault> {
    // SAFETY: the driver's fd, which lives until the memory is freed.
    Ok(unsafe { BorrowedFd::borrow_raw(handle_fd(handle)) }.try_clone_to_owned()?)
}

/// Both directions: the peer reads the bytes written here, and this process reads the peer's.
pub fn both_ways(gpu: &Gpu, peer: &Peer, memory: Address) -> Outcome {
    same("the peer reads", peer.number(Order::IsPattern, BYTES, WRITTEN_HERE)?, 1)?;
    peer.tell(Order::Write, BYTES, WRITTEN_THERE)??;
    let bytes = gpu.read(memory, BYTES)?;
    holds(bytes == pattern(BYTES, WRITTEN_THERE), || "the peer's bytes are not here".to_string())?;
    gpu.write(memory, &pattern(BYTES, WRITTEN_HERE))?;
    Ok(())
}

/// The peer closes the memory and has nothing left.
fn closed_there(peer: &Peer) -> Outcome {
    peer.tell(Order::Close, 0, 0)??;
    same("all given back there", peer.number(Order::IsAllGivenBack, 0, 0)?, 1)
}

/// How often a handle is opened, and grants that are few beside it.
const OPENINGS: u64 = 200;
/// On a slow machine the next opening often comes after the layer has given up the fd that it keeps
/// for a moment. A layer that keeps none has a grant for each opening.
const FEW: u64 = OPENINGS * 9 / 10;

/// The peer opens and closes a handle again and again: the broker is asked now and then, and the
/// memory is back when it is freed.
pub fn opened_again(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    let mut granted = 0;
    for opening in 0..OPENINGS {
        if opening == 2 {
            granted = broker::counts()?.grants;
        }
        peer.tell_with(Order::Open, 0, 0, handle, None)??;
        same("the peer reads", peer.number(Order::IsPattern, BYTES, WRITTEN_HERE)?, 1)?;
        closed_there(&peer)?;
    }
    let granted = broker::counts()?.grants - granted;
    holds(granted < FEW, || format!("{granted} grants for {OPENINGS} openings"))?;
    gpu.free(memory)?;
    broker::wait_until_empty()?;
    refused("the peer's Open", peer.tell_with(Order::Open, 0, 0, handle, None)?, INVALID)?;
    peer.finish()
}

pub fn by_value(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    let mut fds = Vec::new();
    // Several rounds: the connection may cost fds once, each memory must cost none.
    for _ in 0..3 {
        peer.tell_with(Order::Open, 0, 0, handle, None)??;
        both_ways(gpu, &peer, memory)?;
        fds.push(peer.number(Order::CountFds, 0, 0)?);
        closed_there(&peer)?;
        fds.push(peer.number(Order::CountFds, 0, 0)?);
    }
    holds(fds.iter().all(|count| *count == fds[0]), || format!("the peer's fds: {fds:?}"))?;
    let before = broker::counts()?;
    same("allocations in the broker", before.allocations, 1)?;
    broker::wait_for("no lease", |counts| counts.mapped_leases + counts.open_leases == 0)?;
    gpu.free(memory)?;
    peer.finish()
}

/// Each process is producer and consumer at once.
pub fn both_export(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    peer.tell(Order::Allocate, BYTES, 0)??;
    peer.tell(Order::Write, BYTES, WRITTEN_THERE)??;
    let theirs = peer.tell(Order::Get, 0, 0)??;

    let opened = gpu.open_handle(theirs.handle)?;
    let bytes = gpu.read(opened, BYTES)?;
    holds(bytes == pattern(BYTES, WRITTEN_THERE), || "the peer's bytes are not here".to_string())?;
    gpu.close_handle(opened)?;
    drop(theirs);
    peer.tell(Order::Free, 0, 0)??;

    peer.tell_with(Order::Open, 0, 0, handle, None)??;
    both_ways(gpu, &peer, memory)?;
    closed_there(&peer)?;
    gpu.free(memory)?;
    peer.finish()
}

pub fn programs_fd(gpu: &Gpu) -> Outcome {
    opened_with_fd(gpu, Order::OpenMoved)
}

/// The layer cannot tell that the program has put its fd there, but the broker has the same memory.
pub fn programs_fd_same_number(gpu: &Gpu) -> Outcome {
    opened_with_fd(gpu, Order::OpenAtSameNumber)
}

fn opened_with_fd(gpu: &Gpu, order: Order) -> Outcome {
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    let fd = copy_of_fd(handle)?;
    peer.tell_with(order, 0, 0, handle, Some(fd.as_fd()))??;
    both_ways(gpu, &peer, memory)?;
    closed_there(&peer)?;
    gpu.free(memory)?;
    peer.finish()
}

/// The broker's answer counts, not the fd beside the key, which may be of other memory.
pub fn freed_with_fd(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    let (other, of_other) = export(gpu)?;
    let (fd, others) = (copy_of_fd(handle)?, copy_of_fd(of_other)?);
    gpu.free(memory)?;
    for fd in [fd, others] {
        let opened = peer.tell_with(Order::OpenMoved, 0, 0, handle, Some(fd.as_fd()))?;
        refused("Open of freed memory", opened, INVALID)?;
    }
    same("all given back there", peer.number(Order::IsAllGivenBack, 0, 0)?, 1)?;
    gpu.free(other)?;
    peer.finish()
}

pub fn foreign_fd(gpu: &Gpu) -> Outcome {
    const OTHER: u16 = 7;
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    let other = gpu.allocate(BYTES, true)?;
    gpu.write(other, &pattern(BYTES, OTHER))?;
    let fd = copy_of_fd(gpu.get(other)?)?;
    peer.tell_with(Order::OpenMoved, 0, 0, handle, Some(fd.as_fd()))??;
    both_ways(gpu, &peer, memory)?;
    closed_there(&peer)?;
    gpu.free(other)?;
    gpu.free(memory)?;
    peer.finish()
}

/// A driver of one number takes the fd in a handle for the exporter's: there it is other memory's.
pub fn number_taken(gpu: &Gpu) -> Outcome {
    /// The peer has fewer fds.
    const NUMBERS: usize = 60;
    let peer = start_peer()?;
    let (memory, handle) = export(gpu)?;
    let other = gpu.allocate(BYTES, true)?;
    let fd = copy_of_fd(gpu.get(other)?)?;
    let taken: Result<Vec<OwnedFd>, _> = (0..NUMBERS).map(|_| fd.try_clone()).collect();
    let taken = taken?;
    peer.tell_with(Order::Open, 0, 0, handle, None)??;
    both_ways(gpu, &peer, memory)?;
    closed_there(&peer)?;
    drop((fd, taken));
    gpu.free(other)?;
    gpu.free(memory)?;
    peer.finish()
}

/// The broker has no fd of its memory, and it answers no recall in time.
pub fn producer_stopped(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    peer.tell(Order::Allocate, BYTES, 0)??;
    peer.tell(Order::Write, BYTES, WRITTEN_THERE)??;
    let handle = peer.tell(Order::Get, 0, 0)??.handle;
    broker::evict_all()?;
    peer.stop()?;
    let opened = std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let silent = |counts: &broker::Counts| counts.recalls_unanswered > 0;
            let waited = broker::wait_for("a recall without an answer", silent);
            // In any case, or this case hangs.
            peer.go_on().and(waited).map_err(|fault| fault.to_string())
        });
        let opened = gpu.open_handle(handle);
        waits.join().map_err(|_| "a panic")??;
        Ok::<_, Fault>(opened?)
    })?;
    let bytes = gpu.read(opened, BYTES)?;
    holds(bytes == pattern(BYTES, WRITTEN_THERE), || "other bytes".to_string())?;
    gpu.close_handle(opened)?;
    peer.tell(Order::Free, 0, 0)??;
    peer.finish()
}

/// It cannot connect to the broker at its first handle.
pub fn opener_full_at_first(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    // Its driver runs.
    peer.number(Order::CountFds, 0, 0)?;
    let before = peer.limit_fds(3)?;
    let opened = peer.tell_with(Order::Open, 0, 0, handle, None)?;
    holds(opened.is_err(), || "a handle is open without an fd".to_string())?;
    peer.limit_fds(before)?;
    peer.tell_with(Order::Open, 0, 0, handle, None)??;
    both_ways(gpu, &peer, memory)?;
    closed_there(&peer)?;
    gpu.free(memory)?;
    peer.finish()
}

pub fn producer_killed(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    peer.tell(Order::Allocate, BYTES, 0)??;
    peer.tell(Order::Write, BYTES, WRITTEN_THERE)??;
    let handle = peer.tell(Order::Get, 0, 0)??.handle;
    let opened = gpu.open_handle(handle)?;
    peer.kill()?;

    broker::wait_for("the end of the producer", |counts| counts.held_fds == 0)?;
    let bytes = gpu.read(opened, BYTES)?;
    holds(bytes == pattern(BYTES, WRITTEN_THERE), || "the import is gone".to_string())?;
    refused("Open after the producer's end", gpu.open_handle(handle), INVALID)?;
    Ok(gpu.close_handle(opened)?)
}

/// The child exports memory that its parent allocated and exported: the driver still has the fd in
/// the child.
pub fn forked(gpu: &Gpu) -> Outcome {
    let (memory, handle) = export(gpu)?;
    let (mut from_child, to_parent) = std::io::pipe()?;
    let (from_parent, to_child) = std::io::pipe()?;
    // SAFETY: this process has one thread but for the layer's, whose locks a child must not need:
    // that is what is tested.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Child => {
            drop(to_child);
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe {
                libc::_exit(i32::from(
                    export_in_child(gpu, memory, to_parent, from_parent).is_err(),
                ))
            }
        }
        ForkResult::Parent { child } => {
            drop((to_parent, from_parent));
            let mut theirs = [0; 64];
            from_child.read_exact(&mut theirs)?;
            let theirs = ze_ipc_mem_handle_t::from_bytes(theirs);
            holds(theirs.to_bytes() != handle.to_bytes(), || {
                "the child's handle is the parent's: it has not registered by itself".to_string()
            })?;
            let opened = gpu.open_handle(theirs)?;
            let bytes = gpu.read(opened, BYTES)?;
            holds(bytes == pattern(BYTES, WRITTEN_HERE), || "other bytes".to_string())?;
            gpu.close_handle(opened)?;
            drop(to_child);
            same("the child's end", waitpid(child, None)?, WaitStatus::Exited(child, 0))?;
        }
    }
    broker::wait_for("the end of the child's", |counts| counts.allocations == 1)?;
    // The parent's handle still works.
    let opened = gpu.open_handle(handle)?;
    gpu.close_handle(opened)?;
    Ok(gpu.free(memory)?)
}

fn export_in_child(
    gpu: &Gpu,
    memory: Address,
    mut to_parent: std::io::PipeWriter,
    mut from_parent: std::io::PipeReader,
) -> Outcome {
    let handle = gpu.get(memory)?;
    to_parent.write_all(&handle.to_bytes())?;
    // Wait until the parent has opened the handle.
    let _ = from_parent.read(&mut [0])?;
    Ok(())
}
