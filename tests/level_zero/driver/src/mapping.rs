//! Address ranges: mapped memory, and device addresses without access. Must never map less than it
//! says.

use crate::answer::Failure;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// One range of addresses, unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: *mut c_void,
    bytes: usize,
}

// SAFETY: a range of addresses, which belongs to the process and not to a thread; accesses are the
// user's concern.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of the memory, shared, for reading and writing.
    pub fn shared(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, Failure> {
        Self::new(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.as_raw_fd())
    }

    /// Reserves addresses without memory behind them.
    pub fn reserved(bytes: usize) -> Result<Self, Failure> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::new(bytes, libc::PROT_NONE, flags, -1)
    }

    fn new(bytes: usize, access: i32, flags: i32, fd: i32) -> Result<Self, Failure> {
        // SAFETY: a new range at an address of the kernel's choice; nothing that exists is touched.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, fd, 0) };
        match base {
            libc::MAP_FAILED => Err(Failure::os("mmap", nix::errno::Errno::last_raw())),
            base => Ok(Self { base, bytes }),
        }
    }

    pub fn address(&self) -> usize {
        self.base.addr()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A pointer to the byte at `offset`, which must lie inside.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.bytes, "an offset inside the mapping");
        self.base.cast::<u8>().wrapping_add(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range that mmap gave, unmapped once; whoever held pointers into it was told
        // that it ends.
        unsafe { libc::munmap(self.base, self.bytes) };
    }
}
