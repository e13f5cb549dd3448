//! A rank's buffers in the direct way, which knows no broker: one sealed memfd, a udmabuf of each range, or device memory.
//! Must never keep an exported fd: what the direct way costs is what the receivers keep.

use super::device::{self, AnyMemory, Device};
use super::mapping::Mapping;
use super::pattern::BufferId;
use super::plan::{Memory, Plan};
use crate::error::{Context, Error, Result};
use fdbroker_client::ErrorCode;
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
    /// `None`: device memory.
    mapping: Option<Mapping>,
}

/// What makes fds of the buffers; may be used from another thread.
#[derive(Debug)]
pub enum Exporter {
    /// Ranges of a memfd.
    Host {
        /// All of them.
        memfd: OwnedFd,
        /// When the buffers are dma-bufs.
        device: Option<Udmabuf>,
        /// Bytes of each.
        size_bytes: u64,
    },
    /// An allocation each.
    Device(Vec<AnyMemory>),
}

/// A buffer of another rank, mapped.
#[derive(Debug)]
pub enum Received {
    /// By the CPU.
    Host(Mapping),
    /// By the device.
    Device(AnyMemory),
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
    /// Makes and fills them, as `rank`'s. `device` is open when they are device memory.
    pub fn new(plan: &Plan, rank: u32, device: Option<&Device>) -> Result<Self> {
        let buffers = match device {
            Some(device) => Self::of_device(plan, rank, device)?,
            None => Self::of_host(plan)?,
        };
        if buffers.mapping.is_some() {
            for buffer in 0..plan.buffers {
                let id = BufferId { owner: rank, buffer };
                plan.pattern().fill(id, buffers.words(plan, buffer));
            }
        }
        Ok(buffers)
    }

    fn of_host(plan: &Plan) -> Result<Self> {
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
            Memory::Udmabuf => Some(Udmabuf::open().map_err(failed)?),
            _ => None,
        };
        let exporter = Exporter::Host { memfd, device, size_bytes: plan.size_bytes };
        Ok(Buffers { exporter: Arc::new(exporter), mapping: Some(mapping) })
    }

    fn of_device(plan: &Plan, rank: u32, device: &Device) -> Result<Self> {
        let size = usize::try_from(plan.size_bytes).unwrap_or(usize::MAX);
        let make = |buffer| {
            let memory = device.allocate(size).map_err(failed)?;
            device::fill(plan.pattern(), BufferId { owner: rank, buffer }, &*memory)?;
            Ok(memory)
        };
        let memory = (0..plan.buffers).map(make).collect::<Result<_>>()?;
        Ok(Buffers { exporter: Arc::new(Exporter::Device(memory)), mapping: None })
    }

    /// Words that are wrong in `rank`'s buffers at the end: marks and data.
    pub fn check_all_marks(&self, plan: &Plan, rank: u32) -> Result<u64> {
        let mut wrong = 0;
        for buffer in 0..plan.buffers {
            let (pattern, id) = (plan.pattern(), BufferId { owner: rank, buffer });
            wrong += match &*self.exporter {
                Exporter::Host { .. } => pattern.check_all_marks(id, self.words(plan, buffer)),
                Exporter::Device(memory) => {
                    device::check_all_marks(pattern, id, &*memory[buffer as usize])?
                }
            };
        }
        Ok(wrong)
    }

    /// One buffer of host memory.
    fn words(&self, plan: &Plan, buffer: u32) -> &[AtomicU64] {
        let words = usize::try_from(plan.size_bytes / 8).unwrap_or(usize::MAX);
        let begin = buffer as usize * words;
        self.mapping.as_ref().map_or(&[], |mapping| &mapping.words()[begin..begin + words])
    }

    /// For the sending thread.
    pub fn exporter(&self) -> Arc<Exporter> {
        Arc::clone(&self.exporter)
    }
}

impl Exporter {
    /// Where in an exported fd the buffer begins, in bytes.
    pub fn fd_offset(&self, buffer: u32) -> u64 {
        match self {
            Exporter::Host { device: None, size_bytes, .. } => u64::from(buffer) * size_bytes,
            Exporter::Host { .. } | Exporter::Device(_) => 0,
        }
    }

    /// An fd of a buffer; with udmabuf and of device memory a new one.
    pub fn export(&self, buffer: u32) -> std::result::Result<Export<'_>, fdbroker_client::Error> {
        match self {
            Exporter::Host { memfd, device: None, .. } => Ok(Export::Shared(memfd.as_fd())),
            Exporter::Host { memfd, device: Some(device), size_bytes } => {
                let offset = u64::from(buffer) * size_bytes;
                device.export_range(memfd.as_fd(), offset, *size_bytes).map(Export::Fresh)
            }
            Exporter::Device(memory) => memory[buffer as usize].export().map(Export::Fresh),
        }
    }
}

impl Received {
    /// Maps `fd`. `None`: this process has no free fd, which some drivers need for it.
    pub fn new(
        plan: &Plan,
        device: Option<&Device>,
        fd: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<Option<Self>> {
        let Some(device) = device else {
            let len = usize::try_from(plan.size_bytes).unwrap_or(usize::MAX);
            let mapping = Mapping::new(fd, offset, len).context(|| "map a buffer")?;
            return Ok(Some(Received::Host(mapping)));
        };
        match device.import_fd(fd, plan.size_bytes) {
            Ok(memory) => Ok(Some(Received::Device(memory))),
            Err(cause) if cause.code == ErrorCode::LocalFdLimit => Ok(None),
            Err(cause) => Err(failed(cause)),
        }
    }

    /// A reader's part: checks every word and leaves its mark. Returns how many words were wrong.
    pub fn check_and_mark(&self, plan: &Plan, reader: u32, id: BufferId) -> Result<u64> {
        match self {
            Received::Host(mapping) => {
                Ok(plan.pattern().check_and_mark(reader, id, mapping.words()))
            }
            Received::Device(memory) => {
                device::check_and_mark(plan.pattern(), reader, id, &**memory)
            }
        }
    }
}

fn failed(cause: fdbroker_client::Error) -> Error {
    Error::Other(cause.to_string())
}
