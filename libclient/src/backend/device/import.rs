//! Device memory of another process, opened here. Must never hold an fd.

use super::sharing::MemoryDevice;
use crate::backend::device_memory::DeviceMemory;
use crate::books::grant::Grant;
use crate::books::import::Imported;
use crate::cache::Opened;
use crate::error::Error;
use crate::map::Access;

/// Device memory imported: opened for a device. No kernel may use it after the drop:
/// `cuda::CudaImport`, `level_zero::LevelZeroImport`.
pub type DeviceImport<D> = Imported<<D as MemoryDevice>::Memory>;

impl<M: DeviceMemory> Imported<M> {
    /// Opens what was granted, closes the fd and reports the lease as mapped.
    ///
    /// # Errors
    /// As the memory's `import`. In every case the grant is given back.
    pub fn new<D>(device: &D, grant: Grant, access: Access) -> Result<Self, Error>
    where
        D: MemoryDevice<Memory = M>,
    {
        let memory = device.import(&grant, access)?;
        let Grant { fd, lease, info } = grant;
        Ok(Imported::of_grant(memory, fd, lease, info))
    }

    /// First byte, a device address.
    pub fn device_ptr(&self) -> u64 {
        self.memory.device_ptr()
    }

    /// Bytes of the allocation. Never 0.
    pub fn len(&self) -> usize {
        self.memory.size()
    }

    /// The memory, to be copied to and from.
    pub fn memory(&self) -> &M {
        &self.memory
    }
}

/// Opens grants for [`crate::ImportCache::import_with`]: what it keeps is device memory, its
/// pointers device addresses.
pub fn opener<D: MemoryDevice>(
    device: &D,
    access: Access,
) -> impl FnMut(&Grant) -> Result<Box<dyn Opened>, Error> + use<D> {
    let device = device.clone();
    move |grant| Ok(Box::new(device.import(grant, access)?))
}
