//! Memory of another process as words. The only unsafe code of the command: must never hand out words
//! whose memory may go away or be other than plain shared memory.

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A mapped range of shared memory; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset`, to read and to write.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, len: usize) -> nix::Result<Self> {
        let size = NonZeroUsize::new(len).ok_or(nix::errno::Errno::EINVAL)?;
        let offset = i64::try_from(offset).map_err(|_| nix::errno::Errno::EINVAL)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, fd, offset) }?;
        Ok(Mapping { start, len })
    }

    /// The memory as words; bytes beyond the last whole word are left out.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the range is mapped readable and writable until `self` is dropped.
        unsafe { words(self.start.cast(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping; `words` borrows it, so nobody uses it any more.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}

/// Shared memory as words; bytes beyond the last whole word are left out.
///
/// # Safety
/// `start` is aligned to 8 bytes and mapped readable and writable for `len` bytes as long as `'a`, and
/// what backs it cannot shrink (sealed memfd, dma-buf). Others may write to it at any time: atomics allow that.
pub unsafe fn words<'a>(start: NonNull<u8>, len: usize) -> &'a [AtomicU64] {
    // SAFETY: by this function's contract; any bytes are a valid AtomicU64.
    unsafe { std::slice::from_raw_parts(start.cast().as_ptr(), len / size_of::<AtomicU64>()) }
}
