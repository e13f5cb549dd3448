//! Who owns the Level Zero memory of one device and client: knows it by address, exports it again when recalled.
//! Must never keep a buffer's memory beyond the buffer, nor supply what was freed or is another allocation by now.

use super::context::Context;
use super::memory::LevelZeroMemory;
use crate::client::Client;
use crate::common::{Common, MemoryOwner, OwnerKey, Registrant, Supply, SupplyFd};
use crate::deposit::Registration;
use crate::error::Error;
use crate::holdings::LostRegistration;
use crate::limits::EXPORTS_SWEEP_LEAST;
use crate::notice::Recall;
use crate::sync::lock;
use fdbroker_protocol::{AllocationId, ErrorCode};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

/// The memory, by address.
#[derive(Debug)]
pub struct Owner {
    common: Weak<Common>,
    context: Arc<Context>,
    held: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_base: BTreeMap<u64, Held>,
    /// As many pointers of others as make a sweep due.
    sweep_at: usize,
}

#[derive(Debug)]
enum Held {
    /// A buffer of this library's.
    Own(Own),
    /// Memory that somebody else allocated, and may free without a word.
    Foreign(Foreign),
}

#[derive(Debug)]
struct Own {
    memory: Arc<LevelZeroMemory>,
    owner_allocation_id: u64,
    registration: Option<Registration>,
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
        Owner { common, context, held: Mutex::default() }
    }

    pub fn is_of(&self, client: &Client) -> bool {
        self.common.ptr_eq(&Arc::downgrade(client.common()))
    }

    /// Whether its client lives.
    pub fn is_needed(&self) -> bool {
        self.common.strong_count() > 0
    }

    /// A new buffer. Its address is free: what was there before is gone.
    pub fn add(&self, memory: &Arc<LevelZeroMemory>, owner_allocation_id: u64) {
        let memory = Arc::clone(memory);
        let base = memory.device_ptr();
        let own = Own { memory, owner_allocation_id, registration: None };
        lock(&self.held).by_base.insert(base, Held::Own(own));
    }

    /// The buffer is gone; its registration, if it had one.
    pub fn remove(&self, base: u64) -> Option<Registration> {
        match lock(&self.held).by_base.remove(&base) {
            Some(Held::Own(own)) => own.registration,
            _ => None,
        }
    }

    pub fn registration(&self, base: u64) -> Option<Registration> {
        match lock(&self.held).by_base.get(&base)? {
            Held::Own(own) => own.registration.clone(),
            Held::Foreign(_) => None,
        }
    }

    /// `false`: it was registered so already (by another thread meanwhile), and now counts twice at the broker.
    pub fn note_registered(&self, base: u64, registration: Registration) -> bool {
        let mut held = lock(&self.held);
        let Some(Held::Own(own)) = held.by_base.get_mut(&base) else { return true };
        let before = own.registration.as_ref();
        let is_new = before.is_none_or(|b| b.id() != registration.id());
        own.registration = Some(registration);
        is_new
    }

    /// A registration has ended with its broker.
    pub fn note_lost(&self, base: u64, id: AllocationId) {
        let is_it = |known: &mut Registration| known.id() == id;
        if let Some(Held::Own(own)) = lock(&self.held).by_base.get_mut(&base) {
            own.registration.take_if(is_it);
        }
    }

    /// Memory of others that is about to be registered. A buffer of this library's at the same address stays what it is.
    pub fn add_foreign(&self, base: u64, foreign: Foreign) {
        let mut held = lock(&self.held);
        held.sweep(&self.context);
        let at = held.by_base.entry(base).or_insert(Held::Foreign(foreign));
        if let Held::Foreign(before) = at {
            *before = foreign;
        }
    }

    /// It is not registered any more.
    pub fn remove_foreign(&self, base: u64) {
        let mut held = lock(&self.held);
        if let Some(Held::Foreign(_)) = held.by_base.get(&base) {
            held.by_base.remove(&base);
        }
    }

    /// What is at `base` now, if it has this id.
    fn find(&self, base: u64, id: u64) -> Result<Found, ErrorCode> {
        match lock(&self.held).by_base.get(&base) {
            Some(Held::Own(own)) if own.owner_allocation_id == id => {
                Ok(Found::Own(Arc::clone(&own.memory)))
            }
            Some(Held::Foreign(foreign)) if foreign.id == id => Ok(Found::Foreign(*foreign)),
            _ => Err(ErrorCode::Stale),
        }
    }
}

enum Found {
    Own(Arc<LevelZeroMemory>),
    Foreign(Foreign),
}

impl Table {
    /// Forgets what others have freed without a word, as often as there may be twice as much of it: so the table
    /// stays bounded by what is allocated.
    fn sweep(&mut self, context: &Context) {
        let count = self.by_base.len();
        if count < self.sweep_at.max(EXPORTS_SWEEP_LEAST) {
            return;
        }
        self.by_base.retain(|base, held| match held {
            Held::Own(_) => true,
            Held::Foreign(foreign) => foreign.is_at(context, *base),
        });
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
        self.note_lost(registration.base, registration.id);
    }
}

impl MemoryOwner for Owner {
    fn covers(&self, base: u64) -> bool {
        lock(&self.held).by_base.contains_key(&base)
    }

    fn exports_are_fresh(&self) -> bool {
        true
    }

    fn supply(&self, recall: &Recall) -> Result<Supply, ErrorCode> {
        let (base, id) = (recall.base, recall.owner_allocation_id);
        let told = |error: Error| {
            log::warn!("recall of {}: {error}", recall.id);
            error.code
        };
        let (fd, fd_offset, size_bytes) = match self.find(base, id)? {
            Found::Own(memory) => (memory.export().map_err(told)?, 0, memory.len() as u64),
            Found::Foreign(foreign) => {
                let fd = foreign.export(&self.context, base).map_err(told)?;
                (fd, foreign.fd_offset, foreign.bytes)
            }
        };
        // Read again after the export: it may have been freed meanwhile.
        self.find(base, id)?;
        Ok(Supply { fd: SupplyFd::Fresh(fd), fd_offset, size_bytes, owner_allocation_id: id })
    }

    // Freed memory is not used again here: consumers that still have it open keep it to themselves.
    fn drained(&self, _key: OwnerKey) {}

    fn unregistered(&self, _key: OwnerKey, _drained: bool) {}

    // Registrations go on.
    fn disconnected(&self) {}
}
