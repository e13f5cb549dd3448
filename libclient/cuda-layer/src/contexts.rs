//! What contexts mean for blocks: whose devices reach them, and their end. Must never leave memory
//! behind whose context is gone.

use crate::blocks::{Block, Origin, Peer};
use crate::driver::{self, Function, MISSING};
use crate::malloc::end;
use crate::mapping;
use crate::memory::blocks;
use crate::result::{CuContext, CuResult, OfContext, OfDevice, SUCCESS};
use std::ffi::{c_int, c_uint};

/// From now on the current context's device reaches the blocks of `of`. Where it cannot reach one,
/// the driver's code, and nothing is enabled.
///
/// # Safety
/// That of cuCtxEnablePeerAccess.
pub unsafe fn enable_peer(of: CuContext, flags: c_uint) -> CuResult {
    let Some(below) = driver::ENABLE_PEER.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let code = unsafe { below(of, flags) };
    let Some((by, device)) = driver::current().filter(|_| code == SUCCESS) else { return code };
    let peer = Peer { by, device, of };
    let reached = blocks().enable(peer);
    match reach(&reached, device, true) {
        SUCCESS => SUCCESS,
        code => {
            // SAFETY: enabled just now.
            unsafe { disable_peer(of) };
            code
        }
    }
}

/// From now on it does not, unless another context of the device still does.
///
/// # Safety
/// That of cuCtxDisablePeerAccess.
pub unsafe fn disable_peer(of: CuContext) -> CuResult {
    let Some(below) = driver::DISABLE_PEER.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let code = unsafe { below(of) };
    if let Some((by, device)) = driver::current().filter(|_| code == SUCCESS) {
        let reached = blocks().disable(Peer { by, device, of });
        reach(&reached, device, false);
    }
    code
}

/// Lets a device reach blocks, or no longer. One that was freed meanwhile is no error.
fn reach(reached: &[Block], device: c_int, may: bool) -> CuResult {
    for block in reached {
        let code = mapping::reach(block.base, block.size_bytes, &[device], may);
        let is_there = || blocks().at(block.base).is_some_and(|(now, _)| now == block);
        if code != SUCCESS && is_there() {
            return code;
        }
    }
    SUCCESS
}

/// Destroys a context; `below`: in the driver's form of the call.
fn destroy_by(below: &Function<OfContext>, context: CuContext) -> CuResult {
    let Some(below) = below.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let code = unsafe { below(context) };
    if code == SUCCESS {
        end_context(context);
    }
    code
}

/// # Safety
/// As cuCtxDestroy of CUDA 4.0.
pub unsafe fn destroy(context: CuContext) -> CuResult {
    destroy_by(&driver::CTX_DESTROY_V2, context)
}

/// # Safety
/// As cuCtxDestroy of CUDA 2.0.
pub unsafe fn destroy_v1(context: CuContext) -> CuResult {
    destroy_by(&driver::CTX_DESTROY, context)
}

/// Gives up or resets a device's primary context, in the driver's form of the call.
fn leave_by(below: &Function<OfDevice>, device: c_int) -> CuResult {
    let Some(below) = below.get() else { return MISSING };
    let primary = primary_of(device);
    // SAFETY: the caller's promise.
    let code = unsafe { below(device) };
    if let Some(context) = primary.filter(|_| code == SUCCESS && !is_active(device)) {
        end_context(context);
    }
    code
}

/// # Safety
/// As cuDevicePrimaryCtxRelease of CUDA 11.0.
pub unsafe fn release(device: c_int) -> CuResult {
    leave_by(&driver::PRIMARY_RELEASE_V2, device)
}

/// # Safety
/// As cuDevicePrimaryCtxRelease of CUDA 7.0.
pub unsafe fn release_v1(device: c_int) -> CuResult {
    leave_by(&driver::PRIMARY_RELEASE, device)
}

/// # Safety
/// As cuDevicePrimaryCtxReset of CUDA 11.0.
pub unsafe fn reset(device: c_int) -> CuResult {
    leave_by(&driver::PRIMARY_RESET_V2, device)
}

/// # Safety
/// As cuDevicePrimaryCtxReset of CUDA 7.0.
pub unsafe fn reset_v1(device: c_int) -> CuResult {
    leave_by(&driver::PRIMARY_RESET, device)
}

/// The primary context of a device in which there are blocks.
fn primary_of(device: c_int) -> Option<CuContext> {
    let with_blocks = blocks().contexts_of(device);
    if with_blocks.is_empty() || !is_active(device) {
        return None;
    }
    let (retain, mut context) = (driver::PRIMARY_RETAIN.get()?, 0);
    // SAFETY: writes one context, which is there already; the count goes back at once.
    unsafe {
        if retain(&raw mut context, device) != SUCCESS {
            return None;
        }
        let release = driver::PRIMARY_RELEASE_V2.get().or_else(|| driver::PRIMARY_RELEASE.get())?;
        release(device);
    }
    with_blocks.contains(&context).then_some(context)
}

/// Whether a device's primary context is there.
fn is_active(device: c_int) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: writes two words through the pointers.
    let code = driver::PRIMARY_STATE
        .get()
        .map(|state| unsafe { state(device, &raw mut flags, &raw mut active) });
    code == Some(SUCCESS) && active != 0
}

/// A context is gone, and the driver has freed all that was its own, twins too.
fn end_context(context: CuContext) {
    let ended = blocks().end_context(context);
    for (block, origin) in ended {
        match origin {
            Origin::Made(handle) => end(block, handle),
            Origin::Opened { lease, .. } => {
                mapping::unmap(block.base, block.size_bytes);
                drop(lease);
            }
        }
    }
}
