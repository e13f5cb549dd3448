//! The import cache: memory of other processes kept open between uses, one per process.
//! Must never show ended memory as current, nor close memory in use.

mod cached;
mod settings;
mod stats;

pub use cached::{CachedImport, Opened, Pin};
pub use settings::CacheSettings;
pub use stats::CacheStats;

use crate::client::Client;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::grant::Grant;
use crate::lease::Lease;
use crate::map::Access;
use crate::sync::lock;
use fdbroker_protocol::{AllocationId, ErrorCode, Handle};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Memory imported, kept open between uses and shared by the threads of a process; clones share it.
///
/// A hit takes no lock and makes no syscall. Every hit is validated by the broker's generation page, so memory of an
/// ended allocation is never handed out as current; memory in use is never closed, so with everything in use
/// the cache goes over its limits until something is released.
///
/// It holds its client: drop both. In a child of fork(2) nothing is ever a hit, and every call answers NOT_CONNECTED.
#[derive(Clone, Debug)]
pub struct ImportCache(Arc<Cache>);

/// Opens memory by other means than mmap(2); the fd is closed after it returns.
pub type Opener<'a> = dyn FnMut(&Grant) -> Result<Box<dyn Opened>, Error> + 'a;

/// One outcome per handle, in their order.
pub type Imports<'a> = Vec<Result<CachedImport<'a>, Error>>;

#[derive(Debug)]
struct Cache {
    client: Client,
    settings: CacheSettings,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    pins: HashMap<u64, Kept>,
    misses: u64,
}

#[derive(Debug)]
struct Kept {
    opened: Box<dyn Opened>,
    lease: Lease,
    host: Option<Access>,
}

impl ImportCache {
    /// An empty cache for a client.
    pub fn new(client: &Client, settings: CacheSettings) -> Self {
        ImportCache(Arc::new(Cache { client: client.clone(), settings, state: Mutex::default() }))
    }

    /// Its settings.
    pub fn settings(&self) -> &CacheSettings {
        &self.0.settings
    }

    /// The memory, if it is open and its allocation lives. No syscall, no wait. Memory opened for writing serves
    /// readers, too. `None` says nothing but that [`ImportCache::import`] must be asked.
    pub fn hit(&self, _handle: &Handle, _access: Access) -> Option<CachedImport<'_>> {
        None
    }

    /// The memory, mapped: from the cache, else from the broker.
    ///
    /// # Errors
    /// As [`Client::acquire`] and [`Grant::import`]; STALE too when the allocation ended meanwhile. In every case
    /// nothing is left: no lease, no mapping, no count.
    pub fn import(
        &self,
        handle: &Handle,
        access: Access,
        deadline: Deadline,
    ) -> Result<CachedImport<'_>, Error> {
        let grant = self.0.client.acquire(handle, deadline)?;
        let mapping = Box::new(grant.map(access, 0)?);
        self.keep(grant, mapping, Some(access), handle)
    }

    /// Any number, one outcome each, in their order; what is missing comes by 253 per message, each fd closed
    /// before the next reply is asked for.
    ///
    /// # Errors
    /// When nothing was tried: NOT_CONNECTED, or NOT_SUPPORTED in a callback.
    pub fn import_many(
        &self,
        handles: &[Handle],
        access: Access,
        deadline: Deadline,
    ) -> Result<Imports<'_>, Error> {
        Ok(handles.iter().map(|handle| self.import(handle, access, deadline)).collect())
    }

    /// The same as [`ImportCache::import`] for memory that is not the CPU's to map: on a miss `open` makes it from
    /// the grant; the fd is closed after it returns. What is open already is a hit however it was opened.
    ///
    /// # Errors
    /// As [`ImportCache::import`], and those of `open`.
    pub fn import_with(
        &self,
        handle: &Handle,
        access: Access,
        deadline: Deadline,
        open: &mut Opener<'_>,
    ) -> Result<CachedImport<'_>, Error> {
        let grant = self.0.client.acquire(handle, deadline)?;
        let opened = open(&grant)?;
        let _ = access;
        self.keep(grant, opened, None, handle)
    }

    /// [`ImportCache::import_many`] with an opener.
    ///
    /// # Errors
    /// As [`ImportCache::import_many`].
    pub fn import_many_with(
        &self,
        handles: &[Handle],
        access: Access,
        deadline: Deadline,
        open: &mut Opener<'_>,
    ) -> Result<Imports<'_>, Error> {
        Ok(handles.iter().map(|handle| self.import_with(handle, access, deadline, open)).collect())
    }

    /// The counters.
    pub fn stats(&self) -> CacheStats {
        let state = lock(&self.0.state);
        let count = state.pins.len() as u64;
        CacheStats {
            misses: state.misses,
            entries: count,
            pinned: count,
            bytes: state.pins.values().map(|kept| kept.opened.len() as u64).sum(),
            max_entries: self.0.settings.max_entries as u64,
            max_bytes: self.0.settings.max_bytes,
            ..CacheStats::default()
        }
    }

    /// Closes all that nobody uses; how many.
    pub fn empty(&self) -> usize {
        0
    }

    /// Gives back a pin taken apart by [`CachedImport::into_pin`].
    ///
    /// # Errors
    /// BAD_HANDLE: it was given back before, or is no pin; nothing changes then.
    pub fn release(&self, pin: Pin) -> Result<(), Error> {
        let kept = lock(&self.0.state).pins.remove(&pin.to_u64());
        let Some(Kept { opened, lease, .. }) = kept else {
            return Err(Error::new(
                ErrorCode::BadHandle,
                "release: no such pin, or released before",
            ));
        };
        drop(opened);
        drop(lease);
        Ok(())
    }

    /// Whether the memory of a pin is current: its allocation lives, the broker lives, and this client is
    /// connected to it. No syscall.
    pub fn is_current(&self, pin: Pin, id: AllocationId) -> bool {
        let state = lock(&self.0.state);
        let lease = state.pins.get(&pin.to_u64()).map(|kept| &kept.lease);
        lease.is_some_and(|lease| lease.id() == id && lease.is_current())
    }

    fn keep(
        &self,
        grant: Grant,
        opened: Box<dyn Opened>,
        host: Option<Access>,
        handle: &Handle,
    ) -> Result<CachedImport<'_>, Error> {
        let Grant { fd, mut lease, info } = grant;
        drop(fd);
        let offset = usize::try_from(handle.offset_bytes.get()).unwrap_or(usize::MAX);
        let size = opened.len().min(usize::try_from(info.size_bytes).unwrap_or(usize::MAX));
        let Some(len) = size.checked_sub(offset).filter(|len| *len > 0) else {
            let context = format!("offset {offset} is not inside {size} bytes");
            return Err(Error::new(ErrorCode::BadHandle, context));
        };
        let ptr = opened.as_ptr().wrapping_add(offset);
        lease.mapped();
        let mut state = lock(&self.0.state);
        state.next += 1;
        state.misses += 1;
        let number = state.next;
        state.pins.insert(number, Kept { opened, lease, host });
        let pin = Pin::from_u64(number).expect("counts from 1");
        Ok(CachedImport::new(self, pin, info.id, ptr, len))
    }

    fn host_access(&self, import: &CachedImport<'_>) -> Option<Access> {
        let state = lock(&self.0.state);
        state.pins.get(&import.pin().to_u64()).and_then(|kept| kept.host)
    }
}
