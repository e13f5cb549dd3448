//! Physical memory mapped at reserved addresses, in one process.

use crate::fault::{Outcome, holds, refused, same};
use crate::gpu::{Gpu, handle_fd, is_open, pattern};
use crate::virtual_memory::MAPPED_BYTES;
use level_zero_sys::ze_result_t;

const INVALID: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;
const BYTES: usize = 10_000;

pub fn mapped_again(gpu: &Gpu) -> Outcome {
    let (first, second) = (gpu.reserve()?, gpu.reserve()?);
    let memory = gpu.create_physical()?;
    gpu.map(first, memory)?;
    gpu.write(first, &pattern(BYTES, 1))?;
    refused("Map where something is", gpu.map(first, memory), INVALID)?;
    same("its range", gpu.range(first)?, (first, MAPPED_BYTES))?;
    let first_id = gpu.properties(first)?.id;

    gpu.unmap(first)?;
    gpu.unmap(first)?;
    gpu.map(second, memory)?;

    holds(gpu.read(second, BYTES)? == pattern(BYTES, 1), || "other bytes".to_string())?;
    refused("the first address", gpu.get(first), INVALID)?;
    holds(gpu.properties(second)?.id != first_id, || "one id for two mappings".to_string())?;
    gpu.unmap(second)?;
    gpu.destroy_physical(memory)?;
    gpu.release(first)?;
    Ok(gpu.release(second)?)
}

pub fn exported_fd(gpu: &Gpu) -> Outcome {
    let (address, memory) = (gpu.reserve()?, gpu.create_physical()?);
    gpu.map(address, memory)?;
    let handle = gpu.get(address)?;

    gpu.unmap(address)?;
    holds(is_open(handle_fd(handle)), || "closed with the mapping".to_string())?;
    gpu.destroy_physical(memory)?;
    holds(!is_open(handle_fd(handle)), || "open after the memory's end".to_string())?;
    Ok(gpu.release(address)?)
}

pub fn destroyed_while_mapped(gpu: &Gpu) -> Outcome {
    let (address, memory) = (gpu.reserve()?, gpu.create_physical()?);
    gpu.map(address, memory)?;
    let handle = gpu.get(address)?;

    gpu.destroy_physical(memory)?;

    holds(!is_open(handle_fd(handle)), || "open after the memory's end".to_string())?;
    refused("its handle", gpu.get(address), INVALID)?;
    Ok(gpu.release(address)?)
}

pub fn released_while_mapped(gpu: &Gpu) -> Outcome {
    let (address, memory) = (gpu.reserve()?, gpu.create_physical()?);
    gpu.map(address, memory)?;

    refused("Free of mapped memory", gpu.free(address), INVALID)?;
    gpu.release(address)?;

    refused("its handle", gpu.get(address), INVALID)?;
    refused("a second release", gpu.release(address), INVALID)?;
    Ok(gpu.destroy_physical(memory)?)
}
