//! Device memory to share, whichever driver it is of: buffers, imports, and who answers the recalls. What drivers do
//! differently is behind two traits, which are this crate's own. Must never depend on a driver's types.

mod buffer;
mod import;
mod owned;

use crate::api::client::Client;
use crate::books::grant::Grant;
use crate::cache::Opened;
use crate::error::Error;
use crate::map::Access;
use fdbroker_protocol::MemoryKind;
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use buffer::DeviceBuffer;
pub use import::{DeviceImport, opener};
pub use owned::{Owned, Owner};

/// A device of a driver that shares memory by fds: [`crate::cuda::Device`], [`crate::level_zero::Device`].
pub trait MemoryDevice: Clone + Send + Sync + Debug + 'static {
    /// Its memory.
    type Memory: DeviceMemory;

    /// Its ordinal, as the driver counts.
    fn ordinal(&self) -> u32;

    /// Allocates `bytes`, so that they can be exported.
    ///
    /// # Errors
    /// As the memory's `new`.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory, Error>;

    /// Opens that of a grant.
    ///
    /// # Errors
    /// As the memory's `import`.
    fn import(&self, grant: &Grant, access: Access) -> Result<Self::Memory, Error>;

    /// What its own memory is registered as.
    ///
    /// # Errors
    /// NOT_SUPPORTED: imported memory, or the client declared too few `own_fds` for an export.
    fn identify(&self, client: &Client, memory: &Self::Memory) -> Result<Identity, Error>;

    /// Who answers recalls of this device's buffers for a client; made when there is none.
    fn owner_of(&self, client: &Client) -> Arc<dyn Owner<Self::Memory>>;
}

/// Memory at a device address of this process.
pub trait DeviceMemory: Opened + 'static {
    /// First byte, a device address.
    fn device_ptr(&self) -> u64;

    /// A new fd of it, close-on-exec. While it is open the memory stays allocated.
    ///
    /// # Errors
    /// LOCAL_FD_LIMIT: nothing lost, retry. NOT_SUPPORTED: imported memory; in a child of fork(2).
    fn export(&self) -> Result<OwnedFd, Error>;
}

/// What tells memory from what was at its address before, and what its export is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Another one for each allocation, whatever its address.
    pub owner_allocation_id: u64,
    /// Of the exported fd.
    pub kind: MemoryKind,
}
