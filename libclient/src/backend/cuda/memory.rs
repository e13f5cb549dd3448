//! Device memory mapped here: allocated here, or imported from a grant. Freed or unmapped on drop.
//! Must never hold an fd, nor say that it has more bytes than are mapped.

use super::driver::{Context, Mapped, Physical, absent};
use crate::backend::device::{DeviceMemory, MakersWork};
use crate::error::Error;
use crate::map::{Access, check_range};
use fdbroker_protocol::ErrorCode;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Device memory (CUDA VMM) at a device address of this process, for kernels and copies. It holds
/// no fd.
///
/// Not registered by itself: [`crate::cuda::CudaBuffer`] is; or register what
/// [`CudaMemory::export`] gives and answer the recalls. Memory imported stays what it is after its
/// owner has freed it, or has died.
#[derive(Debug)]
pub struct CudaMemory {
    // Field order is drop order: unmapped before it is released.
    mapped: Mapped,
    /// Of own memory; an import is kept by its mapping.
    physical: Option<Physical>,
    /// Where in the mapping it begins.
    lead: usize,
    len: usize,
}

impl CudaMemory {
    /// Allocates; see `new_at`.
    pub(super) fn allocate(
        context: &Arc<Context>,
        bytes: usize,
        address: u64,
    ) -> Result<Self, Error> {
        let len = context.round_up(bytes).ok_or_else(|| {
            Error::new(ErrorCode::BadHandle, format!("{bytes} bytes of device memory cannot be"))
        })?;
        let physical = Physical::create(context, len)?;
        let mapped = Mapped::new(&physical, Access::ReadWrite, address)?;
        Ok(CudaMemory { mapped, physical: Some(physical), lead: 0, len })
    }

    /// Maps what is behind an fd; see `import`.
    pub(super) fn map(
        context: &Arc<Context>,
        fd: BorrowedFd<'_>,
        fd_offset: u64,
        size_bytes: u64,
        access: Access,
    ) -> Result<Self, Error> {
        let number = |bytes: u64| usize::try_from(bytes).ok();
        let (lead, len) = (number(fd_offset), number(size_bytes));
        let whole = lead.zip(len).and_then(|(lead, len)| lead.checked_add(len));
        let whole = whole.and_then(|whole| context.round_up(whole));
        let (Some(lead), Some(len @ 1..), Some(whole)) = (lead, len, whole) else {
            let context = format!("{size_bytes} bytes at {fd_offset} of a VMM fd cannot be");
            return Err(Error::new(ErrorCode::BadHandle, context));
        };
        let physical = Physical::import(context, fd, whole)?;
        let mapped = Mapped::new(&physical, access, 0)?;
        Ok(CudaMemory { mapped, physical: None, lead, len })
    }

    /// A new fd of it, close-on-exec. While it is open the memory stays allocated.
    ///
    /// # Errors
    /// LOCAL_FD_LIMIT: nothing lost, retry. NOT_SUPPORTED: imported memory; in a child of fork(2).
    pub fn export(&self) -> Result<OwnedFd, Error> {
        match &self.physical {
            Some(physical) => physical.export(),
            None => Err(absent("only the owner of the memory exports it")),
        }
    }

    /// Whether it was allocated here.
    pub(super) fn is_own(&self) -> bool {
        self.physical.is_some()
    }

    /// First byte, a device address.
    pub fn device_ptr(&self) -> u64 {
        self.mapped.base() + self.lead as u64
    }

    /// Bytes. Never 0.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies out `into.len()` bytes from `offset`.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds. INTERNAL: the driver's words. NOT_SUPPORTED in a child of
    /// fork(2).
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        check_range(offset, into.len(), self.len)?;
        self.mapped.read_at(self.lead + offset, into)
    }

    /// Copies `bytes` in at `offset`; every process sees them when this returns.
    ///
    /// # Errors
    /// As [`CudaMemory::read_at`]; NOT_SUPPORTED too when imported for reading.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        check_range(offset, bytes.len(), self.len)?;
        self.mapped.write_at(self.lead + offset, bytes)
    }

    /// Sets `len` bytes from `offset` to `byte`.
    ///
    /// # Errors
    /// As [`CudaMemory::write_at`].
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), Error> {
        check_range(offset, len, self.len)?;
        self.mapped.fill(self.lead + offset, len, byte)
    }
}

impl DeviceMemory for CudaMemory {
    fn device_ptr(&self) -> u64 {
        self.device_ptr()
    }

    fn size(&self) -> usize {
        self.len
    }

    fn export(&self) -> Result<OwnedFd, Error> {
        self.export()
    }

    fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.read_at(offset, into)
    }

    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.write_at(offset, bytes)
    }

    fn settle(&self, work: Option<MakersWork>) -> Result<(), Error> {
        self.mapped.settle(work)
    }
}
