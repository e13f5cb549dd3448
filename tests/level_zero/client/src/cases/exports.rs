//! Exported handles and fds: who owns them, and when they end. No case here opens one.

use crate::fault::{Outcome, holds, refused, same};
use crate::gpu::{Gpu, handle_fd, handle_offset, is_open};
use level_zero_sys::{CallError, ze_ipc_mem_handle_t, ze_result_t};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::unistd::{Whence, lseek};
use std::os::fd::BorrowedFd;

const BYTES: usize = 8192;
const INVALID: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;

/// Calls Put and answers true; false where the loader has no Put, where only Free ends an export.
fn put(gpu: &Gpu, handle: ze_ipc_mem_handle_t) -> Result<bool, CallError> {
    match gpu.put(handle) {
        Err(CallError::Missing { .. }) => Ok(false),
        done => done.map(|()| true),
    }
}

fn closed(what: &str, fd: i32) -> Outcome {
    holds(!is_open(fd), || format!("{what}: fd {fd} is still open"))
}

fn open(what: &str, fd: i32) -> Outcome {
    holds(is_open(fd), || format!("{what}: fd {fd} is closed"))
}

pub fn one_fd(gpu: &Gpu) -> Outcome {
    let (memory, other) = (gpu.allocate(BYTES, true)?, gpu.allocate(BYTES, true)?);

    let (first, second, inside) =
        (gpu.get(memory)?, gpu.get(memory)?, gpu.get(memory.wrapping_byte_add(100))?);

    same("the second Get", second.to_bytes(), first.to_bytes())?;
    same("Get of an address inside", inside.to_bytes(), first.to_bytes())?;
    same("export_fd", gpu.export_fd(memory)?, handle_fd(first))?;
    holds(handle_fd(gpu.get(other)?) != handle_fd(first), || "two share one fd".to_string())?;
    same("exported fds", gpu.counters()?.exported_fds, 2)?;
    gpu.free(memory)?;
    Ok(gpu.free(other)?)
}

pub fn last_put(gpu: &Gpu) -> Outcome {
    let memory = gpu.allocate(BYTES, true)?;
    let (first, second) = (gpu.get(memory)?, gpu.get(memory)?);
    let fd = handle_fd(first);
    let has_put = put(gpu, second)?;
    open("before the last Put", fd)?;

    if has_put {
        gpu.put(first)?;
        closed("after the last Put", fd)?;
        same("Put of a finished handle", gpu.put(first), Ok(()))?;
        let again = gpu.get(memory)?;
        open("exported again", handle_fd(again))?;
        gpu.put(again)?;
    } else {
        open("without Put", fd)?;
    }
    gpu.free(memory)?;
    closed("after Free", fd)
}

pub fn put_pooled(gpu: &Gpu) -> Outcome {
    let (first, second) = (gpu.allocate(BYTES, false)?, gpu.allocate(BYTES, false)?);
    let (of_first, of_second) = (gpu.get(first)?, gpu.get(second)?);
    let fd = handle_fd(of_first);

    if put(gpu, of_first)? {
        open("the other's Get still counts", fd)?;
        gpu.put(of_first)?;
        open("a Put too many takes nothing from the other", fd)?;
        gpu.put(of_second)?;
        closed("after the pool's last Put", fd)?;
    }
    gpu.free(first)?;
    gpu.free(second)?;
    closed("after the pool's end", fd)
}

pub fn put_closes_export_fd(gpu: &Gpu) -> Outcome {
    let memory = gpu.allocate(BYTES, true)?;
    let fd = gpu.export_fd(memory)?;
    let handle = gpu.get(memory)?;
    same("fd of the handle", handle_fd(handle), fd)?;

    if put(gpu, handle)? {
        closed("export_fd counts nothing", fd)?;
    }
    Ok(gpu.free(memory)?)
}

pub fn free_closes(gpu: &Gpu) -> Outcome {
    let memory = gpu.allocate(BYTES, true)?;
    let fd = handle_fd(gpu.get(memory)?);
    gpu.get(memory)?;
    open("before Free", fd)?;

    gpu.free(memory)?;

    closed("after Free", fd)
}

pub fn free_ext_closes(gpu: &Gpu) -> Outcome {
    let memory = gpu.allocate(BYTES, true)?;
    let fd = handle_fd(gpu.get(memory)?);

    gpu.free_ext(memory)?;

    closed("after FreeExt", fd)
}

pub fn pooled(gpu: &Gpu) -> Outcome {
    let (first, second) = (gpu.allocate(BYTES, false)?, gpu.allocate(BYTES, false)?);

    let (of_first, of_second) = (gpu.get(first)?, gpu.get(second)?);

    same("fd of the second", handle_fd(of_second), handle_fd(of_first))?;
    let (low, high) = (handle_offset(of_first), handle_offset(of_second));
    holds(low > 0 && high >= low + BYTES as u64, || format!("offsets {low} and {high}"))?;
    // The pool and its fd outlive the first allocation.
    gpu.free(first)?;
    open("after one Free of two", handle_fd(of_first))?;
    gpu.free(second)?;
    closed("after both", handle_fd(of_first))
}

/// fdbroker accepts dma-bufs, and memfds that are sealed against shrinking and further seals.
pub fn acceptable(gpu: &Gpu) -> Outcome {
    let memory = gpu.allocate(BYTES, true)?;
    let number = gpu.export_fd(memory)?;
    // SAFETY: the driver's fd, which lives until the memory is freed.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };

    match fcntl(fd, FcntlArg::F_GET_SEALS) {
        Ok(seals) => {
            let seals = SealFlag::from_bits_retain(seals);
            let wanted = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
            holds(seals.contains(wanted), || format!("seals: {seals:?}"))?;
        }
        // Not a memfd: with ZE_TEST_DRIVER_MEMORY=udmabuf it is a dma-buf.
        Err(_) => {
            let words = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
            holds(words.contains("exp_name:\tudmabuf"), || format!("no udmabuf: {words}"))?;
        }
    }
    same("its size", lseek(fd, 0, Whence::SeekEnd)?, BYTES as i64)?;
    let flags = fcntl(fd, FcntlArg::F_GETFD)?;
    same("close-on-exec", flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC)?;
    Ok(gpu.free(memory)?)
}

pub fn own_fds_only(gpu: &Gpu) -> Outcome {
    let memory = gpu.allocate(BYTES, true)?;
    let handle = gpu.get(memory)?;
    let fd = handle_fd(handle);

    match gpu.handle_of_fd(fd) {
        // Loader 1.8.12 has neither function.
        Err(CallError::Missing { function }) => {
            same("missing", function, "zeMemGetIpcHandleFromFileDescriptorExp")?;
            let other = gpu.fd_of_handle(handle);
            let function = "zeMemGetFileDescriptorFromIpcHandleExp";
            same("the other", other, Err(CallError::Missing { function }))?;
        }
        known => {
            same("handle of the exported fd", known?.to_bytes(), handle.to_bytes())?;
            same("fd of the handle", gpu.fd_of_handle(handle)?, u64::from(fd.unsigned_abs()))?;
            // SAFETY: the driver's fd, which lives until the memory is freed.
            let duplicate = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
            let number = std::os::fd::AsRawFd::as_raw_fd(&duplicate);
            refused("handle of a duplicate", gpu.handle_of_fd(number), INVALID)?;
        }
    }
    Ok(gpu.free(memory)?)
}

pub fn host_memory(gpu: &Gpu) -> Outcome {
    let memory = gpu.allocate_host(BYTES)?;

    let done = gpu.export_fd(memory);

    refused("export_fd", done, ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE)?;
    Ok(gpu.free(memory)?)
}
