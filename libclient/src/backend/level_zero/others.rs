//! Who owns the Level Zero memory of one device and client: knows it by address, exports it again when recalled.
//! Must never keep a buffer's memory beyond the buffer, nor supply what was freed or is another allocation by now.

use super::context::Context;
use super::memory::LevelZeroMemory;
use crate::api::client::Client;
use crate::backend::device::{self, Owned};
use crate::books::common::Common;
use crate::books::holdings::LostRegistration;
use crate::books::roles::{MemoryOwner, Registrant, Supply, SupplyFd};
use crate::error::Error;
use crate::limits::EXPORTS_SWEEP_LEAST;
use crate::notice::Recall;
use crate::sync::lock;
use fdbroker_protocol::ErrorCode;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

/// See the module.
#[derive(Debug)]
pub struct Owner {
    common: Weak<Common>,
    context: Arc<Context>,
    owned: Owned<LevelZeroMemory>,
    foreign: Mutex<Table>,
}

/// Memory that somebody else allocated, and may free without a word, by address.
#[derive(Debug, Default)]
struct Table {
    by_base: BTreeMap<u64, Foreign>,
    /// As many of them as make a sweep due.
    sweep_at: usize,
}

/// What was registered of somebody else's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    pub bytes: u64,
    pub id: u64,
    pub fd_offset: u64,
}

impl Owner {
    pub fn new(client: &Client, context: &Arc<Context>) -> Self {
        let (common, context) = (Arc::downgrade(client.common()), Arc::clone(context));
        Owner { common, context, owned: Owned::default(), foreign: Mutex::default() }
    }

    pub fn is_of(&self, client: &Client) -> bool {
        self.common.ptr_eq(&Arc::downgrade(client.common()))
    }

    /// Whether its client lives.
    pub fn is_needed(&self) -> bool {
        self.common.strong_count() > 0
    }

    /// Memory of others that is about to be registered. A buffer of this library's at the same address stays what it is.
    pub fn add_foreign(&self, base: u64, foreign: Foreign) {
        if !self.owned.covers(base) {
            let mut table = lock(&self.foreign);
            table.sweep(&self.context);
            table.by_base.insert(base, foreign);
        }
    }

    /// It is not registered any more.
    pub fn remove_foreign(&self, base: u64) {
        lock(&self.foreign).by_base.remove(&base);
    }

    /// What others have at `base`.
    fn foreign(&self, base: u64) -> Option<Foreign> {
        lock(&self.foreign).by_base.get(&base).copied()
    }

    /// Exports memory of others again. STALE: it was freed or replaced, also meanwhile.
    fn supply_foreign(&self, recall: &Recall, foreign: Foreign) -> Result<Supply, ErrorCode> {
        let (base, id) = (recall.base, recall.owner_allocation_id);
        if foreign.id != id {
            return Err(ErrorCode::Stale);
        }
        let fd = foreign.export(&self.context, base).map_err(|error| {
            log::warn!("recall of {}: {error}", recall.id);
            error.code
        })?;
        if self.foreign(base) != Some(foreign) {
            return Err(ErrorCode::Stale);
        }
        let Foreign { bytes: size_bytes, fd_offset, .. } = foreign;
        Ok(Supply { fd: SupplyFd::Fresh(fd), fd_offset, size_bytes, owner_allocation_id: id })
    }
}

impl device::Owner<LevelZeroMemory> for Owner {
    fn owned(&self) -> &Owned<LevelZeroMemory> {
        &self.owned
    }

    fn add(&self, memory: &Arc<LevelZeroMemory>, owner_allocation_id: u64) {
        // The driver gave this address to a new allocation: what others had there is gone.
        self.remove_foreign(memory.device_ptr());
        self.owned.add(memory, owner_allocation_id);
    }
}

impl Table {
    /// Forgets what others have freed without a word, as often as there may be twice as much of it: so the table
    /// stays bounded by what is allocated.
    fn sweep(&mut self, context: &Context) {
        let count = self.by_base.len();
        if count < self.sweep_at.max(EXPORTS_SWEEP_LEAST) {
            return;
        }
        self.by_base.retain(|base, foreign| foreign.is_at(context, *base));
        self.sweep_at = self.by_base.len() * 2;
    }
}

impl Foreign {
    /// Whether it is still there, and the same.
    pub fn is_at(self, context: &Context, base: u64) -> bool {
        let now = context.range(base);
        now.is_ok_and(|now| (now.base, now.bytes, now.id) == (base, self.bytes, self.id))
    }

    /// Exports it; STALE when it was freed or replaced, also meanwhile.
    pub fn export(self, context: &Context, base: u64) -> Result<OwnedFd, Error> {
        let gone = || {
            let context = format!("the memory at {base:#x} was freed or replaced");
            Error::new(ErrorCode::Stale, context)
        };
        if !self.is_at(context, base) {
            return Err(gone());
        }
        let fd = context.export_any(base)?.fd;
        match self.is_at(context, base) {
            true => Ok(fd),
            false => Err(gone()),
        }
    }
}

impl Registrant for Owner {
    fn lost(&self, registration: &LostRegistration) {
        self.owned.note_lost(registration.base, registration.id);
    }
}

impl MemoryOwner for Owner {
    fn covers(&self, base: u64) -> bool {
        self.owned.covers(base) || self.foreign(base).is_some()
    }

    fn supply(&self, recall: &Recall) -> Result<Supply, ErrorCode> {
        // A buffer of this library's comes first: what others had at its address is gone.
        match self.foreign(recall.base) {
            Some(foreign) if !self.owned.covers(recall.base) => {
                self.supply_foreign(recall, foreign)
            }
            _ => self.owned.supply(recall),
        }
    }
}
