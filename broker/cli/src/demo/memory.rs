//! A rank's buffers in the direct way, which knows no broker: one sealed memfd, or a udmabuf of each range.
//! Must never keep an exported fd: what the direct way costs is what the receivers keep.

use super::mapping::Mapping;
use super::plan::{Memory, Plan};
use crate::error::{Context, Error, Result};
use fdbroker_client::backend::Udmabuf;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// All buffers of one rank, mapped.
#[derive(Debug)]
pub struct Buffers {
    exporter: Arc<Exporter>,
    mapping: Mapping,
}

/// What makes fds of the buffers; may be used from another thread.
#[derive(Debug)]
pub struct Exporter {
    memfd: OwnedFd,
    /// When the buffers are dma-bufs.
    device: Option<Udmabuf>,
    size_bytes: u64,
}

/// An fd to send, and where in it the buffer begins.
#[derive(Debug)]
pub enum Export<'a> {
    /// The memfd itself: sending duplicates it.
    Shared(BorrowedFd<'a>),
    /// An fd of its own, closed when this is dropped.
    Fresh(OwnedFd),
}

impl AsFd for Export<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Export::Shared(fd) => *fd,
            Export::Fresh(fd) => fd.as_fd(),
        }
    }
}

impl Buffers {
    /// Makes them; their bytes are 0.
    pub fn new(plan: &Plan) -> Result<Self> {
        let total = u64::from(plan.buffers) * plan.size_bytes;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memfd = memfd_create(c"fdbroker-arena", flags).context(|| "make a memfd")?;
        let length = i64::try_from(total).unwrap_or(i64::MAX);
        ftruncate(&memfd, length).context(|| format!("size a memfd to {total} bytes"))?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals)).context(|| "seal a memfd")?;
        let mapping = Mapping::new(memfd.as_fd(), 0, usize::try_from(total).unwrap_or(usize::MAX))
            .context(|| format!("map {total} bytes"))?;
        let device = match plan.memory {
            Memory::Udmabuf => {
                Some(Udmabuf::open().map_err(|cause| Error::Other(cause.to_string()))?)
            }
            _ => None,
        };
        let exporter = Exporter { memfd, device, size_bytes: plan.size_bytes };
        Ok(Buffers { exporter: Arc::new(exporter), mapping })
    }

    /// One buffer.
    pub fn words(&self, buffer: u32) -> &[AtomicU64] {
        let words = usize::try_from(self.exporter.size_bytes / 8).unwrap_or(usize::MAX);
        let begin = buffer as usize * words;
        &self.mapping.words()[begin..begin + words]
    }

    /// For the sending thread.
    pub fn exporter(&self) -> Arc<Exporter> {
        Arc::clone(&self.exporter)
    }
}

impl Exporter {
    /// Where in an exported fd the buffer begins, in bytes.
    pub fn fd_offset(&self, buffer: u32) -> u64 {
        match self.device {
            Some(_) => 0,
            None => u64::from(buffer) * self.size_bytes,
        }
    }

    /// An fd of a buffer; with udmabuf a new one.
    pub fn export(&self, buffer: u32) -> std::result::Result<Export<'_>, fdbroker_client::Error> {
        match &self.device {
            Some(device) => {
                let offset = u64::from(buffer) * self.size_bytes;
                device.export_range(self.memfd.as_fd(), offset, self.size_bytes).map(Export::Fresh)
            }
            None => Ok(Export::Shared(self.memfd.as_fd())),
        }
    }
}
