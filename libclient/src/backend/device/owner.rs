//! Owners of device memory: one for each device and client. An owner knows the memory by address,
//! and exports it again when it is recalled. Must never keep a buffer's memory beyond the buffer,
//! but for an export under way.

use super::foreign::{ByAddress, ForeignTable};
use crate::api::client::Client;
use crate::backend::device_memory::DeviceMemory;
use crate::books::common::Common;
use crate::books::holdings::LostRegistration;
use crate::books::roles::{MemoryOwner, Registrant, Supply, SupplyFd};
use crate::deposit::Registration;
use crate::notice::Recall;
use crate::sync::lock;
use fdbroker_protocol::{AllocationId, ErrorCode};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, Weak};

/// The owners of one device. Held here: memory of others has no buffer that holds its owner.
#[derive(Debug)]
pub struct Owners<M, C>(Mutex<Vec<Arc<Owner<M, C>>>>);

/// One client's memory of one device.
#[derive(Debug)]
pub struct Owner<M, C> {
    common: Weak<Common>,
    by_base: Mutex<BTreeMap<u64, Entry<M>>>,
    /// What others in this process allocated.
    pub(crate) others: ForeignTable<C>,
}

#[derive(Debug)]
struct Entry<M> {
    memory: Arc<M>,
    owner_allocation_id: u64,
    registration: Option<Registration>,
}

impl<M, C> Default for Owners<M, C> {
    fn default() -> Self {
        Owners(Mutex::default())
    }
}

impl<M: DeviceMemory, C: ByAddress> Owners<M, C> {
    /// The owner for a client; made when there is none.
    pub(crate) fn of(&self, client: &Client, context: &Arc<C>) -> Arc<Owner<M, C>> {
        let mut all = lock(&self.0);
        all.retain(|owner| owner.common.strong_count() > 0);
        let common = Arc::downgrade(client.common());
        if let Some(known) = all.iter().find(|owner| owner.common.ptr_eq(&common)) {
            return Arc::clone(known);
        }
        let others = ForeignTable::new(context);
        let owner = Arc::new(Owner { common, by_base: Mutex::default(), others });
        all.push(Arc::clone(&owner));
        let answers: Arc<dyn MemoryOwner> = owner.clone();
        client.common().owners.add(Arc::downgrade(&answers));
        let registrant: Arc<dyn Registrant> = owner.clone();
        client.common().registrants.add(Arc::downgrade(&registrant));
        owner
    }
}

impl<M: DeviceMemory, C: ByAddress> Owner<M, C> {
    /// A new buffer. Its address is free: what was there before was forgotten before it was freed,
    /// and what others had there is gone.
    pub(crate) fn add(&self, memory: &Arc<M>, owner_allocation_id: u64) {
        let memory = Arc::clone(memory);
        let base = memory.device_ptr();
        self.others.forget(base);
        let entry = Entry { memory, owner_allocation_id, registration: None };
        let before = lock(&self.by_base).insert(base, entry);
        debug_assert!(before.is_none(), "an address of two buffers");
    }

    /// The buffer is gone; its registration, if it had one.
    pub(crate) fn remove(&self, base: u64) -> Option<Registration> {
        let entry = lock(&self.by_base).remove(&base);
        entry.and_then(|entry| entry.registration)
    }

    pub(crate) fn registration(&self, base: u64) -> Option<Registration> {
        lock(&self.by_base).get(&base)?.registration.clone()
    }

    /// Notes a registration; see `Registers::note`.
    pub(crate) fn note_registered(
        &self,
        base: u64,
        registration: &Registration,
        lasts: &dyn Fn() -> bool,
    ) -> bool {
        let mut by_base = lock(&self.by_base);
        let Some(entry) = by_base.get_mut(&base).filter(|_| lasts()) else { return true };
        let before = entry.registration.replace(registration.clone());
        before.is_none_or(|before| before.id() != registration.id())
    }

    /// Whether a buffer begins at `base`.
    pub(crate) fn has_buffer(&self, base: u64) -> bool {
        lock(&self.by_base).contains_key(&base)
    }

    /// What is at `base` now, if it has this id.
    fn find(&self, base: u64, id: u64) -> Option<Arc<M>> {
        let by_base = lock(&self.by_base);
        let entry = by_base.get(&base).filter(|entry| entry.owner_allocation_id == id)?;
        Some(Arc::clone(&entry.memory))
    }
}

impl<M: DeviceMemory, C: ByAddress> Registrant for Owner<M, C> {
    fn lost(&self, registration: &LostRegistration) {
        if let Some(entry) = lock(&self.by_base).get_mut(&registration.base) {
            entry.registration.take_if(|known| known.id() == registration.id);
        }
    }
}

/// Freed memory is not used again here, so that it does not matter when it is drained: consumers
/// that still have it open keep it to themselves.
impl<M: DeviceMemory, C: ByAddress> MemoryOwner for Owner<M, C> {
    fn covers(&self, base: u64) -> bool {
        self.has_buffer(base) || self.others.cover(base)
    }

    fn keeps(&self, base: u64, id: AllocationId) -> bool {
        self.registration(base).is_some_and(|registration| registration.id() == id)
    }

    fn supply(&self, recall: &Recall) -> Result<Supply, ErrorCode> {
        // A buffer of this library's comes first: what others had at its address is gone.
        if !self.has_buffer(recall.base) {
            return self.others.supply(recall);
        }
        let id = recall.facts.owner_allocation_id;
        let memory = self.find(recall.base, id).ok_or(ErrorCode::Stale)?;
        let fd = memory.export().map_err(|error| {
            log::warn!("recall of {}: {error}", recall.id);
            error.code
        })?;
        // Looked up again after the export.
        self.find(recall.base, id).ok_or(ErrorCode::Stale)?;
        Ok(Supply::of(recall, SupplyFd::Fresh(fd), 0, memory.size() as u64))
    }
}
