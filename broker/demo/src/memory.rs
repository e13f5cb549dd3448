//! A buffer, wherever its memory is, and the buffers of host memory. Must never hand out words
//! other than the memory's own; memory that the CPU cannot read is copied anew for each look, all
//! of it.

use crate::error::{Result, os};
use crate::kind::Memory;
use crate::pattern::WORD;
use fdbroker_client::backend::Udmabuf;
use fdbroker_client::host::HostBuffer;
use fdbroker_client::{Error as ClientError, Import};
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use std::fmt::Debug;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A buffer of this rank or of another one.
pub trait SharedMemory: Debug + Send + Sync {
    /// Hands all words to `check`, and returns what it returns.
    fn look(&self, check: &mut dyn FnMut(&[AtomicU64]) -> u64) -> Result<u64>;

    /// Writes `bytes` at `offset`; every process sees them when this returns. Both are multiples of
    /// [`WORD`].
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()>;
}

/// A buffer of this rank that no broker knows.
pub trait Exportable: SharedMemory {
    /// An fd of the buffer, to be sent to another process.
    fn export(&self) -> Result<Export<'_>, ClientError>;
}

/// An fd, and where in it the buffer begins.
#[derive(Debug)]
pub struct Export<'a> {
    pub fd: ExportedFd<'a>,
    /// Where in the fd the buffer begins, in bytes.
    pub offset: u64,
}

/// Whether an export costs the sender an fd.
#[derive(Debug)]
pub enum ExportedFd<'a> {
    /// No: it is that of all buffers of the rank.
    Shared(BorrowedFd<'a>),
    /// Yes, until this is dropped.
    Fresh(OwnedFd),
}

impl AsFd for Export<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            ExportedFd::Shared(fd) => *fd,
            ExportedFd::Fresh(fd) => fd.as_fd(),
        }
    }
}

/// Shared memory as words; bytes beyond the last whole word are left out.
///
/// # Safety
/// `start` is aligned to 8 bytes and mapped readable and writable for `len` bytes as long as `'a`,
/// and what backs it cannot shrink (sealed memfd, dma-buf). Others may write to it at any time:
/// atomics allow that.
unsafe fn words<'a>(start: *mut u8, len: usize) -> &'a [AtomicU64] {
    // SAFETY: by this function's contract; any bytes are a valid AtomicU64.
    unsafe { std::slice::from_raw_parts(start.cast(), len / WORD) }
}

impl SharedMemory for HostBuffer {
    fn look(&self, check: &mut dyn FnMut(&[AtomicU64]) -> u64) -> Result<u64> {
        // SAFETY: page-aligned memory of the arena, mapped for reading and writing as long as the
        // buffer lives; its memfd is sealed against shrinking.
        Ok(check(unsafe { words(self.as_mut_ptr(), self.len()) }))
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.write_at(offset, bytes)?)
    }
}

impl SharedMemory for Import {
    fn look(&self, check: &mut dyn FnMut(&[AtomicU64]) -> u64) -> Result<u64> {
        // SAFETY: imported at offset 0 of a page-aligned allocation, for reading and writing,
        // mapped as long as the import lives; the broker has checked that its fd cannot shrink.
        Ok(check(unsafe { words(self.as_ptr(), self.len()) }))
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.write_at(offset, bytes)?)
    }
}

/// A mapped buffer of host memory that no broker knows.
#[derive(Debug)]
pub struct Mapped {
    mapping: Arc<MmapRaw>,
    /// Where in the mapping the buffer begins, in bytes.
    begin: usize,
    len: usize,
}

impl Mapped {
    /// Maps the buffer that begins at `fd_offset` of an fd from another process.
    pub fn new(fd: BorrowedFd<'_>, fd_offset: u64, len: usize) -> Result<Self> {
        Ok(Mapped { mapping: map(fd, fd_offset, len)?, begin: 0, len })
    }

    fn words(&self) -> &[AtomicU64] {
        let all = self.mapping.len() / WORD;
        // SAFETY: mapped readable and writable as long as `self`, and page-aligned; the direct
        // way's fds are dma-bufs and memfds that their owner has sealed against shrinking.
        let all = unsafe { words(self.mapping.as_mut_ptr(), all * WORD) };
        &all[self.begin / WORD..][..self.len / WORD]
    }
}

impl SharedMemory for Mapped {
    fn look(&self, check: &mut dyn FnMut(&[AtomicU64]) -> u64) -> Result<u64> {
        Ok(check(self.words()))
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let (values, _) = bytes.as_chunks::<WORD>();
        for (word, value) in self.words()[offset / WORD..].iter().zip(values) {
            word.store(u64::from_ne_bytes(*value), Ordering::Release);
        }
        Ok(())
    }
}

fn map(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Arc<MmapRaw>> {
    let mapping = MmapOptions::new().offset(offset).len(len).map_raw(fd.as_raw_fd());
    mapping.map(Arc::new).map_err(os(format!("map {len} bytes")))
}

/// A range of the one memfd of a rank in the direct way.
#[derive(Debug)]
struct Range {
    memory: Mapped,
    memfd: Arc<OwnedFd>,
    /// When the buffers are dma-bufs.
    udmabuf: Option<Arc<Udmabuf>>,
}

/// All buffers of a rank in the direct way: ranges of one sealed memfd.
pub fn host_buffers(kind: Memory, count: u32, len: usize) -> Result<Vec<Box<dyn Exportable>>> {
    let total = len.saturating_mul(count as usize);
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memfd = memfd_create(c"fdbroker-arena", flags).map_err(os("make a memfd"))?;
    ftruncate(&memfd, i64::try_from(total).unwrap_or(i64::MAX))
        .map_err(os(format!("size a memfd to {total} bytes")))?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals)).map_err(os("seal a memfd"))?;
    let mapping = map(memfd.as_fd(), 0, total)?;
    let udmabuf = match kind {
        Memory::Udmabuf => Some(Arc::new(Udmabuf::open()?)),
        _ => None,
    };
    let memfd = Arc::new(memfd);
    let range = |buffer: u32| {
        let mapping = Arc::clone(&mapping);
        let memory = Mapped { mapping, begin: buffer as usize * len, len };
        Box::new(Range { memory, memfd: Arc::clone(&memfd), udmabuf: udmabuf.clone() }) as _
    };
    Ok((0..count).map(range).collect())
}

impl SharedMemory for Range {
    fn look(&self, check: &mut dyn FnMut(&[AtomicU64]) -> u64) -> Result<u64> {
        self.memory.look(check)
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.memory.write(offset, bytes)
    }
}

impl Exportable for Range {
    fn export(&self) -> Result<Export<'_>, ClientError> {
        let (memfd, begin) = (self.memfd.as_fd(), self.memory.begin as u64);
        let Some(udmabuf) = &self.udmabuf else {
            return Ok(Export { fd: ExportedFd::Shared(memfd), offset: begin });
        };
        let fd = udmabuf.export_range(memfd, begin, self.memory.len as u64)?;
        Ok(Export { fd: ExportedFd::Fresh(fd), offset: 0 })
    }
}
