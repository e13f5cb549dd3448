//! Memory of a device, whichever driver it is of, and work that writes it: what named objects know
//! of devices, built with drivers or without. Must never depend on a driver's types.

use crate::api::client::Client;
use crate::books::grant::Grant;
use crate::cache::Opened;
use crate::error::Error;
use fdbroker_protocol::Facts;
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

    /// Copies out `into.len()` bytes from `offset`.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds. INTERNAL: the driver's words. NOT_SUPPORTED in a child of
    /// fork(2).
    fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error>;

    /// Copies `bytes` in at `offset`; every process sees them when this returns.
    ///
    /// # Errors
    /// As [`DeviceMemory::read_at`]; NOT_SUPPORTED too when imported for reading.
    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error>;

    /// Waits for work that writes it: this, or whatever the driver can wait for.
    ///
    /// # Errors
    /// NOT_SUPPORTED: the driver has no such wait. INTERNAL: its words.
    fn settle(&self, work: Option<MakersWork>) -> Result<(), Error>;
}

/// A device on which groups of objects are made, and for which they are opened.
pub trait ObjectDevice: Send + Sync + Debug {
    /// Its ordinal, as its driver counts.
    fn ordinal(&self) -> u32;

    /// Memory of at least `bytes`, and what the broker is told of it.
    ///
    /// # Errors
    /// As the memory's `new`. NOT_SUPPORTED: the client declared too few `own_fds` for an export.
    fn make(&self, client: &Client, bytes: usize) -> Result<(Box<dyn DeviceMemory>, Facts), Error>;

    /// The memory of a grant, for reading.
    ///
    /// # Errors
    /// As the memory's `import`.
    fn open(&self, grant: &Grant) -> Result<Box<dyn DeviceMemory>, Error>;
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
