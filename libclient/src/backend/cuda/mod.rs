//! CUDA: device memory shared by VMM fds, and dma-bufs of it for other devices. The driver is found
//! at run time. Must never pretend: without driver or device every function is there and answers
//! NOT_SUPPORTED with the reason.
//!
//! ```no_run
//! use fdbroker_client::cuda::{CudaBuffer, CudaImport, Device};
//! use fdbroker_client::{Access, Client, Deadline, Share};
//!
//! # fn main() -> Result<(), fdbroker_client::Error> {
//! let client = Client::connect()?;
//! let device = Device::open(0)?;
//!
//! // The producer: device memory and its handle.
//! let soon = Deadline::from_ms(1000);
//! let buffer = CudaBuffer::new(&client, &device, 64 << 20, Share::Uid, soon)?;
//! let handle = buffer.handle().expect("just registered");
//!
//! // A consumer, in another process of this node:
//! let import = CudaImport::new(&device, client.acquire(&handle, soon)?, Access::ReadWrite)?;
//! let pointer: u64 = import.device_ptr();
//! # Ok(())
//! # }
//! ```
//!
//! **Memory that others mapped** (a framework's pointers) is registered by [`export_pointer`] and
//! its end is told by [`retire_pointer`].
//!
//! **Threads.** Everything may be used by any thread; no call leaves another context current than
//! it found. **Fork.** CUDA does not work in a child of fork(2): everything answers so there, and
//! drops call nothing.

mod device;
pub(crate) mod driver;
mod foreign;
mod memory;
mod raw;

use super::device::{DeviceBuffer, Whole};
use crate::books::import::Imported;
use fdbroker_protocol::MemoryKind;

pub use device::{Device, LinearMemory, MemoryInfo, export_dma_buf};
pub use memory::CudaMemory;

pub use super::device::{export_pointer, opener, retire_pointer};

/// Device memory of this process, shared through the broker. Its bytes are rounded up to
/// [`Device::granularity`]; an export is one fd of this process until it is sent, so the client
/// must have declared an `own_fds` of 1 or more.
pub type CudaBuffer = DeviceBuffer<Device>;

/// Device memory of another process, opened here.
pub type CudaImport = Imported<CudaMemory>;

/// The backend as [`super::by_name`] finds it.
pub(super) const BACKEND: Whole = Whole {
    name: "cuda",
    kind: MemoryKind::CudaVmm,
    probe: device::probe,
    instead: "VMM allocations are exported as a whole; use cuda::CudaBuffer",
};
