//! Who owns the CUDA buffers of one device and client: knows them by address, exports them again when recalled.
//! Must never keep a buffer's memory beyond the buffer, but for an export under way.

use super::memory::CudaMemory;
use crate::client::Client;
use crate::common::{Common, MemoryOwner, OwnerKey, Registrant, Supply, SupplyFd};
use crate::deposit::Registration;
use crate::holdings::LostRegistration;
use crate::notice::Recall;
use crate::sync::lock;
use fdbroker_protocol::{AllocationId, ErrorCode};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

/// The buffers, by address.
#[derive(Debug)]
pub struct Owner {
    common: Weak<Common>,
    held: Mutex<BTreeMap<u64, Held>>,
}

#[derive(Debug)]
struct Held {
    memory: Arc<CudaMemory>,
    owner_allocation_id: u64,
    registration: Option<Registration>,
}

impl Owner {
    pub fn new(client: &Client) -> Self {
        Owner { common: Arc::downgrade(client.common()), held: Mutex::default() }
    }

    pub fn is_of(&self, client: &Client) -> bool {
        self.common.ptr_eq(&Arc::downgrade(client.common()))
    }

    /// A new buffer. Its address is free: what was there before was forgotten before it was unmapped.
    pub fn add(&self, memory: &Arc<CudaMemory>, owner_allocation_id: u64) {
        let memory = Arc::clone(memory);
        let base = memory.device_ptr();
        let held = Held { memory, owner_allocation_id, registration: None };
        let before = lock(&self.held).insert(base, held);
        debug_assert!(before.is_none(), "an address of two buffers");
    }

    /// The buffer is gone; its registration, if it had one.
    pub fn remove(&self, base: u64) -> Option<Registration> {
        let held = lock(&self.held).remove(&base);
        held.and_then(|held| held.registration)
    }

    pub fn registration(&self, base: u64) -> Option<Registration> {
        lock(&self.held).get(&base)?.registration.clone()
    }

    /// `false`: it was registered so already (by another thread meanwhile), and now counts twice at the broker.
    pub fn note_registered(&self, base: u64, registration: Registration) -> bool {
        let mut held = lock(&self.held);
        let Some(held) = held.get_mut(&base) else { return true };
        let before = held.registration.as_ref();
        let is_new = before.is_none_or(|b| b.id() != registration.id());
        held.registration = Some(registration);
        is_new
    }

    /// A registration has ended with its broker.
    pub fn note_lost(&self, base: u64, id: AllocationId) {
        let is_it = |known: &mut Registration| known.id() == id;
        if let Some(held) = lock(&self.held).get_mut(&base) {
            held.registration.take_if(is_it);
        }
    }

    /// What is at `base` now.
    fn held(&self, base: u64) -> Option<(Arc<CudaMemory>, u64)> {
        let held = lock(&self.held);
        held.get(&base).map(|held| (Arc::clone(&held.memory), held.owner_allocation_id))
    }
}

impl Registrant for Owner {
    fn lost(&self, registration: &LostRegistration) {
        self.note_lost(registration.base, registration.id);
    }
}

impl MemoryOwner for Owner {
    fn covers(&self, base: u64) -> bool {
        lock(&self.held).contains_key(&base)
    }

    fn exports_are_fresh(&self) -> bool {
        true
    }

    fn supply(&self, recall: &Recall) -> Result<Supply, ErrorCode> {
        let (memory, id) = self.held(recall.base).ok_or(ErrorCode::Stale)?;
        if id != recall.owner_allocation_id {
            return Err(ErrorCode::Stale);
        }
        let fd = memory.export().map_err(|error| {
            log::warn!("recall of {}: {error}", recall.id);
            error.code
        })?;
        // Read again after the export: it may have been freed meanwhile.
        let now = self.held(recall.base).map(|(_, id)| id);
        if now != Some(id) {
            return Err(ErrorCode::Stale);
        }
        Ok(Supply {
            fd: SupplyFd::Fresh(fd),
            fd_offset: 0,
            size_bytes: memory.len() as u64,
            owner_allocation_id: id,
        })
    }

    // Freed memory is not used again here: consumers that still have it mapped keep it to themselves.
    fn drained(&self, _key: OwnerKey) {}

    fn unregistered(&self, _key: OwnerKey, _drained: bool) {}

    // Registrations go on.
    fn disconnected(&self) {}
}
