//! cuMemAlloc and cuMemFree: from 2 MiB on VMM memory that can be shared. Must never fail where the
//! driver's own would not, nor unmap memory that a kernel may still use.
//!
//! **A twin** goes with each block: a few bytes of the driver's own cuMemAlloc in the same context.
//! So a context that is gone, a capture under way and a fault before are told by the driver as
//! always, and its cuMemFree of the twin waits as that of the block would have.

use crate::asked;
use crate::blocks::{Block, Origin};
use crate::broker;
use crate::driver::{self, MISSING};
use crate::limits::{BLOCK_LEAST, TWIN_BYTES};
use crate::mapping;
use crate::memory::{blocks, records, unshare};
use crate::produce;
use crate::result::{CuContext, CuDevicePtr, CuMemHandle, CuResult, SUCCESS};
use crate::say::{News, once};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};

/// Whether it goes on in this process: with a broker at the first allocation, for as long as the
/// process lives.
fn is_on() -> bool {
    const UNKNOWN: u8 = 0;
    const ON: u8 = 1;
    const OFF: u8 = 2;
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
    match STATE.load(Ordering::Relaxed) {
        UNKNOWN => {
            let is_on = asked::is_malloc() && !is_limited() && broker::awaited().is_some();
            STATE.store(if is_on { ON } else { OFF }, Ordering::Relaxed);
            is_on
        }
        state => state == ON,
    }
}

fn is_limited() -> bool {
    let is_limited = asked::has_mps_limit();
    if is_limited {
        say_off("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is set, which may not count other memory");
    }
    is_limited
}

fn say_off(why: &str) {
    once(News::NoMalloc, format_args!("memory of cuMemAlloc is the driver's own: {why}"));
}

/// # Safety
/// As cuMemAlloc.
pub unsafe fn allocate(pointer: *mut CuDevicePtr, bytes: usize) -> CuResult {
    let Some(below) = driver::ALLOC.get() else { return MISSING };
    if bytes >= BLOCK_LEAST
        && !pointer.is_null()
        && is_on()
        && let Some((context, device)) = driver::current()
        && let Some(base) = make(bytes, context, device)
    {
        // SAFETY: the caller's promise.
        unsafe { *pointer = base };
        return SUCCESS;
    }
    // SAFETY: the caller's promise.
    unsafe { below(pointer, bytes) }
}

/// Makes a block. `None`: the driver is to answer by itself.
fn make(asked_bytes: usize, context: CuContext, device: c_int) -> Option<CuDevicePtr> {
    let Some((prop, size_bytes)) = mapping::of_device(device, asked_bytes) else {
        say_off("the device has no VMM memory that an fd can share");
        return None;
    };
    if blocks().is_full() {
        say_off("there are too many pieces");
        return None;
    }
    let mut handle = 0;
    // SAFETY: room for a handle, and a structure that is whole.
    let code = unsafe { produce::create(&raw mut handle, size_bytes, &raw const prop, 0) };
    if code != SUCCESS {
        return None;
    }
    records().note_block(handle, asked_bytes as u64);
    let made = make_twin(context).and_then(|twin| {
        let devices = blocks().devices_of(context, device);
        let mapped = mapping::map(handle, size_bytes, &devices).and_then(|base| {
            let block = Block { base, size_bytes, asked_bytes, twin, context, device };
            let others = blocks().enter(block, Origin::Made(handle), &devices);
            let_reach(block, &others)
        });
        mapped.inspect_err(|_| _ = end_twin(twin))
    });
    made.inspect_err(|_| end_handle(handle)).ok()
}

/// Lets the other devices reach a block that was just entered.
///
/// # Errors
/// The driver's: it is taken out again and unmapped.
pub fn let_reach(block: Block, others: &[c_int]) -> Result<CuDevicePtr, CuResult> {
    match mapping::reach(block.base, block.size_bytes, others, true) {
        SUCCESS => Ok(block.base),
        code => {
            // Nobody knows its address.
            let taken = blocks().take(block.base);
            drop(taken);
            mapping::unmap(block.base, block.size_bytes);
            Err(code)
        }
    }
}

/// A twin in `context`, which is this thread's.
///
/// # Errors
/// The driver's.
pub fn make_twin(context: CuContext) -> Result<CuDevicePtr, CuResult> {
    if blocks().is_first_in(context) {
        // The driver makes 2 MiB for the first small piece, and takes them down with the last, 40
        // us each time. One that stays until the context ends keeps them; else twins take longer.
        let _ = make_small();
    }
    make_small()
}

fn make_small() -> Result<CuDevicePtr, CuResult> {
    let (below, mut small) = (driver::ALLOC.get().ok_or(MISSING)?, 0);
    // SAFETY: writes one address through the pointer.
    match unsafe { below(&raw mut small, TWIN_BYTES) } {
        SUCCESS => Ok(small),
        code => Err(code),
    }
}

/// Frees a twin, and waits as the driver does for its own memory.
pub fn end_twin(twin: CuDevicePtr) -> CuResult {
    // SAFETY: made by `make_twin`, and ended once.
    driver::FREE.get().map_or(MISSING, |below| unsafe { below(twin) })
}

/// # Safety
/// As cuMemFree.
pub unsafe fn free(pointer: CuDevicePtr) -> CuResult {
    let Some(below) = driver::FREE.get() else { return MISSING };
    let taken = blocks().take_made(pointer);
    // SAFETY: the caller's promise.
    let Some((block, handle)) = taken else { return unsafe { below(pointer) } };
    let code = end_twin(block.twin);
    if code == SUCCESS {
        end(block, handle);
    } else {
        blocks().enter(block, Origin::Made(handle), &[]);
    }
    code
}

/// Takes down what was made; its twin has ended.
pub fn end(block: Block, handle: CuMemHandle) {
    mapping::unmap(block.base, block.size_bytes);
    unshare(broker::known(), handle);
    end_handle(handle);
}

fn end_handle(handle: CuMemHandle) {
    // SAFETY: the layer's own reference.
    unsafe { produce::release(handle) };
}
