//! What the cache hands out: memory in use.
//! Must never let memory in use be closed, nor hand out a safe reference into it.

use super::pin::Pin;
use super::segments::Row;
use super::table::{Pinned, Table};
use crate::error::Error;
use crate::map::{Access, check_range, copy_in, copy_out};
use fdbroker_protocol::{AllocationId, ErrorCode, Handle};
use std::mem::ManuallyDrop;

/// One outcome per handle, in their order.
pub type Imports<'a> = Vec<Result<CachedImport<'a>, Error>>;

/// Memory of another process in use: not closed before this is dropped, whatever becomes of the
/// allocation.
///
/// The owner and other importers may write at any time, so there is no safe slice of it. The bytes
/// stay readable after the allocation has ended; ask [`CachedImport::is_current`] whether they are
/// still what they were. In a child of fork(2) it is there only if it is final
/// (`CachedImport::is_final`).
#[derive(Debug)]
#[must_use = "dropping an import releases it"]
pub struct CachedImport<'a> {
    table: &'a Table,
    row: Row<'a>,
    pin: Pin,
    id: AllocationId,
    ptr: *mut u8,
    len: usize,
}

// SAFETY: it is a count held in the cache and an address; the memory belongs to the process, not to
// a thread, and is accessed through volatile copies or through raw pointers whose users take on
// that duty.
unsafe impl Send for CachedImport<'_> {}
// SAFETY: as above.
unsafe impl Sync for CachedImport<'_> {}

impl<'a> CachedImport<'a> {
    /// From the handle's offset in memory that is pinned; out of bounds gives the pin back.
    #[inline]
    pub(super) fn new(
        table: &'a Table,
        pinned: Pinned<'a>,
        handle: &Handle,
    ) -> Result<CachedImport<'a>, Error> {
        if handle.offset_bytes >= pinned.len as u64 {
            table.release_held(pinned.pin);
            return Err(out_of_bounds(handle, pinned.len as u64));
        }
        Ok(CachedImport::inside(table, pinned, handle))
    }

    /// The same of a handle whose offset is known to be inside.
    #[inline]
    pub(super) fn inside(table: &'a Table, pinned: Pinned<'a>, handle: &Handle) -> Self {
        let Pinned { row, pin, ptr, len } = pinned;
        let offset = usize::try_from(handle.offset_bytes).unwrap_or(usize::MAX);
        debug_assert!(offset < len);
        // Inside the memory, so neither wraps.
        let (ptr, len) = (ptr.wrapping_add(offset), len.wrapping_sub(offset));
        CachedImport { table, row, pin, id: handle.id(), ptr, len }
    }

    /// The same memory once more, for another handle of the same allocation.
    pub(super) fn again(&self, handle: &Handle) -> Result<CachedImport<'a>, Error> {
        let pinned = self.table.pin_again(self.pin);
        CachedImport::new(self.table, pinned, handle)
    }

    /// The allocation's first byte plus the handle's offset. Writable only when imported so.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Bytes from there to the allocation's end. Never 0.
    #[expect(clippy::len_without_is_empty, reason = "an import is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Slot and generation of the allocation that is open.
    pub fn id(&self) -> AllocationId {
        self.id
    }

    /// Whether the allocation still lives, the broker lives, and this client is connected to it. No
    /// syscall.
    pub fn is_current(&self) -> bool {
        self.table.is_current(self.pin, self.id)
    }

    /// Whether nobody can change the bytes any more, as `Import::is_final` says.
    pub fn is_final(&self) -> bool {
        self.table.is_final(self.pin)
    }

    /// Copies out `into.len()` bytes from `offset`, each word read once.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds. NOT_SUPPORTED: opened by other means than mmap(2). NOT_CONNECTED:
    /// in a child of fork(2), unless it is final.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let from = self.check(offset, into.len(), Access::Read)?;
        // SAFETY: in bounds (checked), mapped as long as `self` is held (it is the library's own
        // mapping), and `into` is exclusively ours.
        unsafe { copy_out(from, into) };
        Ok(())
    }

    /// Copies `bytes` in at `offset`, each word written once.
    ///
    /// # Errors
    /// As [`CachedImport::read_at`]; NOT_SUPPORTED too when opened for reading.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let to = self.check(offset, bytes.len(), Access::ReadWrite)?;
        // SAFETY: in bounds (checked), mapped writable as long as `self` is held.
        unsafe { copy_in(bytes, to) };
        Ok(())
    }

    /// The address of `len` bytes at `offset`, if they may be so used here.
    fn check(&self, offset: usize, len: usize, wanted: Access) -> Result<*mut u8, Error> {
        if !self.table.is_here(self.pin) {
            return Err(Error::forked("use memory imported before"));
        }
        match self.table.host_access(self.pin) {
            None => {
                let context = "copy from memory that was not mapped by this library";
                return Err(Error::new(ErrorCode::NotSupported, context));
            }
            Some(Access::Read) if wanted == Access::ReadWrite => {
                let context = "write to memory imported for reading";
                return Err(Error::new(ErrorCode::NotSupported, context));
            }
            Some(_) => {}
        }
        check_range(offset, len, self.len)?;
        Ok(self.ptr.wrapping_add(offset))
    }

    /// Takes it apart: the caller gives the pin back.
    pub fn into_pin(self) -> Pin {
        ManuallyDrop::new(self).pin
    }
}

impl Drop for CachedImport<'_> {
    #[inline]
    fn drop(&mut self) {
        self.table.unpin(self.row, self.pin.stripe());
    }
}

/// A handle whose offset is not inside its allocation.
#[cold]
pub(super) fn out_of_bounds(handle: &Handle, size_bytes: u64) -> Error {
    let offset = handle.offset_bytes;
    let context =
        format!("import {}: offset {offset} is not inside {size_bytes} bytes", handle.id());
    Error::new(ErrorCode::BadHandle, context)
}
