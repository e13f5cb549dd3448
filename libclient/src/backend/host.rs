//! The host's memory: a sealed memfd, exported as it is or as dma-bufs through udmabuf.
//! Must never export what a consumer could shrink or seal under the others.

use super::memfd::MemfdPool;
use super::pool::{MemoryBackend, Pool};
use super::udmabuf::{UdmabufPool, probe};
use crate::error::Error;
use fdbroker_protocol::MemoryKind;

/// The host's backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostMemory {
    /// One sealed memfd: every range is the same fd at another offset. A consumer could map the
    /// neighbours of its range, so it is shared within a uid only.
    Memfd,
    /// Ranges of a sealed memfd as real dma-bufs (/dev/udmabuf): each export is a new fd of that
    /// range alone.
    Udmabuf,
}

impl HostMemory {
    /// Whether it works here.
    ///
    /// # Errors
    /// NOT_SUPPORTED, with what is missing (for udmabuf: no /dev/udmabuf, no right to open it, or
    /// refused).
    pub fn available(self) -> Result<(), Error> {
        MemoryBackend::available(&self)
    }
}

impl MemoryBackend for HostMemory {
    fn name(&self) -> &'static str {
        match self {
            HostMemory::Memfd => "memfd",
            HostMemory::Udmabuf => "udmabuf",
        }
    }

    fn kind(&self) -> MemoryKind {
        match self {
            HostMemory::Memfd => MemoryKind::Memfd,
            HostMemory::Udmabuf => MemoryKind::DmaBuf,
        }
    }

    fn available(&self) -> Result<(), Error> {
        match self {
            HostMemory::Memfd => Ok(()),
            HostMemory::Udmabuf => probe(),
        }
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn Pool>, Error> {
        Ok(match self {
            HostMemory::Memfd => Box::new(MemfdPool::new(bytes)?),
            HostMemory::Udmabuf => Box::new(UdmabufPool::new(bytes)?),
        })
    }
}
