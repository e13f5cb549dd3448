//! Device memory of another process, opened here, with its lease. Closed, then given back, on drop.
//! Must never hold an fd, nor give the lease back while the memory is open.

use super::memory::DeviceMemory;
use super::sharing::MemoryDevice;
use crate::books::grant::Grant;
use crate::books::lease::Lease;
use crate::cache::Opened;
use crate::deposit::AllocationInfo;
use crate::error::Error;
use crate::map::Access;

/// Device memory imported: opened for a device, its fd closed, its lease on the ledger as `mapped`:
/// [`crate::cuda::CudaImport`], [`crate::level_zero::LevelZeroImport`].
///
/// The memory stays as long as it is open, whatever becomes of its owner; ask [`DeviceImport::is_current`] whether it
/// is still what it was. Dropping it closes the memory and gives the lease back: no kernel may use it any more.
#[derive(Debug)]
pub struct DeviceImport<D: MemoryDevice> {
    // Field order is drop order: closed before the lease is given back.
    memory: D::Memory,
    lease: Lease,
    info: AllocationInfo,
}

impl<D: MemoryDevice> DeviceImport<D> {
    /// Opens what was granted, closes the fd and reports the lease as mapped.
    ///
    /// # Errors
    /// As the memory's `import`. In every case the grant is given back.
    pub fn new(device: &D, grant: Grant, access: Access) -> Result<Self, Error> {
        let memory = device.import(&grant, access)?;
        let Grant { fd, mut lease, info } = grant;
        drop(fd);
        lease.mapped();
        Ok(DeviceImport { memory, lease, info })
    }

    /// First byte, a device address.
    pub fn device_ptr(&self) -> u64 {
        self.memory.device_ptr()
    }

    /// Bytes of the allocation. Never 0.
    #[expect(clippy::len_without_is_empty, reason = "an import is never empty")]
    pub fn len(&self) -> usize {
        self.memory.size()
    }

    /// The memory, to be copied to and from.
    pub fn memory(&self) -> &D::Memory {
        &self.memory
    }

    /// Whether the allocation still lives, the broker lives, and this client is connected to it. No syscall.
    pub fn is_current(&self) -> bool {
        self.lease.is_current()
    }

    /// The lease.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What the broker said of the allocation.
    pub fn info(&self) -> &AllocationInfo {
        &self.info
    }

    /// Closes the memory and gives the lease back, like drop.
    ///
    /// # Errors
    /// As [`Lease::release`]; the memory is closed all the same.
    pub fn release(self) -> Result<(), Error> {
        let DeviceImport { memory, lease, .. } = self;
        drop(memory);
        lease.release()
    }
}

/// Opens grants for [`crate::ImportCache::import_with`]: what it keeps is device memory, its pointers device addresses.
pub fn opener<D: MemoryDevice>(
    device: &D,
    access: Access,
) -> impl FnMut(&Grant) -> Result<Box<dyn Opened>, Error> + use<D> {
    let device = device.clone();
    move |grant| Ok(Box::new(device.import(grant, access)?))
}
