//! Level Zero: device memory shared by dma-buf fds, own allocations and other people's pointers.
//! Found at run time. Must never pretend: without loader, driver or device every function is there
//! and answers NOT_SUPPORTED with the reason.
//!
//! ```no_run
//! use fdbroker_client::level_zero::{Device, LevelZeroBuffer, LevelZeroImport};
//! use fdbroker_client::{Access, Client, Deadline, Share};
//!
//! # fn main() -> Result<(), fdbroker_client::Error> {
//! let client = Client::connect()?;
//! let device = Device::open(0)?;
//!
//! // The producer: device memory and its handle.
//! let soon = Deadline::from_ms(1000);
//! let buffer = LevelZeroBuffer::new(&client, &device, 64 << 20, Share::Uid, soon)?;
//! let handle = buffer.handle().expect("just registered");
//!
//! // A consumer, in another process of this node:
//! let import = LevelZeroImport::new(&device, client.acquire(&handle, soon)?, Access::ReadWrite)?;
//! let pointer: u64 = import.device_ptr();
//! # Ok(())
//! # }
//! ```
//!
//! **Memory that others allocated** (a framework's pointers) is registered by [`export_pointer`]
//! and its end is told by [`retire_pointer`].
//!
//! **Whose fd.** The driver has one fd per exported allocation and closes it itself: it is
//! duplicated, and the duplicate sent. Then a Get and a Put make the driver close its own, so that
//! an export leaves no fd behind. A loader without zeMemPutIpcHandle (before 1.9) cannot do that:
//! there each allocation that was ever exported keeps one fd of this process open until it is freed
//! ([`Device::keeps_exported_fds`]).
//!
//! **Threads.** Everything may be used by any thread. **Fork.** Level Zero does not work in a child
//! of fork(2): everything answers so there, and drops call nothing.

mod context;
mod device;
pub(crate) mod driver;
pub(crate) mod fd;
mod foreign;
mod memory;

use super::device::{DeviceBuffer, Whole};
use crate::books::import::Imported;
use fdbroker_protocol::MemoryKind;

pub use context::FdCloser;
pub use device::Device;
pub use memory::LevelZeroMemory;

pub use super::device::{export_pointer, opener, retire_pointer};

/// Device memory of this process, shared through the broker. An export is two fds of this process
/// for a moment, the driver's own and its duplicate, so the client must have declared an `own_fds`
/// of 2 or more.
pub type LevelZeroBuffer = DeviceBuffer<Device>;

/// Device memory of another process, opened here.
pub type LevelZeroImport = Imported<LevelZeroMemory>;

/// The backend as [`super::by_name`] finds it.
pub(super) const BACKEND: Whole = Whole {
    name: "level-zero",
    kind: MemoryKind::DmaBuf,
    probe: device::probe,
    instead: "device memory is exported as a whole; use level_zero::LevelZeroBuffer",
};
