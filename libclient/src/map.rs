//! Memory shared with other processes, mapped: the one place that maps, reads, writes and unmaps
//! it. Must never hand out a safe reference into it: another process may write at any time.

use crate::error::Error;
use crate::fork::Process;
pub(crate) use crate::reserved::page_size;
use crate::zones::{self, Map};
use fdbroker_protocol::ErrorCode;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, munmap};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::stat::fstat;
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// What an import may do with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// PROT_READ: a write is a SIGSEGV.
    Read,
    /// PROT_READ and PROT_WRITE: every process that has the memory sees what is written.
    ReadWrite,
}

/// Whether a child has the mapping after fork(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtFork {
    /// The child does not have it, nor anything else at its addresses (see `zones.rs`), unless
    /// nobody can change its bytes any more.
    Leave,
    /// The child has it too.
    Inherit,
}

/// A mapping of part of an fd, `len` bytes from any offset. Unmapped on drop, but not by a child
/// that has inherited it: copies of counts, made in the middle of anything, may say that nobody
/// needs it, and be wrong.
#[derive(Debug)]
pub struct Mapping {
    /// Page-aligned start and bytes of what was mapped.
    start: NonNull<u8>,
    span: usize,
    /// Where what was asked for begins in it.
    lead: usize,
    len: usize,
    access: Access,
    at_fork: AtFork,
    process: Process,
}

// SAFETY: the mapping belongs to the process, not to a thread; it is accessed through volatile
// copies or through raw pointers whose users take on that duty.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes (more than 0) from `offset` of `fd`, shared with every other holder.
    ///
    /// # Errors
    /// [`CannotMap::lacks_room`] says that it may go when other mappings have ended.
    pub fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        access: Access,
        at_fork: AtFork,
    ) -> Result<Self, CannotMap> {
        let page = page_size();
        let lead = usize::try_from(offset % page as u64).expect("less than a page");
        let too_far = || Error::new(ErrorCode::Internal, format!("cannot map at offset {offset}"));
        let begin = libc::off_t::try_from(offset - lead as u64).map_err(|_| too_far())?;
        let span = len.checked_add(lead).and_then(NonZeroUsize::new).ok_or_else(too_far)?;
        let protection = match access {
            Access::Read => ProtFlags::PROT_READ,
            Access::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        let seals = seals_of(fd);
        let has = |which| seals.is_some_and(|seals| seals.contains(which));
        let at_fork = match access {
            Access::Read if has(FINAL) => AtFork::Inherit,
            _ => at_fork,
        };
        let map = |flags| {
            let map = Map { fd, seals, begin, len: span, protection, flags };
            match at_fork {
                AtFork::Leave => map.in_zone(),
                AtFork::Inherit => map.anywhere().map(|start| (start, span)),
            }
        };
        let mapped = match map(MapFlags::MAP_SHARED) {
            // Before Linux 6.7 no fd that is open for writing can be mapped shared once its memory
            // is sealed against writing. Of memory that never changes a private map has the same
            // pages.
            Err(Errno::EPERM) if access == Access::Read && has(SealFlag::F_SEAL_WRITE) => {
                map(MapFlags::MAP_PRIVATE)
            }
            outcome => outcome,
        };
        let (start, span) = mapped.map_err(|errno| cannot_map(span.get(), access, errno))?;
        Ok(Mapping {
            start: start.cast(),
            span: span.get(),
            lead,
            len,
            access,
            at_fork,
            process: Process::current(),
        })
    }

    /// Takes off what lies behind the first `len` bytes, which are whole pages. Each part is
    /// unmapped by itself.
    pub fn split_off(&mut self, len: usize) -> Mapping {
        let page = page_size();
        assert!(self.lead == 0 && len < self.len && len.is_multiple_of(page), "whole pages inside");
        // SAFETY: `len` is less than `span`, so the result is inside the mapping.
        let start = unsafe { self.start.add(len) };
        let rest = Mapping { start, span: self.span - len, len: self.len - len, ..*self };
        (self.span, self.len) = (len, len);
        rest
    }

    /// Keeps it out of core dumps (MADV_DONTDUMP). Writing a dump touches every page of shared
    /// memory, so that each hole of a sparse file becomes a page in memory and in the dump.
    pub fn leave_out_of_dumps(&self) -> Result<(), Error> {
        // SAFETY: the range is our own mapping; the advice changes no byte of it.
        unsafe { madvise(self.start.cast::<c_void>(), self.span, MmapAdvise::MADV_DONTDUMP) }
            .map_err(|errno| Error::os(ErrorCode::Internal, "MADV_DONTDUMP", errno))
    }

    /// Bytes asked for; the mapping itself has whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody can change the bytes any more, nor take them away: a child reads them, too.
    pub fn is_final(&self) -> bool {
        self.access == Access::Read && self.at_fork == AtFork::Inherit
    }

    /// First byte asked for. Valid as long as the mapping lives, in this process; of one that is
    /// final in its children, too.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `lead` is less than `span`, so the result is inside the mapping.
        unsafe { self.start.as_ptr().add(self.lead) }
    }

    /// Copies out `into.len()` bytes from `offset`.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.check(offset, into.len())?;
        // SAFETY: in bounds (checked), mapped as long as `self` lives, and `into` is exclusively
        // ours.
        unsafe { copy_out(self.as_ptr().add(offset), into) };
        Ok(())
    }

    /// Copies `bytes` in at `offset`.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        if self.access == Access::Read {
            let context = "write to memory imported for reading";
            return Err(Error::new(ErrorCode::NotSupported, context));
        }
        self.check(offset, bytes.len())?;
        // SAFETY: in bounds (checked), mapped writable as long as `self` lives.
        unsafe { copy_in(bytes, self.as_ptr().add(offset)) };
        Ok(())
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), Error> {
        if !self.process.is_current() && self.at_fork == AtFork::Leave {
            return Err(Error::forked("use memory imported before"));
        }
        check_range(offset, len, self.len)
    }
}

/// What nobody can write any more, by any map, nor make shorter.
const FINAL: SealFlag = SealFlag::F_SEAL_WRITE.union(SealFlag::F_SEAL_SHRINK);

/// F_GET_SEALS; `None` of what takes no seals.
fn seals_of(fd: BorrowedFd<'_>) -> Option<SealFlag> {
    fcntl(fd, FcntlArg::F_GET_SEALS).ok().map(SealFlag::from_bits_retain)
}

/// Leaves a range that something else has mapped out of children (MADV_DONTFORK), in whole pages.
pub(crate) fn leave_out_of_children(ptr: *mut u8, len: usize) -> Result<(), Error> {
    let lead = ptr.addr() % page_size();
    let range = NonNull::new(ptr.wrapping_sub(lead)).zip(len.checked_add(lead));
    let outcome = range.map(|(start, span)| {
        // SAFETY: the advice changes no byte of the range, whatever is there.
        unsafe { madvise(start.cast::<c_void>(), span, MmapAdvise::MADV_DONTFORK) }
    });
    match outcome {
        Some(Ok(())) => Ok(()),
        _ => {
            let context = format!("leave {len} bytes at {ptr:p} out of children");
            let why = "what an opener opens as a range must be mapped, in whole pages";
            Err(Error::new(ErrorCode::Internal, context).because(why))
        }
    }
}

/// BAD_HANDLE unless `len` bytes at `offset` lie in `size` bytes.
pub(crate) fn check_range(offset: usize, len: usize, size: usize) -> Result<(), Error> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => {
            let context = format!("{len} bytes at {offset} exceed the {size} that there are");
            Err(Error::new(ErrorCode::BadHandle, context).because("stay inside the memory"))
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A child does not have it, or it has inherited it, and it stays.
        if !self.process.is_current() {
            return;
        }
        if self.at_fork == AtFork::Leave {
            zones::unmap(self.start, self.span);
            return;
        }
        // SAFETY: the mapping is ours, and whoever took a pointer promised not to outlive it.
        if let Err(errno) = unsafe { munmap(self.start.cast::<c_void>(), self.span) } {
            log::error!("cannot unmap {} bytes: {errno}", self.span);
        }
    }
}

/// Why memory is not mapped.
#[derive(Debug)]
pub struct CannotMap {
    pub(crate) error: Error,
    /// The process has no addresses or no mappings left.
    pub(crate) lacks_room: bool,
}

impl From<Error> for CannotMap {
    fn from(error: Error) -> Self {
        CannotMap { error, lacks_room: false }
    }
}

impl From<CannotMap> for Error {
    fn from(failure: CannotMap) -> Self {
        failure.error
    }
}

/// Why mmap(2) or madvise(2) failed. Shared memory is not reserved by mapping it, whatever the
/// overcommit setting: what can lack is addresses, and mappings.
pub(crate) fn cannot_map(span: usize, access: Access, errno: nix::Error) -> CannotMap {
    use Errno::{EACCES, ENOMEM, EPERM};
    let error = |code| Error::os(code, &format!("cannot map {span} bytes"), errno);
    let limit = getrlimit(Resource::RLIMIT_AS).map_or(RLIM_INFINITY, |(soft, _)| soft);
    let error = match errno {
        // The fd is not open for writing, or sealed against it.
        EACCES | EPERM if access == Access::ReadWrite => error(ErrorCode::NotPermitted)
            .because("its owner shares this memory for reading only; import it for reading"),
        ENOMEM if limit != RLIM_INFINITY => error(ErrorCode::Internal).because(format!(
            "RLIMIT_AS (ulimit -v) is {limit} bytes of addresses; raise it, or ask for less"
        )),
        ENOMEM => error(ErrorCode::Internal).because(
            "this process has no addresses or no mappings left (vm.max_map_count); release what is imported, or raise it",
        ),
        _ => error(ErrorCode::Internal),
    };
    CannotMap { error, lacks_room: errno == ENOMEM }
}

const WORD: usize = size_of::<u64>();

/// Volatile copy from shared memory, by words where `from` is aligned.
///
/// # Safety
/// `from` is readable for `into.len()` bytes.
pub(crate) unsafe fn copy_out(mut from: *const u8, into: &mut [u8]) {
    let head = from.align_offset(WORD).min(into.len());
    let (first, rest) = into.split_at_mut(head);
    let (words, last) = rest.as_chunks_mut::<WORD>();
    // SAFETY: `from` advances over exactly `into.len()` bytes; words are read where it is aligned.
    unsafe {
        for byte in first {
            *byte = from.read_volatile();
            from = from.add(1);
        }
        for word in words {
            *word = from.cast::<u64>().read_volatile().to_ne_bytes();
            from = from.add(WORD);
        }
        for byte in last {
            *byte = from.read_volatile();
            from = from.add(1);
        }
    }
}

/// Volatile copy into shared memory, by words where `to` is aligned.
///
/// # Safety
/// `to` is writable for `bytes.len()` bytes.
pub(crate) unsafe fn copy_in(bytes: &[u8], mut to: *mut u8) {
    let head = to.align_offset(WORD).min(bytes.len());
    let (first, rest) = bytes.split_at(head);
    let (words, last) = rest.as_chunks::<WORD>();
    // SAFETY: `to` advances over exactly `bytes.len()` bytes; words are written where it is
    // aligned.
    unsafe {
        for byte in first {
            to.write_volatile(*byte);
            to = to.add(1);
        }
        for word in words {
            to.cast::<u64>().write_volatile(u64::from_ne_bytes(*word));
            to = to.add(WORD);
        }
        for byte in last {
            to.write_volatile(*byte);
            to = to.add(1);
        }
    }
}

/// Whether both fds are of one file. `false` too when that cannot be told.
pub(crate) fn is_same_file(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let file = |fd| fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino));
    file(one).is_some_and(|one| file(other) == Some(one))
}
