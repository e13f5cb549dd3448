//! Events that end the handle of physical memory that is mapped, and events that do not. A peer
//! opens.

use crate::broker;
use crate::exporting::{is_refused, is_shared};
use crate::fault::{Fault, Outcome};
use crate::gpu::{Address, Gpu, pattern};
use crate::peer::Peer;
use crate::sharing::{BYTES, WRITTEN_HERE};
use crate::virtual_memory::Physical;
use level_zero_sys::{CallError, ze_ipc_mem_handle_t};

/// Mapped memory with the pattern in it, and its handle.
struct Mapped {
    address: Address,
    memory: Physical,
    handle: ze_ipc_mem_handle_t,
}

fn export(gpu: &Gpu) -> Result<Mapped, Fault> {
    let (address, memory) = (gpu.reserve()?, gpu.create_physical()?);
    gpu.map(address, memory)?;
    gpu.write(address, &pattern(BYTES, WRITTEN_HERE))?;
    Ok(Mapped { address, memory, handle: gpu.get(address)? })
}

/// The handle ends with this call, and another memory's stays.
fn ends_with(gpu: &Gpu, end: fn(&Gpu, &Mapped) -> Result<(), CallError>) -> Result<Mapped, Fault> {
    let peer = Peer::start()?;
    let (mapped, other) = (export(gpu)?, export(gpu)?);
    is_shared(&peer, mapped.handle, WRITTEN_HERE)?;
    end(gpu, &mapped)?;
    is_refused(&peer, mapped.handle)?;
    // The broker must not keep the memory by its fd.
    broker::wait_for("one fd", |counts| counts.held_fds == 1)?;
    is_shared(&peer, other.handle, WRITTEN_HERE)?;
    gpu.unmap(other.address)?;
    is_refused(&peer, other.handle)?;
    gpu.destroy_physical(other.memory)?;
    gpu.release(other.address)?;
    peer.finish()?;
    Ok(mapped)
}

pub fn unmap(gpu: &Gpu) -> Outcome {
    let Mapped { address, memory, .. } = ends_with(gpu, |gpu, mapped| gpu.unmap(mapped.address))?;
    gpu.destroy_physical(memory)?;
    Ok(gpu.release(address)?)
}

pub fn release(gpu: &Gpu) -> Outcome {
    let Mapped { memory, .. } = ends_with(gpu, |gpu, mapped| gpu.release(mapped.address))?;
    Ok(gpu.destroy_physical(memory)?)
}

pub fn destroy(gpu: &Gpu) -> Outcome {
    let Mapped { address, .. } = ends_with(gpu, |gpu, mapped| gpu.destroy_physical(mapped.memory))?;
    Ok(gpu.release(address)?)
}

/// Memory that is mapped again elsewhere has a handle of its own, and its old one stays ended.
pub fn mapped_again(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let Mapped { address, memory, handle } = export(gpu)?;
    let elsewhere = gpu.reserve()?;
    gpu.unmap(address)?;
    gpu.map(elsewhere, memory)?;
    let again = gpu.get(elsewhere)?;
    is_refused(&peer, handle)?;
    is_shared(&peer, again, WRITTEN_HERE)?;
    gpu.destroy_physical(memory)?;
    is_refused(&peer, again)?;
    gpu.release(address)?;
    gpu.release(elsewhere)?;
    peer.finish()
}
