//! Memory of a device, whichever driver it is of, and work that writes it. Must never depend on a
//! driver's types.

use crate::cache::Opened;
use crate::error::Error;
use std::ffi::c_void;
use std::fmt::Debug;
use std::os::fd::OwnedFd;

/// Memory at a device address of this process.
pub trait DeviceMemory: Send + Sync + Debug + 'static {
    /// First byte, a device address.
    fn device_ptr(&self) -> u64;

    /// Bytes, above 0.
    fn size(&self) -> usize;

    /// A new fd of it, close-on-exec. While it is open the memory stays allocated.
    ///
    /// # Errors
    /// LOCAL_FD_LIMIT: nothing lost, retry. NOT_SUPPORTED: imported memory; in a child of fork(2).
    fn export(&self) -> Result<OwnedFd, Error>;
}

impl<M: DeviceMemory> Opened for M {
    /// A device address: not to be read by the CPU.
    fn as_ptr(&self) -> *mut u8 {
        let address = usize::try_from(self.device_ptr()).expect("64-bit addresses");
        std::ptr::without_provenance_mut(address)
    }

    fn len(&self) -> usize {
        self.size()
    }
}

/// Work of a device that writes objects, which a seal waits for; handles of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MakersWork {
    /// A `CUstream`, or a `ze_command_queue_handle_t`: all that was put into it before.
    Stream(*mut c_void),
    /// A `CUevent`, or a `ze_event_handle_t`.
    Event(*mut c_void),
}
