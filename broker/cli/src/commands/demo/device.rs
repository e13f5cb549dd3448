//! Device memory in the demo. What the CPU cannot read is copied to the host and checked there, all of it.
//! Must never check or mark a copy in place of the memory.

use super::pattern::{BufferId, Pattern, WORD_BYTES};
use super::plan::{Memory, page_bytes};
use crate::error::{Error, Result};
use fdbroker_client::cuda::{self, CudaBuffer, CudaImport, CudaMemory};
use fdbroker_client::level_zero::{self, LevelZeroBuffer, LevelZeroImport, LevelZeroMemory};
use fdbroker_client::{Access, Client, Deadline, Grant, Share};
use fdbroker_protocol::Handle;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

const WORD: usize = WORD_BYTES as usize;

type ClientResult<T> = std::result::Result<T, fdbroker_client::Error>;

/// Memory of a device, copied to and from; given back when dropped.
pub trait DeviceMemory: Debug + Send + Sync {
    /// Bytes.
    fn bytes(&self) -> usize;
    /// Copies out.
    fn read(&self, offset: usize, into: &mut [u8]) -> ClientResult<()>;
    /// Copies in; every process sees it when this returns.
    fn write(&self, offset: usize, from: &[u8]) -> ClientResult<()>;
    /// An fd of it, for its owner.
    fn export(&self) -> ClientResult<OwnedFd>;
}

macro_rules! device_memory {
    ($($kind:ty: $memory:ident => $found:expr;)*) => {$(
        impl DeviceMemory for $kind {
            fn bytes(&self) -> usize {
                let $memory = self;
                $found.len()
            }

            fn read(&self, offset: usize, into: &mut [u8]) -> ClientResult<()> {
                let $memory = self;
                $found.read_at(offset, into)
            }

            fn write(&self, offset: usize, from: &[u8]) -> ClientResult<()> {
                let $memory = self;
                $found.write_at(offset, from)
            }

            fn export(&self) -> ClientResult<OwnedFd> {
                let $memory = self;
                $found.export()
            }
        }
    )*};
}

device_memory! {
    CudaMemory: memory => memory;
    CudaBuffer: buffer => buffer.memory();
    CudaImport: import => import.memory();
    LevelZeroMemory: memory => memory;
    LevelZeroBuffer: buffer => buffer.memory();
    LevelZeroImport: import => import.memory();
}

/// Any of it.
pub type AnyMemory = Box<dyn DeviceMemory>;

/// One handle or error per buffer, in their order.
pub type Handles = Vec<ClientResult<Handle>>;

/// An open device.
#[derive(Clone, Debug)]
pub enum Device {
    /// An NVIDIA GPU.
    Cuda(cuda::Device),
    /// A device of a Level Zero driver.
    LevelZero(level_zero::Device),
}

impl Device {
    /// Opens the first device that has such memory, and uses once what the demo will use, so that the fds which the
    /// driver opens for itself are there before any is counted. `None`: it is memory of the host.
    pub fn open(memory: Memory) -> Result<Option<Self>> {
        let device = match memory {
            Memory::Cuda => Device::Cuda(cuda::Device::open(0).map_err(failed)?),
            Memory::LevelZero => Device::LevelZero(level_zero::Device::open(0).map_err(failed)?),
            _ => return Ok(None),
        };
        let warm_up = || {
            let memory = device.allocate(WORD)?;
            memory.write(0, &[1; WORD])?;
            let (fd, bytes) = (memory.export()?, memory.bytes() as u64);
            device.import_fd(fd.as_fd(), bytes)?.read(0, &mut [0; WORD])
        };
        warm_up().map_err(failed)?;
        Ok(Some(device))
    }

    /// What sizes of buffers are whole numbers of, in bytes.
    pub fn granularity(&self) -> u64 {
        match self {
            Device::Cuda(device) => device.granularity() as u64,
            Device::LevelZero(_) => page_bytes(),
        }
    }

    /// Whether each exported buffer costs its owner an fd for as long as it lives.
    pub fn keeps_exported_fds(&self) -> bool {
        match self {
            Device::Cuda(_) => false,
            Device::LevelZero(device) => device.keeps_exported_fds(),
        }
    }

    /// Memory that no broker knows.
    pub fn allocate(&self, bytes: usize) -> ClientResult<AnyMemory> {
        Ok(match self {
            Device::Cuda(device) => Box::new(CudaMemory::new(device, bytes)?),
            Device::LevelZero(device) => Box::new(LevelZeroMemory::new(device, bytes)?),
        })
    }

    /// Memory of another process, by an fd that came from there.
    pub fn import_fd(&self, fd: BorrowedFd<'_>, bytes: u64) -> ClientResult<AnyMemory> {
        let access = Access::ReadWrite;
        Ok(match self {
            Device::Cuda(device) => Box::new(CudaMemory::import_fd(device, fd, bytes, access)?),
            Device::LevelZero(device) => {
                Box::new(LevelZeroMemory::import_fd(device, fd, 0, bytes, access)?)
            }
        })
    }

    /// Memory that the broker has granted.
    pub fn import(&self, grant: Grant) -> ClientResult<AnyMemory> {
        let access = Access::ReadWrite;
        Ok(match self {
            Device::Cuda(device) => Box::new(CudaImport::new(device, grant, access)?),
            Device::LevelZero(device) => Box::new(LevelZeroImport::new(device, grant, access)?),
        })
    }

    /// `count` buffers of `bytes`, filled one by one, then registered together.
    pub fn register(
        &self,
        client: &Client,
        (count, bytes): (u32, usize),
        mut fill: impl FnMut(u32, &dyn DeviceMemory) -> Result<()>,
        deadline: Deadline,
    ) -> Result<(Vec<AnyMemory>, Handles)> {
        match self {
            Device::Cuda(device) => {
                let make = |_| CudaBuffer::allocate(client, device, bytes, Share::Uid);
                let buffers = filled(count, make, &mut fill)?;
                let handles = CudaBuffer::register_many(&buffers, deadline).map_err(failed)?;
                Ok((boxed(buffers), handles))
            }
            Device::LevelZero(device) => {
                let make = |_| LevelZeroBuffer::allocate(client, device, bytes, Share::Uid);
                let buffers = filled(count, make, &mut fill)?;
                let handles = LevelZeroBuffer::register_many(&buffers, deadline).map_err(failed)?;
                Ok((boxed(buffers), handles))
            }
        }
    }
}

fn filled<B: DeviceMemory>(
    count: u32,
    make: impl Fn(u32) -> ClientResult<B>,
    fill: &mut dyn FnMut(u32, &dyn DeviceMemory) -> Result<()>,
) -> Result<Vec<B>> {
    let one = |index| {
        let buffer = make(index).map_err(failed)?;
        fill(index, &buffer).map(|()| buffer)
    };
    (0..count).map(one).collect()
}

fn boxed<B: DeviceMemory + 'static>(buffers: Vec<B>) -> Vec<AnyMemory> {
    buffers.into_iter().map(|buffer| Box::new(buffer) as AnyMemory).collect()
}

/// Writes a new buffer: empty slots, then the data.
pub fn fill(pattern: Pattern, id: BufferId, memory: &dyn DeviceMemory) -> Result<()> {
    let words: Vec<AtomicU64> = (0..memory.bytes() / WORD).map(|_| AtomicU64::new(0)).collect();
    pattern.fill(id, &words);
    let bytes: Vec<u8> =
        words.into_iter().flat_map(|word| word.into_inner().to_ne_bytes()).collect();
    memory.write(0, &bytes).map_err(failed)
}

/// A reader's part: checks every word and leaves its mark in the device memory. Returns how many words were wrong.
pub fn check_and_mark(
    pattern: Pattern,
    reader: u32,
    id: BufferId,
    memory: &dyn DeviceMemory,
) -> Result<u64> {
    let wrong = pattern.check_and_mark(reader, id, &read(memory)?);
    let mark = pattern.mark(reader, id).to_ne_bytes();
    memory.write(reader as usize * WORD, &mark).map_err(failed)?;
    Ok(wrong)
}

/// The owner's part at the end: every other rank's mark is there, and the data is still right.
pub fn check_all_marks(pattern: Pattern, id: BufferId, memory: &dyn DeviceMemory) -> Result<u64> {
    Ok(pattern.check_all_marks(id, &read(memory)?))
}

/// All of it, now.
fn read(memory: &dyn DeviceMemory) -> Result<Vec<AtomicU64>> {
    let mut bytes = vec![0; memory.bytes()];
    memory.read(0, &mut bytes).map_err(failed)?;
    let (words, _) = bytes.as_chunks::<WORD>();
    Ok(words.iter().map(|word| AtomicU64::new(u64::from_ne_bytes(*word))).collect())
}

fn failed(cause: fdbroker_client::Error) -> Error {
    Error::Other(cause.to_string())
}
