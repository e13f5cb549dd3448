//! Imported handles and fds in one process: who owns the fd, and what ends an import.

use crate::fault::{Outcome, holds, refused, same};
use crate::gpu::{Gpu, handle_fd, handle_offset, is_open, pattern};
use level_zero_sys::{ze_ipc_mem_handle_t, ze_result_t};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

const BYTES: usize = 8192;
const INVALID: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;

pub fn opened_twice(gpu: &Gpu) -> Outcome {
    let memory = gpu.allocate(BYTES, false)?;
    gpu.write(memory, &pattern(BYTES, 3))?;
    let handle = gpu.get(memory)?;

    let (first, second) = (gpu.open_handle(handle)?, gpu.open_handle(handle)?);

    holds(first != second && first != memory, || "one pointer for two".to_string())?;
    let (base, _) = gpu.range(first)?;
    let offset = usize::try_from(handle_offset(handle))?;
    same("pointer into the object", first.addr() - base.addr(), offset)?;
    gpu.close_handle(first)?;
    refused("Close again", gpu.close_handle(first), INVALID)?;
    let bytes = gpu.read(second, BYTES)?;
    holds(bytes == pattern(BYTES, 3), || "the second: other bytes".to_string())?;
    gpu.close_handle(second)?;
    Ok(gpu.free(memory)?)
}

pub fn freed(gpu: &Gpu) -> Outcome {
    let memory = gpu.allocate(BYTES, false)?;
    let opened = gpu.open_handle(gpu.get(memory)?)?;

    gpu.free(opened)?;

    same("imports", gpu.counters()?.imports, 0)?;
    refused("Close after Free", gpu.close_handle(opened), INVALID)?;
    Ok(gpu.free(memory)?)
}

/// A duplicate of an exported fd whose memory is freed: only the duplicate keeps the memory alive.
fn exported(gpu: &Gpu) -> Result<OwnedFd, crate::fault::Fault> {
    let memory = gpu.allocate(BYTES, true)?;
    gpu.write(memory, &pattern(BYTES, 4))?;
    // SAFETY: the driver's fd, which lives until the memory is freed.
    let fd = unsafe { BorrowedFd::borrow_raw(gpu.export_fd(memory)?) }.try_clone_to_owned()?;
    gpu.free(memory)?;
    Ok(fd)
}

pub fn driver_closes(gpu: &Gpu) -> Outcome {
    let fd = exported(gpu)?;
    let number = fd.as_raw_fd();

    let memory = gpu.import_fd(number, BYTES)?;

    holds(!is_open(number), || "the fd is still open".to_string())?;
    let _ = fd.into_raw_fd(); // the driver took and closed it
    let bytes = gpu.read(memory, BYTES)?;
    holds(bytes == pattern(BYTES, 4), || "other bytes".to_string())?;
    Ok(gpu.free(memory)?)
}

pub fn caller_closes(gpu: &Gpu) -> Outcome {
    let fd = exported(gpu)?;

    let memory = gpu.import_fd(fd.as_raw_fd(), BYTES)?;

    holds(is_open(fd.as_raw_fd()), || "the driver closed the caller's fd".to_string())?;
    drop(fd);
    let bytes = gpu.read(memory, BYTES)?;
    holds(bytes == pattern(BYTES, 4), || "other bytes".to_string())?;
    Ok(gpu.free(memory)?)
}

pub fn refused_stays_open(gpu: &Gpu) -> Outcome {
    let fd = exported(gpu)?;
    let null = File::open("/dev/null")?;

    let too_small = gpu.import_fd(fd.as_raw_fd(), BYTES + 1);
    let no_memory = gpu.import_fd(null.as_raw_fd(), BYTES);

    refused("more than there is", too_small, ze_result_t::ZE_RESULT_ERROR_INVALID_SIZE)?;
    refused("an fd of no memory", no_memory, INVALID)?;
    refused("no fd", gpu.import_fd(-1, BYTES), INVALID)?;
    holds(is_open(fd.as_raw_fd()) && is_open(null.as_raw_fd()), || "an fd was closed".to_string())
}

pub fn exported_again(gpu: &Gpu) -> Outcome {
    let fd = exported(gpu)?;
    let import = gpu.import_fd(fd.into_raw_fd(), BYTES)?;

    let opened = gpu.open_handle(gpu.get(import)?)?;
    gpu.write(opened, &pattern(BYTES, 5))?;

    let bytes = gpu.read(import, BYTES)?;
    holds(bytes == pattern(BYTES, 5), || "not the same memory".to_string())?;
    gpu.close_handle(opened)?;
    Ok(gpu.free(import)?)
}

pub fn garbage(gpu: &Gpu) -> Outcome {
    let handle = gpu.get_and_free(BYTES)?;

    refused("zeros", gpu.open_handle(ze_ipc_mem_handle_t::default()), INVALID)?;
    let ones = ze_ipc_mem_handle_t::from_bytes([0xff; 64]);
    refused("ones", gpu.open_handle(ones), INVALID)?;
    refused("of freed memory", gpu.open_handle(handle), INVALID)?;
    holds(!is_open(handle_fd(handle)), || "the fd is open again".to_string())
}
