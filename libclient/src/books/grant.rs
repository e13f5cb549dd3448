//! The grant: a duplicate fd, its lease, and what the allocation is. Import it, or take it apart.
//! Must never keep the fd once the memory is imported.

use super::import::Import;
use super::lease::Lease;
use crate::deposit::AllocationInfo;
use crate::error::Error;
use crate::inherited::{Inheritable, Way};
use crate::map::{Access, AtFork, CannotMap, Mapping, is_same_file, page_size};
use fdbroker_protocol::ErrorCode;
use std::os::fd::{AsFd, OwnedFd};

/// A duplicate fd with its lease. Dropping it closes the fd, then gives the lease back.
///
/// To import by other means (a GPU driver): take it apart, import from `fd`, close `fd`, call
/// [`Lease::mapped`], keep the lease as long as the memory is in use.
#[derive(Debug)]
#[must_use = "dropping a grant gives it back"]
#[non_exhaustive]
pub struct Grant {
    /// The fd, close-on-exec. (Declared before the lease: closed before the lease is given back.)
    pub fd: OwnedFd,
    /// Charged to this client until it is dropped.
    pub lease: Lease,
    /// Kind, size and device as the owner registered them.
    pub info: AllocationInfo,
}

impl Grant {
    /// Maps the allocation from `offset` bytes inside it to its end, closes the fd and reports the
    /// lease as mapped. In a child of a later fork(2) a touch is a SIGSEGV, unless it is final
    /// (`Import::is_final`).
    ///
    /// # Errors
    /// BAD_HANDLE: `offset` is not inside the allocation. NOT_SUPPORTED: this kind of memory cannot
    /// be mapped by the CPU (CUDA VMM). NOT_PERMITTED: for writing, and its owner shares it for
    /// reading only. INTERNAL: no addresses left. In every case the grant is given back.
    pub fn import(self, access: Access, offset: u64) -> Result<Import, Error> {
        self.import_by(access, offset, |lease| lease.handle().map(Way::Handle))
    }

    /// The same; children lease it anew in this way.
    pub(crate) fn import_by(
        self,
        access: Access,
        offset: u64,
        way: impl FnOnce(&Lease) -> Option<Way>,
    ) -> Result<Import, Error> {
        let mapping = self.map(access, offset)?;
        let inheritable = self.inheritable(&mapping, way);
        let Grant { fd, lease, info } = self;
        let mut import = Import::of_grant(mapping, fd, lease, info);
        import.inheritable = inheritable;
        Ok(import)
    }

    /// Notes for children how they lease what was mapped of this, if they have it.
    pub(crate) fn inheritable(
        &self,
        mapping: &Mapping,
        way: impl FnOnce(&Lease) -> Option<Way>,
    ) -> Option<Inheritable> {
        let way = mapping.is_final().then(|| way(&self.lease))?;
        Inheritable::new(self.fd.as_fd(), way?)
    }

    /// Whether `next` begins in the same file where this one ends, both in whole pages: one mmap(2)
    /// serves both.
    pub(crate) fn is_followed_by(&self, next: &Grant) -> bool {
        let (one, two) = (&self.info, &next.info);
        let page = page_size() as u64;
        let is_whole = |bytes: u64| bytes.is_multiple_of(page);
        one.facts.kind == two.facts.kind
            && one.facts.kind.is_mappable()
            && one.facts.size_bytes > 0
            && one.facts.fd_offset.checked_add(one.facts.size_bytes) == Some(two.facts.fd_offset)
            && [one.facts.fd_offset, one.facts.size_bytes, two.facts.size_bytes]
                .into_iter()
                .all(is_whole)
            && is_same_file(self.fd.as_fd(), next.fd.as_fd())
    }

    /// Maps the allocation from `offset` to its end; see [`Grant::import`].
    pub(crate) fn map(&self, access: Access, offset: u64) -> Result<Mapping, CannotMap> {
        let Grant { fd, info, .. } = self;
        if !info.facts.kind.is_mappable() {
            let context = "map a CUDA VMM fd: only the CUDA driver can import it";
            return Err(Error::new(ErrorCode::NotSupported, context).into());
        }
        let length = info.facts.size_bytes.checked_sub(offset).filter(|length| *length > 0);
        let length = length.and_then(|length| usize::try_from(length).ok());
        let start = info.facts.fd_offset.checked_add(offset);
        let (Some(length), Some(start)) = (length, start) else {
            let size_bytes = info.facts.size_bytes;
            let context =
                format!("import {}: offset {offset} is not inside {size_bytes} bytes", info.id);
            return Err(Error::new(ErrorCode::BadHandle, context).into());
        };
        Mapping::new(fd.as_fd(), start, length, access, AtFork::Leave)
    }
}
