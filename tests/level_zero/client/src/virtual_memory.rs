//! Reserved addresses and physical memory, on the one device. Must never touch a device address
//! itself.

use crate::gpu::{Address, Gpu};
use level_zero_sys::*;
use std::ptr;

/// A multiple of every page size that drivers have.
pub const MAPPED_BYTES: usize = 2 << 20;

/// The handle of physical memory.
pub type Physical = ze_physical_mem_handle_t;

// SAFETY, for every call in this file: as in gpu.rs.
impl Gpu {
    /// Reserves `MAPPED_BYTES` of addresses.
    pub fn reserve(&self) -> Result<Address, CallError> {
        let mut address = ptr::null_mut();
        let out = &raw mut address;
        // SAFETY: see above; the driver chooses the addresses.
        unsafe {
            self.level_zero.zeVirtualMemReserve(self.context, ptr::null(), MAPPED_BYTES, out)?;
        }
        Ok(address)
    }

    /// Gives reserved addresses back.
    pub fn release(&self, address: Address) -> Result<(), CallError> {
        // SAFETY: see above.
        unsafe { self.level_zero.zeVirtualMemFree(self.context, address, MAPPED_BYTES) }
    }

    /// Makes `MAPPED_BYTES` of physical memory.
    pub fn create_physical(&self) -> Result<Physical, CallError> {
        let mut desc = ze_physical_mem_desc_t { size: MAPPED_BYTES, ..Structure::blank() };
        let mut memory = ptr::null_mut();
        let (desc, out) = (&raw mut desc, &raw mut memory);
        // SAFETY: see above.
        unsafe { self.level_zero.zePhysicalMemCreate(self.context, self.device, desc, out)? };
        Ok(memory)
    }

    pub fn destroy_physical(&self, memory: Physical) -> Result<(), CallError> {
        // SAFETY: see above.
        unsafe { self.level_zero.zePhysicalMemDestroy(self.context, memory) }
    }

    /// Maps all of the physical memory at reserved addresses.
    pub fn map(&self, address: Address, memory: Physical) -> Result<(), CallError> {
        let access = ze_memory_access_attribute_t::ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE;
        // SAFETY: see above.
        unsafe {
            self.level_zero.zeVirtualMemMap(self.context, address, MAPPED_BYTES, memory, 0, access)
        }
    }

    pub fn unmap(&self, address: Address) -> Result<(), CallError> {
        // SAFETY: see above.
        unsafe { self.level_zero.zeVirtualMemUnmap(self.context, address, MAPPED_BYTES) }
    }
}
