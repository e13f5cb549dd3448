//! A sealed memfd, mapped: the memory of both host backends. Must never be handed out unsealed.

use super::pool::{Pool, PoolExport};
use crate::books::roles::SupplyFd;
use crate::error::Error;
use crate::map::{Access, AtFork, Mapping, page_size};
use crate::own_fds::{OwnFd, off_stdio};
use fdbroker_protocol::ErrorCode;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::ftruncate;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Memory in one memfd; every export is that fd at an offset.
#[derive(Debug)]
pub(crate) struct MemfdPool {
    fd: Arc<OwnFd>,
    mapping: Mapping,
}

impl MemfdPool {
    /// `bytes`, rounded up to pages, more than 0.
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let len = whole_pages(bytes)?;
        let fd = sealed(c"fdbroker-arena", len)?;
        // Inherited by a forked child, like any memory of its parent's own.
        let mapping = Mapping::new(fd.as_fd(), 0, len, Access::ReadWrite, AtFork::Inherit)?;
        mapping.leave_out_of_dumps()?;
        Ok(MemfdPool { fd: Arc::new(OwnFd::raised(fd)?), mapping })
    }

    /// To be used at once.
    ///
    /// # Errors
    /// NOT_SUPPORTED: the program has closed it.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.fd.proved().ok_or_else(closed_here)
    }
}

/// The memory stays as it is mapped; nobody can make an fd of it again.
pub(crate) fn closed_here() -> Error {
    let why = "this program has closed its fd, which it does not know; what is in it stays, and cannot be shared any more: make \
               other memory, and leave alone what the program has not opened";
    Error::new(ErrorCode::NotSupported, "export the memory").because(why)
}

/// `bytes` in whole pages.
///
/// # Errors
/// BAD_HANDLE: 0. INTERNAL: more than there can be.
pub(crate) fn whole_pages(bytes: usize) -> Result<usize, Error> {
    check_some(bytes)?;
    let context = || format!("shared memory of {bytes} bytes: there are not so many addresses");
    let len = bytes.checked_next_multiple_of(page_size());
    len.ok_or_else(|| Error::new(ErrorCode::Internal, context()))
}

/// # Errors
/// BAD_HANDLE: 0 bytes.
pub(crate) fn check_some(bytes: usize) -> Result<(), Error> {
    let context = "shared memory of 0 bytes: ask for at least one";
    if bytes > 0 { Ok(()) } else { Err(Error::new(ErrorCode::BadHandle, context)) }
}

/// What it means that no memfd can be made.
fn refusal(errno: nix::Error) -> ErrorCode {
    match errno {
        nix::Error::EMFILE | nix::Error::ENFILE => ErrorCode::LocalFdLimit,
        // A seccomp profile, or a kernel without it: no fault of the broker's.
        nix::Error::EPERM | nix::Error::EACCES | nix::Error::ENOSYS => ErrorCode::NotSupported,
        _ => ErrorCode::Internal,
    }
}

/// A memfd of `len` bytes that nobody can shrink, grow or seal any more. F_ADD_SEALS.
pub(crate) fn sealed(name: &CStr, len: usize) -> Result<OwnedFd, Error> {
    let fd = unsealed(name, len)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))
        .map_err(|errno| Error::os(ErrorCode::Internal, "F_ADD_SEALS", errno))?;
    Ok(fd)
}

/// A memfd of `len` bytes that can be sealed. memfd_create(2).
pub(crate) fn unsealed(name: &CStr, len: usize) -> Result<OwnedFd, Error> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create(name, flags)
        .map_err(|errno| Error::os(refusal(errno), "memfd_create", errno))?;
    let fd = off_stdio(fd)?;
    let internal = |errno: nix::Error| Error::os(ErrorCode::Internal, "ftruncate", errno);
    let size = i64::try_from(len).map_err(|_| internal(nix::Error::EFBIG))?;
    check_file_size(len)?;
    ftruncate(&fd, size).map_err(internal)?;
    Ok(fd)
}

/// Beyond RLIMIT_FSIZE ftruncate(2) would end the process by SIGXFSZ.
fn check_file_size(len: usize) -> Result<(), Error> {
    let limit = getrlimit(Resource::RLIMIT_FSIZE).map_or(RLIM_INFINITY, |(soft, _)| soft);
    if limit != RLIM_INFINITY && len as u64 > limit {
        let context = format!(
            "a memfd of {len} bytes: RLIMIT_FSIZE (ulimit -f) is {limit} bytes; raise it, or ask for less"
        );
        return Err(Error::new(ErrorCode::Internal, context));
    }
    Ok(())
}

impl Pool for MemfdPool {
    fn base(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    fn len(&self) -> usize {
        self.mapping.len()
    }

    fn exports_are_fresh(&self) -> bool {
        false
    }

    fn export(&self, offset: usize, _len: usize) -> Result<PoolExport, Error> {
        self.fd()?;
        Ok(PoolExport { fd: SupplyFd::Shared(Arc::clone(&self.fd)), fd_offset: offset as u64 })
    }

    /// fallocate(2), FALLOC_FL_PUNCH_HOLE; the seals allow it, and the mapping stays.
    fn discard(&self, offset: usize, len: usize) {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let (begin, length) = (i64::try_from(offset), i64::try_from(len));
        let (Ok(begin), Ok(length)) = (begin, length) else { return };
        // Closed by the program: the pages stay in use until the memory is unmapped.
        let Some(fd) = self.fd.proved() else { return };
        if let Err(errno) = fallocate(fd, flags, begin, length) {
            // The memory stays with the arena: used again all the same.
            log::warn!("cannot give {len} bytes at {offset} back to the system: {errno}");
        }
    }

    fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.mapping.read_at(offset, into)
    }

    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.mapping.write_at(offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_when_made_then_sealed_against_shrinking_and_sealing() {
        let pool = MemfdPool::new(1).unwrap();
        let seals = fcntl(pool.fd().unwrap(), FcntlArg::F_GET_SEALS).unwrap();
        let seals = SealFlag::from_bits_truncate(seals);
        assert!(seals.contains(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL));
        assert_eq!(pool.len(), page_size());
        assert!(ftruncate(pool.fd().unwrap(), 0).is_err());
    }

    #[test]
    fn refusal_when_seccomp_forbids_it_then_not_supported_and_no_fault_of_the_broker() {
        assert_eq!(refusal(nix::Error::EPERM), ErrorCode::NotSupported);
        assert_eq!(refusal(nix::Error::EMFILE), ErrorCode::LocalFdLimit);
        assert_eq!(refusal(nix::Error::ENOMEM), ErrorCode::Internal);
    }

    #[test]
    fn new_when_made_then_not_in_core_dumps() {
        let pool = MemfdPool::new(1 << 20).unwrap();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = format!("{:x}-", pool.base().addr());
        let mapping = smaps.lines().skip_while(|line| !line.starts_with(&begins));
        let flags = mapping.skip(1).find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.contains(" dd "), "{flags}");
    }

    #[test]
    fn write_at_when_unaligned_then_reads_back_and_bounds_hold() {
        let pool = MemfdPool::new(4096).unwrap();
        let bytes: Vec<u8> = (0..101).collect();
        pool.write_at(3, &bytes).unwrap();
        let mut back = vec![0; 101];
        pool.read_at(3, &mut back).unwrap();
        assert_eq!(back, bytes);
        assert!(pool.write_at(pool.len() - 1, &[1, 2]).is_err());
        assert!(pool.read_at(usize::MAX, &mut back).is_err());
    }
}
