//! Memory in one process: addresses, ids, bounds. No case here exports.

use crate::fault::{Outcome, holds, refused, same};
use crate::gpu::{Address, Gpu, handle_offset, pattern};
use level_zero_sys::{ze_memory_type_t, ze_result_t};

const INVALID: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;
/// More than a page, and no multiple of a page.
const BYTES: usize = 10_000;

pub fn read_back(gpu: &Gpu) -> Outcome {
    let (first, second) = (gpu.allocate(BYTES, false)?, gpu.allocate(BYTES, false)?);
    gpu.write(first, &pattern(BYTES, 1))?;
    gpu.write(second, &pattern(BYTES, 2))?;

    holds(gpu.read(first, BYTES)? == pattern(BYTES, 1), || "first: other bytes".to_string())?;
    holds(gpu.read(second, BYTES)? == pattern(BYTES, 2), || "second: other bytes".to_string())?;
    let inside = gpu.read(second.wrapping_byte_add(5000), 100)?;
    holds(inside == pattern(BYTES, 2)[5000..5100], || "inside: other bytes".to_string())?;
    gpu.copy(first, second, BYTES)?;
    holds(gpu.read(first, BYTES)? == pattern(BYTES, 2), || "copied: other bytes".to_string())?;

    gpu.free(first)?;
    Ok(gpu.free(second)?)
}

pub fn past_the_end(gpu: &Gpu) -> Outcome {
    let memory = gpu.allocate(BYTES, false)?;
    let too_many = vec![0; BYTES];

    let done = gpu.write(memory.wrapping_byte_add(1), &too_many);

    refused("a copy past the end", done, ze_result_t::ZE_RESULT_ERROR_INVALID_SIZE)?;
    Ok(gpu.free(memory)?)
}

pub fn another_id(gpu: &Gpu) -> Outcome {
    let first = gpu.allocate(BYTES, false)?;
    let first_id = gpu.properties(first)?.id;
    gpu.free(first)?;
    let second = gpu.allocate(BYTES, false)?;

    // The kernel gives the range freed last again: the case that misleads a cache that trusts
    // addresses.
    same("address of the next allocation", second, first)?;
    let second_id = gpu.properties(second)?.id;
    holds(first_id != second_id, || format!("both have id {first_id}"))?;
    Ok(gpu.free(second)?)
}

pub fn unknown_pointer(gpu: &Gpu) -> Outcome {
    let own = [0u8; 16];
    let pointer: Address = own.as_ptr().cast_mut().cast();

    let found = gpu.properties(pointer)?;

    same("type", found.memory_type, ze_memory_type_t::ZE_MEMORY_TYPE_UNKNOWN)?;
    refused("its range", gpu.range(pointer), ze_result_t::ZE_RESULT_ERROR_UNKNOWN)?;
    refused("its handle", gpu.get(pointer), INVALID)
}

pub fn wrong_free(gpu: &Gpu) -> Outcome {
    let memory = gpu.allocate(BYTES, false)?;

    refused("Free inside", gpu.free(memory.wrapping_byte_add(8)), INVALID)?;
    refused("Close of an allocation", gpu.close_handle(memory), INVALID)?;
    gpu.free(memory)?;
    refused("Free again", gpu.free(memory), INVALID)
}

pub fn never_pooled(gpu: &Gpu) -> Outcome {
    let (pooled, own) = (gpu.allocate(BYTES, false)?, gpu.allocate(BYTES, true)?);

    let (pooled_handle, own_handle) = (gpu.get(pooled)?, gpu.get(own)?);

    holds(handle_offset(pooled_handle) != 0, || "a pooled allocation at offset 0".to_string())?;
    same("offset of the other", handle_offset(own_handle), 0)?;
    gpu.free(pooled)?;
    Ok(gpu.free(own)?)
}
