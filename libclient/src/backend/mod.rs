//! Where shared memory comes from: one trait, the host's backends behind it, others found by name.
//! Must never pretend: a backend that is absent answers NOT_SUPPORTED and says what is missing.

pub(crate) mod arena;
pub mod cuda;
mod device;
mod dma_heap;
pub(crate) mod host;
pub(crate) mod isolated;
pub mod level_zero;
mod memfd;
mod ranges;
mod udmabuf;

use crate::api::client::Client;
use crate::books::roles::SupplyFd;
use crate::error::Error;
use fdbroker_protocol::{ErrorCode, MemoryKind};
use std::fmt::Debug;

pub use device::{DeviceBuffer, DeviceImport};
pub use host::HostMemory;
pub use isolated::IsolatedMemory;
pub use udmabuf::Udmabuf;

/// A source of memory that can be exported as fds.
pub trait MemoryBackend: Send + Sync + Debug {
    /// Its name, such as `memfd`.
    fn name(&self) -> &'static str;

    /// What its exports are.
    fn kind(&self) -> MemoryKind;

    /// Whether it works here.
    ///
    /// # Errors
    /// NOT_SUPPORTED, with what is missing.
    fn available(&self) -> Result<(), Error>;

    /// Allocates `bytes` (rounded up to pages) to be exported in ranges.
    ///
    /// # Errors
    /// NOT_SUPPORTED; INTERNAL when the system has no memory; LOCAL_FD_LIMIT.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Pool>, Error>;
}

/// Memory of a backend: mapped here, exported by ranges.
pub trait Pool: Send + Sync + Debug {
    /// First byte; mapped as long as the pool lives.
    fn base(&self) -> *mut u8;

    /// Bytes, a multiple of the page size.
    fn len(&self) -> usize;

    /// Whether it has no bytes; never so.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether an export is a new fd in this process, to be counted until it is sent.
    fn exports_are_fresh(&self) -> bool;

    /// Exports `len` bytes at `offset`, both multiples of the page size.
    ///
    /// # Errors
    /// LOCAL_FD_LIMIT; NOT_SUPPORTED when the driver refuses.
    fn export(&self, offset: usize, len: usize) -> Result<PoolExport, Error>;

    /// Gives the memory of a range that nobody uses back to the system: its bytes are 0 when next read. Both multiples
    /// of the page size. Without effect where the backend cannot.
    fn discard(&self, _offset: usize, _len: usize) {}

    /// Copies out `into.len()` bytes from `offset`, each word read once.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds.
    fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error>;

    /// Copies `bytes` in at `offset`, each word written once.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds.
    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error>;
}

/// A range as an fd.
#[derive(Debug)]
pub struct PoolExport {
    pub(crate) fd: SupplyFd,
    /// Where in the fd the range begins, in bytes.
    pub(crate) fd_offset: u64,
}

/// The backend of a name: `memfd`, `udmabuf`, `cuda`, `level-zero`. Whether it works here is for
/// [`MemoryBackend::available`] to say. Memory that is not given out in ranges has no backend: see [`isolated_by_name`];
/// or none that allocates: see [`cuda::CudaBuffer`], [`level_zero::LevelZeroBuffer`].
///
/// # Errors
/// NOT_SUPPORTED, with the reason.
pub fn by_name(name: &str) -> Result<&'static dyn MemoryBackend, Error> {
    let reason = match name {
        "memfd" => return Ok(&HostMemory::Memfd),
        "udmabuf" => return Ok(&HostMemory::Udmabuf),
        "cuda" => return Ok(&cuda::Cuda),
        "level-zero" => return Ok(&level_zero::LevelZero),
        "isolated" | "dma-heap" => "it is not given out in ranges; use `IsolatedBuffer`",
        _ => "no backend has this name; there are memfd, udmabuf, cuda and level-zero",
    };
    Err(Error::new(ErrorCode::NotSupported, format!("backend {name}: {reason}")))
}

/// The isolated memory of a name: `isolated` (a memfd of its own), `dma-heap`.
///
/// # Errors
/// NOT_SUPPORTED, with the reason.
pub fn isolated_by_name(name: &str) -> Result<IsolatedMemory, Error> {
    let all = [IsolatedMemory::Memfd, IsolatedMemory::DmaHeap];
    all.into_iter().find(|memory| memory.name() == name).ok_or_else(|| {
        let context = format!("memory {name}: none has this name; there are isolated and dma-heap");
        Error::new(ErrorCode::NotSupported, context)
    })
}

/// Exports that are new fds need a window: one fd beside what the process holds anyway.
fn check_window(client: &Client, name: &str) -> Result<(), Error> {
    match client.own_fds() {
        0 | 1 => {
            let context =
                format!("memory {name}: every export is a new fd, so `own_fds` must be 2 or more");
            Err(Error::new(ErrorCode::NotSupported, context))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_name_when_there_is_none_then_not_supported_with_reason() {
        for name in ["floppy", "isolated", "dma-heap"] {
            let error = by_name(name).unwrap_err();
            assert_eq!(error.code, ErrorCode::NotSupported);
            assert!(error.to_string().contains(name), "{error}");
        }
        assert_eq!(by_name("memfd").unwrap().kind(), MemoryKind::Memfd);
        assert_eq!(isolated_by_name("isolated").unwrap(), IsolatedMemory::Memfd);
        assert_eq!(isolated_by_name("dma-heap").unwrap().kind(), MemoryKind::DmaBuf);
        assert_eq!(isolated_by_name("memfd").unwrap_err().code, ErrorCode::NotSupported);
    }

    #[test]
    fn allocate_when_device_memory_then_not_supported_whether_there_is_a_driver_or_not() {
        for (name, kind, instead) in [
            ("cuda", MemoryKind::CudaVmm, "CudaBuffer"),
            ("level-zero", MemoryKind::DmaBuf, "LevelZeroBuffer"),
        ] {
            let backend = by_name(name).unwrap();
            assert_eq!((backend.name(), backend.kind()), (name, kind));
            let error = backend.allocate(4096).unwrap_err();
            assert_eq!(error.code, ErrorCode::NotSupported);
            assert!(error.to_string().contains(&format!("backend {name}: ")), "{error}");
            match backend.available() {
                Ok(()) => assert!(error.to_string().contains(instead), "{error}"),
                Err(reason) => assert_eq!(reason, error),
            }
        }
    }
}
