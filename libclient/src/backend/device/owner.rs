//! Who owns the buffers of one device and client: knows them by address, exports them again when recalled.
//! Must never keep a buffer's memory beyond the buffer, but for an export under way.

use super::DeviceMemory;
use crate::books::roles::{Supply, SupplyFd};
use crate::deposit::Registration;
use crate::notice::Recall;
use crate::sync::lock;
use fdbroker_protocol::{AllocationId, ErrorCode};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

/// Who answers the recalls of a device's buffers, for one client.
pub trait Owner<M>: Send + Sync + Debug {
    /// The buffers.
    fn owned(&self) -> &Owned<M>;

    /// A new buffer. Its address is free: what was there before was forgotten before it was freed.
    fn add(&self, memory: &Arc<M>, owner_allocation_id: u64);
}

/// Buffers of one device and client, by address.
#[derive(Debug)]
pub struct Owned<M> {
    by_base: Mutex<BTreeMap<u64, Entry<M>>>,
}

#[derive(Debug)]
struct Entry<M> {
    memory: Arc<M>,
    owner_allocation_id: u64,
    registration: Option<Registration>,
}

impl<M> Default for Owned<M> {
    fn default() -> Self {
        Owned { by_base: Mutex::default() }
    }
}

impl<M: DeviceMemory> Owned<M> {
    /// As [`Owner::add`].
    pub(crate) fn add(&self, memory: &Arc<M>, owner_allocation_id: u64) {
        let memory = Arc::clone(memory);
        let base = memory.device_ptr();
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

    /// `false`: it was registered so already (by another thread meanwhile), and now counts twice at the broker.
    pub(crate) fn note_registered(&self, base: u64, registration: Registration) -> bool {
        let mut by_base = lock(&self.by_base);
        let Some(entry) = by_base.get_mut(&base) else { return true };
        let before = entry.registration.as_ref();
        let is_new = before.is_none_or(|b| b.id() != registration.id());
        entry.registration = Some(registration);
        is_new
    }

    /// A registration has ended with its broker.
    pub(crate) fn note_lost(&self, base: u64, id: AllocationId) {
        let is_it = |known: &mut Registration| known.id() == id;
        if let Some(entry) = lock(&self.by_base).get_mut(&base) {
            entry.registration.take_if(is_it);
        }
    }

    /// Whether a buffer begins at `base`.
    pub(crate) fn covers(&self, base: u64) -> bool {
        lock(&self.by_base).contains_key(&base)
    }

    /// Exports a buffer again. STALE: it is gone, or was freed meanwhile.
    pub(crate) fn supply(&self, recall: &Recall) -> Result<Supply, ErrorCode> {
        let id = recall.owner_allocation_id;
        let memory = self.find(recall.base, id).ok_or(ErrorCode::Stale)?;
        let fd = memory.export().map_err(|error| {
            log::warn!("recall of {}: {error}", recall.id);
            error.code
        })?;
        // Looked up again after the export.
        self.find(recall.base, id).ok_or(ErrorCode::Stale)?;
        Ok(Supply {
            fd: SupplyFd::Fresh(fd),
            fd_offset: 0,
            size_bytes: memory.len() as u64,
            owner_allocation_id: id,
        })
    }

    /// What is at `base` now, if it has this id.
    fn find(&self, base: u64, id: u64) -> Option<Arc<M>> {
        let by_base = lock(&self.by_base);
        let entry = by_base.get(&base).filter(|entry| entry.owner_allocation_id == id)?;
        Some(Arc::clone(&entry.memory))
    }
}
