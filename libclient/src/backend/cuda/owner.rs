//! Who owns the CUDA buffers of one device and client. Must never keep a buffer's memory beyond the buffer, but for an
//! export under way.

use super::memory::CudaMemory;
use crate::api::client::Client;
use crate::backend::device::{self, Owned};
use crate::books::common::Common;
use crate::books::holdings::LostRegistration;
use crate::books::roles::{MemoryOwner, Registrant, Supply};
use crate::notice::Recall;
use fdbroker_protocol::ErrorCode;
use std::sync::{Arc, Weak};

/// See the module.
#[derive(Debug)]
pub struct Owner {
    common: Weak<Common>,
    owned: Owned<CudaMemory>,
}

impl Owner {
    pub fn new(client: &Client) -> Self {
        Owner { common: Arc::downgrade(client.common()), owned: Owned::default() }
    }

    pub fn is_of(&self, client: &Client) -> bool {
        self.common.ptr_eq(&Arc::downgrade(client.common()))
    }
}

impl device::Owner<CudaMemory> for Owner {
    fn owned(&self) -> &Owned<CudaMemory> {
        &self.owned
    }

    fn add(&self, memory: &Arc<CudaMemory>, owner_allocation_id: u64) {
        self.owned.add(memory, owner_allocation_id);
    }
}

impl Registrant for Owner {
    fn lost(&self, registration: &LostRegistration) {
        self.owned.note_lost(registration.base, registration.id);
    }
}

impl MemoryOwner for Owner {
    fn covers(&self, base: u64) -> bool {
        self.owned.covers(base)
    }

    fn supply(&self, recall: &Recall) -> Result<Supply, ErrorCode> {
        self.owned.supply(recall)
    }
}
