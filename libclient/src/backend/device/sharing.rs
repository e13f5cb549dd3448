//! What drivers do differently, behind traits that are this crate's own.
//! Must never depend on a driver's types.

use super::foreign::ByAddress;
use super::owner::Owner;
use crate::api::client::Client;
use crate::backend::device_memory::DeviceMemory;
use crate::books::grant::Grant;
use crate::error::Error;
use crate::map::Access;
use fdbroker_protocol::{Gpu, MemoryKind};
use std::fmt::Debug;
use std::sync::Arc;

/// A device of a driver that shares memory by fds: `cuda::Device`,
/// `level_zero::Device`.
pub trait MemoryDevice: Clone + Send + Sync + Debug + 'static {
    /// What it allocates.
    type Memory: DeviceMemory;
    /// The context of its driver, which memory keeps.
    type Context: ByAddress;

    /// Its ordinal, as the driver counts.
    fn ordinal(&self) -> u32;

    /// Which GPU it is, for all processes; [`Gpu::NONE`]: its driver does not say.
    fn gpu(&self) -> Gpu;

    /// Allocates `bytes`, so that they can be exported.
    ///
    /// # Errors
    /// As the memory's `new`.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory, Error>;

    /// Opens the memory of a grant.
    ///
    /// # Errors
    /// As the memory's `import`.
    fn import(&self, grant: &Grant, access: Access) -> Result<Self::Memory, Error>;

    /// What its own memory is registered as.
    ///
    /// # Errors
    /// NOT_SUPPORTED: imported memory, or the client declared too few `own_fds` for an export.
    fn identify(&self, client: &Client, memory: &Self::Memory) -> Result<Identity, Error>;

    /// The owner that answers recalls of this device's memory for a client; made when there is
    /// none.
    fn owner(&self, client: &Client) -> Arc<Owner<Self::Memory, Self::Context>>;

    /// The driver's context that its memory is in.
    fn context(&self) -> &Arc<Self::Context>;
}

/// What tells memory from what was at its address before, and what its export is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Another one for each allocation, whatever its address.
    pub owner_allocation_id: u64,
    /// Of the exported fd.
    pub kind: MemoryKind,
}
