//! Buffers of the system's dma-heap (linux/dma-heap.h): real dma-bufs, each with memory of its own.
//! Must never keep the device open: a buffer cannot be exported again, so it is needed once.

use crate::error::Error;
use fdbroker_protocol::ErrorCode;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const DEVICE: &str = "/dev/dma_heap/system";

/// `struct dma_heap_allocation_data` of linux/dma-heap.h.
#[repr(C)]
struct AllocationData {
    len: u64,
    /// Written by the kernel.
    fd: u32,
    fd_flags: u32,
    heap_flags: u64,
}

/// `DMA_HEAP_IOCTL_ALLOC`: `_IOWR('H', 0x0, struct dma_heap_allocation_data)`, linux/dma-heap.h and
/// asm-generic/ioctl.h.
const DMA_HEAP_IOCTL_ALLOC: libc::c_ulong = (3 << 30)
    | ((size_of::<AllocationData>() as libc::c_ulong) << 16)
    | ((b'H' as libc::c_ulong) << 8);

const _: () = {
    assert!(size_of::<AllocationData>() == 24);
    assert!(offset_of!(AllocationData, fd) == 8);
    assert!(offset_of!(AllocationData, fd_flags) == 12);
    assert!(offset_of!(AllocationData, heap_flags) == 16);
    // As a C program prints it.
    assert!(DMA_HEAP_IOCTL_ALLOC == 0xc018_4800);
};

/// A dma-buf of `bytes`, a multiple of the page size, zeroed, readable and writable.
pub(crate) fn allocate(bytes: usize) -> Result<OwnedFd, Error> {
    let device = open()?;
    let flags = u32::try_from(libc::O_RDWR | libc::O_CLOEXEC).expect("flags are not negative");
    let mut data = AllocationData { len: bytes as u64, fd: 0, fd_flags: flags, heap_flags: 0 };
    // SAFETY: the ioctl reads and writes the structure it is defined with, which lives over the
    // call.
    let failed =
        unsafe { libc::ioctl(device.as_raw_fd(), DMA_HEAP_IOCTL_ALLOC as _, &raw mut data) };
    if failed != 0 {
        let error = io::Error::last_os_error();
        let lacks_memory = error.raw_os_error() == Some(libc::ENOMEM);
        let code = if lacks_memory { ErrorCode::Internal } else { ErrorCode::NotSupported };
        return Err(Error::no_fd(code, &format!("memory dma-heap: {bytes} bytes"), error));
    }
    let fd = RawFd::try_from(data.fd).expect("an fd of the kernel's is not negative");
    // SAFETY: the kernel has just made this fd for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens the device, to see whether it may be used here.
pub(crate) fn probe() -> Result<(), Error> {
    open().map(drop)
}

fn open() -> Result<File, Error> {
    // The ioctl asks for no more than an open file; std opens close-on-exec.
    File::open(DEVICE).map_err(|error| {
        let reason = match error.raw_os_error() {
            Some(libc::ENOENT) => " (this kernel or container has no dma-heap)",
            Some(libc::EACCES | libc::EPERM) => " (ask for access to it, such as by its group)",
            _ => "",
        };
        let what = format!("memory dma-heap: {DEVICE}{reason}");
        Error::no_fd(ErrorCode::NotSupported, &what, error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocate_when_no_device_then_not_supported_and_names_it() {
        match allocate(4096) {
            Ok(_) => probe().unwrap(),
            Err(error) => {
                assert_eq!(error.code, ErrorCode::NotSupported);
                assert!(error.to_string().contains(DEVICE), "{error}");
                assert_eq!(probe().unwrap_err().code, ErrorCode::NotSupported);
            }
        }
    }
}
