//! Memory of another process, opened here, with its lease. Closed, then given back, on drop.
//! Must never hold an fd, nor give the lease back while the memory is open.

use super::lease::Lease;
use crate::deposit::AllocationInfo;
use crate::error::Error;
use crate::inherited::Inheritable;
use crate::map::Mapping;
use std::os::fd::OwnedFd;

/// An allocation opened here, its fd closed, its lease on the ledger as `mapped`. Dropping it
/// closes the memory and gives the lease back: no pointer may be used any more.
///
/// The memory stays as long as it is open, whatever becomes of its owner; ask
/// [`Imported::is_current`] whether it is still what it was.
#[derive(Debug)]
#[must_use = "dropping an import gives it back"]
pub struct Imported<M> {
    // Field order is drop order: closed before the lease is given back.
    pub(crate) inheritable: Option<Inheritable>,
    pub(crate) memory: M,
    lease: Lease,
    info: AllocationInfo,
}

/// An allocation mapped here. The owner and other importers may write at any time, so there is no
/// safe slice of it. dma-buf kinds need no cache maintenance for CPU access on x86, where udmabuf
/// is coherent; for another exporter do DMA_BUF_IOCTL_SYNC on the grant's fd and map it yourself.
pub type Import = Imported<Mapping>;

impl<M> Imported<M> {
    /// Memory opened from a grant: its fd is closed, and the broker told.
    pub(crate) fn of_grant(memory: M, fd: OwnedFd, mut lease: Lease, info: AllocationInfo) -> Self {
        drop(fd);
        lease.mapped();
        Imported { inheritable: None, memory, lease, info }
    }

    /// Whether the allocation still lives, the broker lives, and this client is connected to it. No
    /// syscall.
    pub fn is_current(&self) -> bool {
        self.lease.is_current()
    }

    /// Charged to this client as mapped until the import is dropped.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What the broker said of the allocation.
    pub fn info(&self) -> &AllocationInfo {
        &self.info
    }

    /// Closes the memory and gives the lease back, like drop.
    ///
    /// # Errors
    /// As [`Lease::release`]; the memory is closed all the same.
    pub fn release(self) -> Result<(), Error> {
        let Imported { inheritable, memory, lease, .. } = self;
        drop((inheritable, memory));
        lease.release()
    }
}

impl Import {
    /// First byte: the allocation's at the offset given at import. Writable only when imported so.
    /// In a child of fork(2) only if it is final (`Import::is_final`).
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Bytes, from that offset to the allocation's end. Never 0.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether nobody can change the bytes any more: imported for reading from a memfd that was
    /// sealed against writing and shrinking. A child of fork(2) reads them, too, and keeps them
    /// whatever it drops.
    pub fn is_final(&self) -> bool {
        self.memory.is_final()
    }

    /// The bytes as a slice.
    ///
    /// # Safety
    /// Nobody, in any process, writes to the memory while the slice is in use, and this process was
    /// not forked from the one that imported it, unless it is final.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped for `len` bytes as long as `self` lives; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// Copies out `into.len()` bytes from `offset`, each word read once.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds. NOT_CONNECTED: in a child of fork(2), unless it is final.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.memory.read_at(offset, into)
    }

    /// Copies `bytes` in at `offset`, each word written once.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds. NOT_SUPPORTED: imported for reading. NOT_CONNECTED: in a child of
    /// fork(2).
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.memory.write_at(offset, bytes)
    }
}
