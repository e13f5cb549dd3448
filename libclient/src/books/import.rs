//! Memory of another process, mapped here, with its lease. Unmapped, then given back, on drop.
//! Must never hold an fd, nor give the lease back while the memory is mapped.

use super::lease::Lease;
use crate::deposit::AllocationInfo;
use crate::error::Error;
use crate::map::Mapping;

/// An allocation imported: mapped, its fd closed, its lease on the ledger as `mapped`.
///
/// The owner and other importers may write at any time, so there is no safe slice of it. The bytes stay
/// readable after the allocation has ended; ask [`Import::is_current`] whether they are still what
/// they were. dma-buf kinds need no cache maintenance for CPU access on x86, where udmabuf is
/// coherent; for another exporter do DMA_BUF_IOCTL_SYNC on the grant's fd and map it yourself.
///
/// Dropping it unmaps the memory and gives the lease back: no pointer may be used any more.
#[derive(Debug)]
pub struct Import {
    // Field order is drop order: unmapped before the lease is given back.
    mapping: Mapping,
    lease: Lease,
    info: AllocationInfo,
}

impl Import {
    pub(crate) fn new(mapping: Mapping, lease: Lease, info: AllocationInfo) -> Self {
        Import { mapping, lease, info }
    }

    /// First byte: the allocation's at the offset given at import. Writable only when imported so. Not
    /// mapped in a child of fork(2).
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Bytes, from that offset to the allocation's end. Never 0.
    #[expect(clippy::len_without_is_empty, reason = "an import is never empty")]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The bytes as a slice.
    ///
    /// # Safety
    /// Nobody, in any process, writes to the memory while the slice is in use, and this process was
    /// not forked from the one that imported it.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped for `len` bytes as long as `self` lives; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// Copies out `into.len()` bytes from `offset`, each word read once.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds. NOT_CONNECTED: in a child of fork(2).
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.mapping.read_at(offset, into)
    }

    /// Copies `bytes` in at `offset`, each word written once.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds. NOT_SUPPORTED: imported for reading. NOT_CONNECTED: in a child of fork(2).
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.mapping.write_at(offset, bytes)
    }

    /// Whether the allocation still lives, the broker lives, and this client is connected to it. No syscall.
    pub fn is_current(&self) -> bool {
        self.lease.is_current()
    }

    /// The lease.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What the broker said of the allocation.
    pub fn info(&self) -> &AllocationInfo {
        &self.info
    }

    /// Unmaps the memory and gives the lease back, like drop.
    ///
    /// # Errors
    /// As [`Lease::release`]; the memory is unmapped all the same.
    pub fn release(self) -> Result<(), Error> {
        let Import { mapping, lease, .. } = self;
        drop(mapping);
        lease.release()
    }
}
