//! Device memory in the demo: CUDA and Level Zero behind one trait. Must never keep a copy of what
//! is in the memory: each check reads all of it again.

use crate::error::Result;
use crate::kind::{Memory, page_bytes};
use crate::memory::{Export, Exportable, ExportedFd, SharedMemory};
use crate::pattern::WORD;
use fdbroker_client::cuda::{self, CudaBuffer, CudaImport, CudaMemory};
use fdbroker_client::level_zero::{self, LevelZeroBuffer, LevelZeroImport, LevelZeroMemory};
use fdbroker_client::{Access, Client, Deadline, Error as ClientError, Grant, Handle, Share};
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;

/// The outcome of registering each buffer, in their order.
pub type Handles = Vec<Result<Handle, ClientError>>;

/// Writes what a buffer is to contain, by its number.
pub type Fill<'a> = &'a dyn Fn(u32, &dyn SharedMemory) -> Result<()>;

/// A GPU that is open, through CUDA or Level Zero.
pub trait Device: Debug + Send + Sync {
    /// Bytes: sizes of buffers are multiples of this.
    fn granularity(&self) -> u64;

    /// Whether each exported buffer costs its owner an fd for as long as it lives.
    fn keeps_exported_fds(&self) -> bool;

    /// Memory that no broker knows.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Exportable>, ClientError>;

    /// Memory of another process, by an fd that came from there.
    fn import_fd(
        &self,
        fd: BorrowedFd<'_>,
        bytes: u64,
    ) -> Result<Box<dyn SharedMemory>, ClientError>;

    /// Memory that the broker has granted.
    fn import(&self, grant: Grant) -> Result<Box<dyn SharedMemory>, ClientError>;

    /// Makes `count` buffers of `bytes`, fills one after the other, then registers them together.
    fn register(
        &self,
        client: &Client,
        count_and_bytes: (u32, usize),
        fill: Fill<'_>,
        deadline: Deadline,
    ) -> Result<(Vec<Box<dyn SharedMemory>>, Handles)>;
}

/// Opens the first device that has such memory, and uses once everything that the demo will use, so
/// that the driver's own fds are open before any fd is counted. `None` for memory of the host.
pub fn open(memory: Memory) -> Result<Option<Box<dyn Device>>> {
    let device: Box<dyn Device> = match memory {
        Memory::Cuda => Box::new(cuda::Device::open(0)?),
        Memory::LevelZero => Box::new(level_zero::Device::open(0)?),
        _ => return Ok(None),
    };
    let granule = device.granularity();
    let memory = device.allocate(usize::try_from(granule).unwrap_or(WORD))?;
    memory.write(0, &[1; WORD])?;
    let export = memory.export()?;
    let fd = std::os::fd::AsFd::as_fd(&export);
    device.import_fd(fd, granule)?.look(&mut |_| 0)?;
    Ok(Some(device))
}

/// The same code for the types of two drivers, which have no trait in common.
macro_rules! device_memory {
    ($($kind:ty: $buffer:ident => $memory:expr;)*) => {$(
        impl SharedMemory for $kind {
            fn look(&self, check: &mut dyn FnMut(&[AtomicU64]) -> u64) -> Result<u64> {
                let $buffer = self;
                let mut bytes = vec![0; $memory.len()];
                $memory.read_at(0, &mut bytes)?;
                let (words, _) = bytes.as_chunks::<WORD>();
                let words = words.iter().map(|word| AtomicU64::new(u64::from_ne_bytes(*word)));
                Ok(check(&words.collect::<Vec<_>>()))
            }

            fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
                let $buffer = self;
                Ok($memory.write_at(offset, bytes)?)
            }
        }
    )*};
}

macro_rules! device {
    (
        $device:ty, $memory:ident, $buffer:ident, $import:ident,
        ($self:ident, $fd:ident, $bytes:ident) => {
            granularity: $granularity:expr,
            keeps_exported_fds: $keeps:expr,
            import_fd: $import_fd:expr,
        }
    ) => {
        device_memory! {
            $memory: memory => memory;
            $buffer: buffer => buffer.memory();
            $import: import => import.memory();
        }

        impl Exportable for $memory {
            fn export(&self) -> Result<Export<'_>, ClientError> {
                Ok(Export { fd: ExportedFd::Fresh($memory::export(self)?), offset: 0 })
            }
        }

        impl Device for $device {
            fn granularity(&$self) -> u64 {
                $granularity
            }

            fn keeps_exported_fds(&$self) -> bool {
                $keeps
            }

            fn allocate(&self, bytes: usize) -> Result<Box<dyn Exportable>, ClientError> {
                Ok(Box::new($memory::new(self, bytes)?))
            }

            fn import_fd(
                &$self,
                $fd: BorrowedFd<'_>,
                $bytes: u64,
            ) -> Result<Box<dyn SharedMemory>, ClientError> {
                Ok(Box::new($import_fd?))
            }

            fn import(&self, grant: Grant) -> Result<Box<dyn SharedMemory>, ClientError> {
                Ok(Box::new($import::new(self, grant, Access::ReadWrite)?))
            }

            fn register(
                &self,
                client: &Client,
                (count, bytes): (u32, usize),
                fill: Fill<'_>,
                deadline: Deadline,
            ) -> Result<(Vec<Box<dyn SharedMemory>>, Handles)> {
                let one = |index| {
                    let buffer = $buffer::allocate(client, self, bytes, Share::Uid)?;
                    fill(index, &buffer).map(|()| buffer)
                };
                let buffers = (0..count).map(one).collect::<Result<Vec<_>>>()?;
                let handles = $buffer::register_many(&buffers, deadline)?;
                Ok((buffers.into_iter().map(|buffer| Box::new(buffer) as _).collect(), handles))
            }
        }
    };
}

device! {
    cuda::Device, CudaMemory, CudaBuffer, CudaImport,
    (self, fd, bytes) => {
        granularity: self.granularity() as u64,
        keeps_exported_fds: false,
        import_fd: CudaMemory::import_fd(self, fd, bytes, Access::ReadWrite),
    }
}

device! {
    level_zero::Device, LevelZeroMemory, LevelZeroBuffer, LevelZeroImport,
    (self, fd, bytes) => {
        granularity: page_bytes(),
        keeps_exported_fds: self.keeps_exported_fds(),
        import_fd: LevelZeroMemory::import_fd(self, fd, 0, bytes, Access::ReadWrite),
    }
}
