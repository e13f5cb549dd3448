//! The kinds of memory that the demo can share, and how they differ. Must never offer a kind that
//! is not there.

use crate::error::{Error, Result};
use crate::sampler::Look;
use fdbroker_client::backend;
use fdbroker_client::host::HostMemory;
use serde::{Deserialize, Serialize};

/// Fds of a rank that are not of shared memory: stdio, the connection and its event socket, the
/// library's thread, sockets of the direct way, files opened for a moment.
const OTHER_FDS_PER_RANK: u64 = 16;

/// More of them with CUDA: a context keeps 33 open (H200, driver 580), and a call a few for a
/// moment.
const CUDA_FDS_PER_RANK: u64 = 48;

/// More of them with Level Zero: a driver opens the device's nodes, and a call one or two for a
/// moment.
const LEVEL_ZERO_FDS_PER_RANK: u64 = 16;

/// Where the buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// A range of a sealed memfd: works everywhere.
    Memfd,
    /// A real dma-buf, made by /dev/udmabuf: one fd per buffer, as with GPU memory.
    Udmabuf,
    /// Device memory of an NVIDIA GPU (CUDA VMM): one fd per buffer.
    Cuda,
    /// Device memory of a Level Zero driver, such as Intel's: one fd per buffer.
    #[serde(rename = "level-zero")]
    LevelZero,
    /// udmabuf where the device can be opened, else memfd.
    Auto,
}

impl Memory {
    /// The name on the command line, in JSON and in the table.
    pub fn name(self) -> &'static str {
        match self {
            Memory::Memfd => "memfd",
            Memory::Udmabuf => "udmabuf",
            Memory::Cuda => "cuda",
            Memory::LevelZero => "level-zero",
            Memory::Auto => "auto",
        }
    }

    /// How fds of this memory are told from others in /proc.
    pub(crate) fn look(self) -> Look {
        match self {
            Memory::Cuda => Look::CudaVmm,
            Memory::LevelZero => Look::LevelZero,
            _ => Look::Names,
        }
    }

    /// Fds of a rank that are not of shared memory.
    pub(crate) fn other_fds(self) -> u64 {
        match self {
            Memory::Cuda => OTHER_FDS_PER_RANK + CUDA_FDS_PER_RANK,
            Memory::LevelZero => OTHER_FDS_PER_RANK + LEVEL_ZERO_FDS_PER_RANK,
            _ => OTHER_FDS_PER_RANK,
        }
    }

    /// The unit that sizes of buffers are rounded up to.
    pub fn granules(self) -> &'static str {
        match self {
            Memory::Cuda => "granules of the device",
            _ => "pages",
        }
    }

    /// `Auto` decided; an error when the device is demanded and absent.
    pub(crate) fn decide(self) -> Result<Self> {
        if matches!(self, Memory::Cuda | Memory::LevelZero) {
            let available = backend::by_name(self.name()).and_then(|found| found.available());
            let absent = |cause| {
                Error::Other(format!("no device memory here ({cause}); use another --memory"))
            };
            return available.map(|()| self).map_err(absent);
        }
        match (self, HostMemory::Udmabuf.available()) {
            (Memory::Auto | Memory::Udmabuf, Ok(())) => Ok(Memory::Udmabuf),
            (Memory::Udmabuf, Err(cause)) => Err(Error::Other(format!(
                "no dma-bufs here ({cause}); load the kernel module udmabuf, see to the permissions of /dev/udmabuf, or use --memory memfd"
            ))),
            _ => Ok(Memory::Memfd),
        }
    }
}

/// Bytes of a page: buffers begin and end on one.
pub(crate) fn page_bytes() -> u64 {
    use nix::unistd::{SysconfVar, sysconf};
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0).unwrap_or(4096)
}
