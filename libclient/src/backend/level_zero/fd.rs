//! Numbers of fds that the driver gives and takes: duplicated, moved, looked at. Plain system
//! calls. Must never close an fd that is the driver's.

use crate::error::Error;
use crate::limits::LEARNING_FD;
use crate::map::is_same_file;
use fdbroker_protocol::{ErrorCode, MemoryKind};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A duplicate (close-on-exec) at a number of at least `least`; LOCAL_FD_LIMIT when there is none.
pub fn duplicate(fd: BorrowedFd<'_>, least: RawFd) -> Result<OwnedFd, Error> {
    let number = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(least)).map_err(|errno| {
        let code = match errno {
            // EINVAL: `least` is beyond the limit.
            Errno::EMFILE | Errno::EINVAL => ErrorCode::LocalFdLimit,
            _ => ErrorCode::Internal,
        };
        Error::os(code, "duplicate an fd of device memory", errno)
    })?;
    // SAFETY: fcntl has just made it for us, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A duplicate where no other thread's new fd can come while it is tested whether it is still open:
/// fds are made at the lowest free number, so far above all of them. Elsewhere when that is beyond
/// the limit.
pub fn duplicate_apart(fd: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    let last = RawFd::try_from(limit.saturating_sub(1)).unwrap_or(RawFd::MAX);
    duplicate(fd, last.min(LEARNING_FD)).or_else(|_| duplicate(fd, 0))
}

/// Whether the number is open and the same file as `fd`.
pub fn is_still(number: RawFd, fd: BorrowedFd<'_>) -> bool {
    // SAFETY: only looked at, during this call; if another thread closes it meanwhile, fstat says
    // EBADF.
    number >= 0 && is_same_file(unsafe { BorrowedFd::borrow_raw(number) }, fd)
}

/// What an exported fd is. Drivers of real devices export dma-bufs, which know no seals; a driver
/// without a device (tests) exports memfds where the system has no dma-bufs to give. The broker
/// looks too, so what is registered must be what it is.
pub fn kind_of(fd: BorrowedFd<'_>) -> MemoryKind {
    match fcntl(fd, FcntlArg::F_GET_SEALS) {
        Ok(_) => MemoryKind::Memfd,
        Err(_) => MemoryKind::DmaBuf,
    }
}

/// Where every driver and every program looks for the fd in a handle: the first bytes.
pub fn number_in(handle: &[u8; HANDLE_BYTES]) -> RawFd {
    RawFd::from_ne_bytes([handle[0], handle[1], handle[2], handle[3]])
}

/// The handle with another fd in it; its copy elsewhere, if it has one, stays the exporter's.
pub fn with_number(mut handle: [u8; HANDLE_BYTES], number: RawFd) -> [u8; HANDLE_BYTES] {
    handle[..4].copy_from_slice(&number.to_ne_bytes());
    handle
}

/// Where in the exported object the allocation lies: bytes 8 to 15 in every layout known. Only for
/// those who map the fd themselves; the driver reads it by itself.
pub fn offset_in(handle: &[u8; HANDLE_BYTES]) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| handle[8 + i]))
}

/// Bytes of a driver's handle.
pub const HANDLE_BYTES: usize = level_zero_sys::ZE_MAX_IPC_HANDLE_SIZE as usize;
const _: () = assert!(HANDLE_BYTES == fdbroker_protocol::limits::DRIVER_DATA_BYTES);

/// The fd where its number is not the exporter's: with equal numbers a driver with opaque handles
/// takes it for the exporter's and fetches that by pid, which fails or gets other memory. `None`:
/// it is fine as it is.
pub fn moved_off(
    handle: &[u8; HANDLE_BYTES],
    fd: BorrowedFd<'_>,
) -> Result<Option<OwnedFd>, Error> {
    let exporters = number_in(handle);
    if fd.as_raw_fd() == exporters {
        duplicate(fd, exporters.saturating_add(1)).or_else(|_| duplicate(fd, 0)).map(Some)
    } else {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::fd::AsFd;

    fn memfd() -> OwnedFd {
        memfd_create("test", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap()
    }

    #[test]
    fn moved_off_when_the_number_is_the_exporters_then_another_else_as_it_is() {
        let fd = memfd();
        let own = fd.as_raw_fd();
        let handle = with_number([7; HANDLE_BYTES], own);
        assert_eq!((number_in(&handle), handle[4]), (own, 7));

        let moved = moved_off(&handle, fd.as_fd()).unwrap().unwrap();

        assert_ne!(moved.as_raw_fd(), own);
        assert!(is_still(moved.as_raw_fd(), fd.as_fd()));
        let others = with_number(handle, own + 1);
        assert!(moved_off(&others, fd.as_fd()).unwrap().is_none());
    }

    #[test]
    fn is_still_when_closed_or_another_file_then_no() {
        let (fd, other) = (memfd(), memfd());
        let apart = duplicate_apart(fd.as_fd()).unwrap();
        assert!(is_still(apart.as_raw_fd(), fd.as_fd()));
        assert!(!is_still(other.as_raw_fd(), fd.as_fd()));
        let number = apart.as_raw_fd();
        drop(apart);
        assert!(!is_still(number, fd.as_fd()));
        assert!(!is_still(-1, fd.as_fd()));
    }

    #[test]
    fn kind_of_when_it_has_seals_then_memfd() {
        assert_eq!(kind_of(memfd().as_fd()), MemoryKind::Memfd);
        let pipe = nix::unistd::pipe().unwrap();
        assert_eq!(kind_of(pipe.0.as_fd()), MemoryKind::DmaBuf);
    }
}
