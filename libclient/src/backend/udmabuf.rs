//! Ranges of a sealed memfd as real dma-bufs, through /dev/udmabuf (linux/udmabuf.h).
//! Must never keep an export: each is a new fd, closed when sent.
//!
//! CPU access by an importer needs no DMA_BUF_IOCTL_SYNC on x86: the pages are the memfd's own,
//! cached and coherent. (On another architecture do it on the grant's fd, before it is closed.)

use super::memfd::{MemfdPool, closed_here};
use super::pool::{Pool, PoolExport};
use crate::books::roles::SupplyFd;
use crate::error::Error;
use crate::map::page_size;
use crate::own_fds::OwnFd;
use fdbroker_protocol::ErrorCode;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const DEVICE: &str = "/dev/udmabuf";

/// `struct udmabuf_create` of linux/udmabuf.h.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_FLAGS_CLOEXEC` of linux/udmabuf.h.
const UDMABUF_FLAGS_CLOEXEC: u32 = 1;
/// `UDMABUF_CREATE`: `_IOW('u', 0x42, struct udmabuf_create)`, linux/udmabuf.h and
/// asm-generic/ioctl.h.
const UDMABUF_CREATE: libc::c_ulong = (1 << 30)
    | ((size_of::<UdmabufCreate>() as libc::c_ulong) << 16)
    | ((b'u' as libc::c_ulong) << 8)
    | 0x42;

const _: () = assert!(size_of::<UdmabufCreate>() == 24);

/// Memory in one memfd; every export is a new dma-buf of one range.
#[derive(Debug)]
pub(crate) struct UdmabufPool {
    memory: MemfdPool,
    device: Udmabuf,
}

impl UdmabufPool {
    pub fn new(bytes: usize) -> Result<Self, Error> {
        Ok(UdmabufPool { memory: MemfdPool::new(bytes)?, device: Udmabuf::open()? })
    }
}

/// /dev/udmabuf, open: makes dma-bufs of ranges of memfds.
#[derive(Debug)]
pub struct Udmabuf {
    device: OwnFd,
}

impl Udmabuf {
    /// Opens the device.
    ///
    /// # Errors
    /// NOT_SUPPORTED, with what is missing. LOCAL_FD_LIMIT.
    pub fn open() -> Result<Self, Error> {
        // std opens close-on-exec.
        let device = OpenOptions::new().read(true).write(true).open(DEVICE);
        let what = format!("backend udmabuf: {DEVICE}");
        let refused = |error| Error::no_fd(ErrorCode::NotSupported, &what, error);
        Ok(Udmabuf { device: OwnFd::raised(device.map_err(refused)?.into())? })
    }

    /// A new dma-buf, close-on-exec, of `len` bytes at `offset` of a memfd sealed with
    /// F_SEAL_SHRINK and without F_SEAL_WRITE; both multiples of the page size. It keeps these
    /// pages as long as it is open.
    ///
    /// # Errors
    /// LOCAL_FD_LIMIT; NOT_SUPPORTED when the driver refuses.
    pub fn export_range(
        &self,
        memfd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
    ) -> Result<OwnedFd, Error> {
        let device = self.device.proved().ok_or_else(closed_here)?;
        let memfd = u32::try_from(memfd.as_raw_fd()).expect("an open fd is not negative");
        let request = UdmabufCreate { memfd, flags: UDMABUF_FLAGS_CLOEXEC, offset, size: len };
        // SAFETY: the request is the structure this ioctl reads, and lives over the call. The
        // answer is a new fd or -1.
        let fd =
            unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE as _, &raw const request) };
        if fd < 0 {
            let what = format!("backend udmabuf: {len} bytes at {offset}");
            return Err(Error::no_fd(ErrorCode::NotSupported, &what, io::Error::last_os_error()));
        }
        // SAFETY: the kernel has just made this fd for us, and nobody else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Makes one dma-buf of one page, to see whether it works here.
pub(crate) fn probe() -> Result<(), Error> {
    UdmabufPool::new(1)?.export(0, page_size()).map(drop)
}

impl Pool for UdmabufPool {
    fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    fn len(&self) -> usize {
        self.memory.len()
    }

    fn exports_are_fresh(&self) -> bool {
        true
    }

    fn export(&self, offset: usize, len: usize) -> Result<PoolExport, Error> {
        let fd = self.device.export_range(self.memory.fd()?, offset as u64, len as u64)?;
        Ok(PoolExport { fd: SupplyFd::Fresh(fd), fd_offset: 0 })
    }

    /// A dma-buf that is still open somewhere keeps its pages; the range gets others when it is
    /// next written.
    fn discard(&self, offset: usize, len: usize) {
        self.memory.discard(offset, len);
    }

    fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.memory.read_at(offset, into)
    }

    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.memory.write_at(offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_when_no_device_then_not_supported_and_names_it() {
        match probe() {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.code, ErrorCode::NotSupported);
                assert!(error.to_string().contains("udmabuf"), "{error}");
            }
        }
    }

    #[test]
    fn request_number_when_computed_then_that_of_the_header() {
        assert_eq!(UDMABUF_CREATE, 0x4018_7542);
    }
}
