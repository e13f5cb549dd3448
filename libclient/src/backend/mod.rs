//! Where shared memory comes from: the backends of [`crate::Arena::with_backend`], the host's and
//! others, found by name. One that is absent here answers NOT_SUPPORTED and says what is missing.

pub(crate) mod arena;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(any(feature = "cuda", feature = "level-zero"))]
mod device;
mod device_memory;
mod dma_heap;
pub(crate) mod host;
pub(crate) mod isolated;
#[cfg(feature = "level-zero")]
pub mod level_zero;
mod memfd;
mod memory_left;
pub(crate) mod object_file;
mod pool;
mod ranges;
mod registering;
mod udmabuf;

use crate::error::Error;
use fdbroker_protocol::ErrorCode;

#[cfg(any(feature = "cuda", feature = "level-zero"))]
pub use device::{DeviceBuffer, DeviceImport};
pub use device_memory::MakersWork;
pub(crate) use device_memory::{DeviceMemory, ObjectDevice};
pub use host::HostMemory;
pub use isolated::IsolatedMemory;
pub(crate) use memfd::closed_here;
pub use pool::{MemoryBackend, Pool, PoolExport};
pub use udmabuf::Udmabuf;

/// Why a driver's backend is not there.
#[cfg(not(all(feature = "cuda", feature = "level-zero")))]
const NOT_BUILT_IN: &str = "the program was built without this feature of fdbroker-client";

/// The backend of a name: `memfd`, `udmabuf`, `cuda`, `level-zero`. Whether it works here is for
/// [`MemoryBackend::available`] to say. Memory that is not given out in ranges has no backend: see
/// [`isolated_by_name`]; or none that allocates: see `cuda::CudaBuffer`,
/// `level_zero::LevelZeroBuffer`.
///
/// # Errors
/// NOT_SUPPORTED, with the reason.
pub fn by_name(name: &str) -> Result<&'static dyn MemoryBackend, Error> {
    let reason = match name {
        "memfd" => return Ok(&HostMemory::Memfd),
        "udmabuf" => return Ok(&HostMemory::Udmabuf),
        #[cfg(feature = "cuda")]
        "cuda" => return Ok(&cuda::BACKEND),
        #[cfg(feature = "level-zero")]
        "level-zero" => return Ok(&level_zero::BACKEND),
        #[cfg(not(feature = "cuda"))]
        "cuda" => NOT_BUILT_IN,
        #[cfg(not(feature = "level-zero"))]
        "level-zero" => NOT_BUILT_IN,
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

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_protocol::MemoryKind;

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
        for (name, is_built, kind, instead) in [
            ("cuda", cfg!(feature = "cuda"), MemoryKind::CudaVmm, "CudaBuffer"),
            ("level-zero", cfg!(feature = "level-zero"), MemoryKind::DmaBuf, "LevelZeroBuffer"),
        ] {
            if !is_built {
                let error = by_name(name).unwrap_err();
                assert_eq!(error.code, ErrorCode::NotSupported);
                assert!(error.to_string().contains("without this feature"), "{error}");
                continue;
            }
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
