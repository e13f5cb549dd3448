//! Reserved addresses and physical memory, which zeVirtualMemMap brings together. Must never keep
//! memory that was destroyed.

use crate::allocation::Registry;
use crate::answer::Failure;
use crate::devices::Device;
use crate::mapping::Mapping;
use crate::object::Object;
use level_zero_sys::ze_result_t;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

const INVALID: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;

/// The page size of device memory in compute-runtime: addresses and sizes are multiples of it.
pub const PAGE_BYTES: usize = 65536;

/// A number that this process never gives again.
pub type PhysicalId = u64;

/// The reservations by address, and the physical memory of a process.
#[derive(Default)]
pub struct VirtualMemory {
    reservations: BTreeMap<usize, Reservation>,
    physical: HashMap<PhysicalId, (Arc<Object>, &'static Device)>,
    last_id: PhysicalId,
}

/// Reserved addresses: as many pages as fit into them from the first page's begin on.
struct Reservation {
    bytes: usize,
    _addresses: Mapping,
}

impl VirtualMemory {
    /// Reserves addresses, and answers the first.
    pub fn reserve(&mut self, bytes: usize) -> Result<usize, Failure> {
        whole_pages(bytes)?;
        let addresses = Mapping::reserved(bytes + PAGE_BYTES)?;
        let base = addresses.address().next_multiple_of(PAGE_BYTES);
        self.reservations.insert(base, Reservation { bytes, _addresses: addresses });
        Ok(base)
    }

    pub fn create(&mut self, bytes: usize, device: &'static Device) -> Result<PhysicalId, Failure> {
        whole_pages(bytes)?;
        let object = Object::allocate(bytes, Some(device.place()))?;
        self.last_id += 1;
        self.physical.insert(self.last_id, (object, device));
        Ok(self.last_id)
    }

    /// The physical memory that is not destroyed.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.physical.values().map(|(object, _)| object)
    }

    fn is_reserved(&self, range: &Range<usize>) -> bool {
        let found = self.reservations.range(..=range.start).next_back();
        found.is_some_and(|(base, reservation)| range.end <= base + reservation.bytes)
    }
}

/// Gives a reservation back, and unmaps what is mapped there.
pub fn release(registry: &mut Registry, address: usize, bytes: usize) -> Result<(), Failure> {
    let reservations = &mut registry.virtual_memory.reservations;
    match reservations.get(&address) {
        Some(reservation) if reservation.bytes == bytes => reservations.remove(&address),
        _ => return Err(INVALID.into()),
    };
    registry.unmap(|mapped| (address..address + bytes).contains(&mapped.base()));
    Ok(())
}

/// Maps physical memory from its begin on. As in compute-runtime, nothing may be mapped at that
/// address.
pub fn map(
    registry: &mut Registry,
    address: usize,
    bytes: usize,
    physical: PhysicalId,
) -> Result<(), Failure> {
    whole_pages(bytes)?;
    let memory = &registry.virtual_memory;
    let (object, device) = memory.physical.get(&physical).ok_or(INVALID)?;
    let (object, device) = (Arc::clone(object), *device);
    let is_reserved = memory.is_reserved(&(address..address.saturating_add(bytes)));
    if !is_reserved || bytes > object.memory.bytes() || registry.find(address).is_some() {
        return Err(INVALID.into());
    }
    registry.map(address, bytes, (object, device));
    Ok(())
}

/// Unmaps what is mapped at this address; nothing there is no error, as in compute-runtime. The
/// memory lives on, with its exported fd.
pub fn unmap(registry: &mut Registry, address: usize, bytes: usize) -> Result<(), Failure> {
    whole_pages(bytes)?;
    registry.unmap(|mapped| mapped.base() == address);
    Ok(())
}

/// Frees physical memory at once, also while it is mapped; what is mapped ends then.
pub fn destroy(registry: &mut Registry, physical: PhysicalId) -> Result<(), Failure> {
    let (object, _) = registry.virtual_memory.physical.remove(&physical).ok_or(INVALID)?;
    registry.unmap(|mapped| Arc::ptr_eq(&mapped.object, &object));
    Ok(())
}

fn whole_pages(bytes: usize) -> Result<(), Failure> {
    match bytes {
        0 => Err(ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_SIZE.into()),
        bytes if bytes.is_multiple_of(PAGE_BYTES) => Ok(()),
        _ => Err(ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT.into()),
    }
}
