//! One handle opened in more than one way. The exporter is this very process: to the layer that is a consumer as any.

use crate::broker;
use crate::fault::{Outcome, holds, refused, same};
use crate::gpu::{Gpu, pattern};
use crate::peer::{Order, Peer};
use crate::sharing::{BYTES, INVALID, WRITTEN_HERE, export};
use level_zero_sys::ze_ipc_mem_handle_t;

/// Where the layer's handle has the node, and a byte of what proves it: `level-zero-layer/src/key.rs`.
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
                // An older loader has none.
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
    // The first Get is still out.
    gpu.close_handle(gpu.open_handle(handle)?)?;
    Ok(gpu.free(memory)?)
}
