//! What a program that asks hears of a block: what it would hear of the driver's own memory. Must
//! never answer for the twin where the answer leads to bytes.

use crate::blocks::{Block, Origin};
use crate::driver::{self, MISSING};
use crate::memory::blocks;
use crate::result::{CuDevicePtr, CuMemHandle, CuResult, SUCCESS};
use std::ffi::{c_int, c_uint, c_void};

/// Who answers for an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The driver, of the twin: as of all its own memory.
    Twin,
    /// The driver, of the block's memory, as it is.
    Block,
    /// The twin's of what was made here: it can be shared. What was opened cannot.
    Maker,
    /// The address that was asked for.
    Pointer,
    /// Where the block begins.
    Base,
    /// How many bytes the program has asked for.
    Asked,
    /// How many bytes are mapped.
    Size,
}

/// The attributes of `CUpointer_attribute`, by their numbers from 1 on. Of one that is not here the
/// driver answers for the memory as it is.
const ANSWERS: [(c_int, Answer); 20] = [
    (1, Answer::Twin),    // CONTEXT
    (2, Answer::Twin),    // MEMORY_TYPE: device
    (3, Answer::Pointer), // DEVICE_POINTER
    (4, Answer::Twin),    // HOST_POINTER: none
    (5, Answer::Block),   // P2P_TOKENS: they lead to bytes
    (6, Answer::Block),   // SYNC_MEMOPS: it is set of the block
    (7, Answer::Twin),    // BUFFER_ID: never used again
    (8, Answer::Twin),    // IS_MANAGED: no
    (9, Answer::Twin),    // DEVICE_ORDINAL
    (10, Answer::Maker),  // IS_LEGACY_CUDA_IPC_CAPABLE
    (11, Answer::Base),   // RANGE_START_ADDR
    (12, Answer::Asked),  // RANGE_SIZE
    (13, Answer::Twin),   // MAPPED: yes
    (14, Answer::Twin),   // ALLOWED_HANDLE_TYPES: none
    (15, Answer::Block),  // IS_GPU_DIRECT_RDMA_CAPABLE: as it was made
    (16, Answer::Twin),   // ACCESS_FLAGS
    (17, Answer::Twin),   // MEMPOOL_HANDLE: none
    (18, Answer::Size),   // MAPPING_SIZE
    (19, Answer::Base),   // MAPPING_BASE_ADDR
    (20, Answer::Block),  // MEMORY_BLOCK_ID: one for each memory
];

fn answer_of(attribute: c_int) -> Answer {
    let row = ANSWERS.iter().find(|(number, _)| *number == attribute);
    row.map_or(Answer::Block, |(_, answer)| *answer)
}

/// The block of an address, and whether it was made here.
fn block_at(address: CuDevicePtr) -> Option<(Block, bool)> {
    let blocks = blocks();
    let (block, origin) = blocks.at(address)?;
    Some((*block, matches!(origin, Origin::Made(_))))
}

/// What to ask the driver of, and the 8 bytes to put in the place of its answer.
fn seen(
    (block, is_made): &(Block, bool),
    attribute: c_int,
    address: CuDevicePtr,
) -> (CuDevicePtr, Option<u64>) {
    match answer_of(attribute) {
        Answer::Twin => (block.twin, None),
        Answer::Maker if *is_made => (block.twin, None),
        Answer::Maker | Answer::Block => (address, None),
        Answer::Pointer => (block.twin, Some(address)),
        Answer::Base => (block.twin, Some(block.base)),
        Answer::Asked => (block.twin, Some(block.asked_bytes as u64)),
        Answer::Size => (block.twin, Some(block.size_bytes as u64)),
    }
}

/// # Safety
/// As cuPointerGetAttribute.
pub unsafe fn attribute(data: *mut c_void, attribute: c_int, address: CuDevicePtr) -> CuResult {
    let Some(below) = driver::GET_ATTRIBUTE.get() else { return MISSING };
    let Some(block) = block_at(address) else {
        // SAFETY: the caller's promise.
        return unsafe { below(data, attribute, address) };
    };
    let (of, instead) = seen(&block, attribute, address);
    // SAFETY: the caller's promise: the attribute says what is written.
    let code = unsafe { below(data, attribute, of) };
    if let Some(value) = instead.filter(|_| code == SUCCESS) {
        // SAFETY: these attributes are 8 bytes, which the driver has just written.
        unsafe { data.cast::<u64>().write_unaligned(value) };
    }
    code
}

/// # Safety
/// As cuPointerGetAttributes.
pub unsafe fn attributes(
    count: c_uint,
    attributes: *mut c_int,
    data: *mut *mut c_void,
    address: CuDevicePtr,
) -> CuResult {
    let Some(below) = driver::GET_ATTRIBUTES.get() else { return MISSING };
    let Some(block) = block_at(address).filter(|_| !attributes.is_null() && !data.is_null()) else {
        // SAFETY: the caller's promise.
        return unsafe { below(count, attributes, data, address) };
    };
    // SAFETY: the caller's promise.
    let mut code = unsafe { below(count, attributes, data, block.0.twin) };
    for at in 0..count as usize {
        if code != SUCCESS {
            break;
        }
        // SAFETY: the caller's promise: there are so many of both, and each place has room for what
        // its attribute says.
        unsafe {
            let (attribute, place) = (attributes.add(at), data.add(at));
            match seen(&block, *attribute, address) {
                (_, Some(value)) => (*place).cast::<u64>().write_unaligned(value),
                (of, None) if of == address => code = below(1, attribute, place, address),
                (_, None) => {}
            }
        }
    }
    code
}

/// # Safety
/// As cuMemGetAddressRange.
pub unsafe fn range(base: *mut CuDevicePtr, bytes: *mut usize, address: CuDevicePtr) -> CuResult {
    let Some(below) = driver::ADDRESS_RANGE.get() else { return MISSING };
    let block = block_at(address);
    // SAFETY: the caller's promise.
    let code = unsafe { below(base, bytes, block.map_or(address, |(block, _)| block.twin)) };
    if let Some((block, _)) = block.filter(|_| code == SUCCESS) {
        // SAFETY: where they are not null, the driver has just written there.
        unsafe {
            if !base.is_null() {
                *base = block.base;
            }
            if !bytes.is_null() {
                *bytes = block.asked_bytes;
            }
        }
    }
    code
}

/// # Safety
/// As cuMemRetainAllocationHandle.
pub unsafe fn retain(handle: *mut CuMemHandle, address: *mut c_void) -> CuResult {
    let twin = block_at(address.addr() as u64).map(|(block, _)| block.twin);
    let Some(twin) = twin.and_then(|twin| usize::try_from(twin).ok()) else {
        // SAFETY: the caller's promise.
        return unsafe { crate::produce::retain(handle, address) };
    };
    let Some(below) = driver::RETAIN.get() else { return MISSING };
    // SAFETY: the caller's promise. It is refused, as of all memory of cuMemAlloc.
    unsafe { below(handle, std::ptr::without_provenance_mut(twin)) }
}
