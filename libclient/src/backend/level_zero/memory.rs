//! Device memory here: allocated here, or imported from a grant. Freed or closed on drop.
//! Must never hold an fd, nor say that it has more bytes than the driver has.

use super::context::Context;
use super::driver::absent;
use super::fd::HANDLE_BYTES;
use crate::backend::device::{DeviceMemory, MakersWork};
use crate::error::Error;
use crate::map::{Access, check_range};
use fdbroker_protocol::{ErrorCode, MemoryKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Device memory (Level Zero) at a device address of this process, for kernels and copies. It holds
/// no fd of its own.
///
/// Not registered by itself: [`crate::level_zero::LevelZeroBuffer`] is. Memory imported stays what
/// it is after its owner has freed it, or has died.
#[derive(Debug)]
pub struct LevelZeroMemory {
    context: Arc<Context>,
    origin: Origin,
    /// What the driver gave.
    pointer: u64,
    /// Where behind it the memory begins.
    lead: u64,
    len: usize,
    access: Access,
}

/// What made it, which decides what ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Allocated,
    ImportedFd,
    Opened,
}

impl LevelZeroMemory {
    /// Allocates; see `new`.
    pub(super) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<Self, Error> {
        if bytes == 0 {
            let context = "0 bytes of device memory cannot be";
            return Err(Error::new(ErrorCode::BadHandle, context));
        }
        let (context, origin, access) = (Arc::clone(context), Origin::Allocated, Access::ReadWrite);
        let pointer = context.allocate(bytes)?;
        Ok(LevelZeroMemory { context, origin, pointer, lead: 0, len: bytes, access })
    }

    /// Imports what is behind an fd; see `import_fd`.
    pub(super) fn of_fd(
        context: &Arc<Context>,
        fd: BorrowedFd<'_>,
        fd_offset: u64,
        size_bytes: u64,
        access: Access,
    ) -> Result<Self, Error> {
        let whole = fd_offset.checked_add(size_bytes).and_then(|n| usize::try_from(n).ok());
        let (Some(whole), Some(len)) = (whole, positive(size_bytes)) else {
            return Err(impossible(size_bytes));
        };
        let pointer = context.import_fd(fd, whole)?;
        let (context, origin) = (Arc::clone(context), Origin::ImportedFd);
        Self { context, origin, pointer, lead: fd_offset, len, access }.checked()
    }

    /// The memory of a driver's handle of another process, with an fd of this one.
    pub(super) fn open(
        context: &Arc<Context>,
        handle: &[u8; HANDLE_BYTES],
        fd: BorrowedFd<'_>,
        size_bytes: u64,
        access: Access,
    ) -> Result<Self, Error> {
        let len = positive(size_bytes).ok_or_else(|| impossible(size_bytes))?;
        let pointer = context.open(handle, fd)?;
        let (context, origin) = (Arc::clone(context), Origin::Opened);
        Self { context, origin, pointer, lead: 0, len, access }.checked()
    }

    /// Sizes and offsets are the owner's word until the driver has confirmed them. An error gives
    /// the memory back.
    fn checked(self) -> Result<Self, Error> {
        let range = self.context.range(self.pointer)?;
        let begin = (self.pointer - range.base).checked_add(self.lead);
        let end = begin.and_then(|begin| begin.checked_add(self.len as u64));
        if end.is_some_and(|end| end <= range.bytes) {
            Ok(self)
        } else {
            let context = format!(
                "{} bytes, of which the driver has fewer: {} in all",
                self.len, range.bytes
            );
            Err(Error::new(ErrorCode::BadHandle, context))
        }
    }

    /// A duplicate of its fd, close-on-exec. While it is open the memory stays allocated. For a
    /// moment the driver has another one.
    ///
    /// # Errors
    /// LOCAL_FD_LIMIT: nothing lost, retry. NOT_SUPPORTED: imported memory; in a child of fork(2).
    pub fn export(&self) -> Result<OwnedFd, Error> {
        match self.origin {
            Origin::Allocated => self.context.export_own(self.pointer),
            _ => Err(absent("only the owner of the memory exports it")),
        }
    }

    /// What its export is.
    pub(super) fn kind(&self) -> Result<MemoryKind, Error> {
        self.context.own_kind(self.pointer)
    }

    /// The driver's id of it.
    pub(super) fn id(&self) -> Result<u64, Error> {
        Ok(self.context.range(self.pointer)?.id)
    }

    /// Whether it was allocated here.
    pub(super) fn is_own(&self) -> bool {
        self.origin == Origin::Allocated
    }

    /// First byte, a device address.
    pub fn device_ptr(&self) -> u64 {
        self.pointer + self.lead
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
        let from = self.check(offset, into.len())?;
        self.context.read(from, into)
    }

    /// Copies `bytes` in at `offset`; every process sees them when this returns.
    ///
    /// # Errors
    /// As [`LevelZeroMemory::read_at`]; NOT_SUPPORTED too when imported for reading.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let to = self.check_writable(offset, bytes.len())?;
        self.context.write(to, bytes)
    }

    /// Sets `len` bytes from `offset` to `byte`.
    ///
    /// # Errors
    /// As [`LevelZeroMemory::write_at`].
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), Error> {
        let to = self.check_writable(offset, len)?;
        self.context.fill(to, len, byte)
    }

    fn check_writable(&self, offset: usize, len: usize) -> Result<u64, Error> {
        match self.access {
            Access::ReadWrite => self.check(offset, len),
            Access::Read => Err(absent("write to memory imported for reading")),
        }
    }

    /// The device address of `len` bytes at `offset`.
    fn check(&self, offset: usize, len: usize) -> Result<u64, Error> {
        check_range(offset, len, self.len)?;
        Ok(self.device_ptr() + offset as u64)
    }
}

impl DeviceMemory for LevelZeroMemory {
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

    /// Without work its maker says that it is done.
    fn settle(&self, work: Option<MakersWork>) -> Result<(), Error> {
        work.map_or(Ok(()), |work| self.context.settle(work))
    }
}

impl Drop for LevelZeroMemory {
    fn drop(&mut self) {
        match self.origin {
            Origin::Allocated | Origin::ImportedFd => self.context.free(self.pointer),
            Origin::Opened => self.context.close(self.pointer),
        }
    }
}

fn positive(bytes: u64) -> Option<usize> {
    usize::try_from(bytes).ok().filter(|bytes| *bytes > 0)
}

fn impossible(size_bytes: u64) -> Error {
    let context = format!("{size_bytes} bytes of device memory cannot be");
    Error::new(ErrorCode::BadHandle, context)
}
