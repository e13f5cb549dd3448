//! The import cache: memory of other processes kept open between uses, one per process.
//! Must never show ended memory as current, nor close memory in use.

use super::cached::{CachedImport, Imports};
use super::cold::Closed;
use super::miss::{Importer, Opening};
use super::opened::{ImportOpener, NoOpener, Opened, Opener, Openers};
use super::pin::Pin;
use super::settings::{CacheSettings, ImportMode};
use super::started::{ImportRequest, Importing};
use super::stats::CacheStats;
use super::table::{Table, close_all};
use crate::api::client::Client;
use crate::books::grant::Grant;
use crate::books::roles::LeaseWatcher;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::map::Access;
use crate::requests::started::Request;
use fdbroker_protocol::{AllocationId, Handle, MemoryKind};
use std::sync::{Arc, Weak};

/// Memory imported, kept open between uses and shared by the threads of a process; clones share it.
///
/// A hit takes no lock and makes no syscall. Every hit is validated by the broker's generation
/// page, so memory of an ended allocation is never handed out as current; memory in use is never
/// closed, so with everything in use the cache goes over its limits until something is released, or
/// refuses ([`CacheSettings::strict`]).
///
/// It holds its client: drop both. In a child of fork(2) nothing is ever a hit, and every call
/// answers NOT_CONNECTED.
#[derive(Clone, Debug)]
pub struct ImportCache(Arc<Cache>);

#[derive(Debug)]
struct Cache {
    client: Client,
    table: Table,
    openers: Openers,
}

impl ImportCache {
    /// An empty cache for a client.
    pub fn new(client: &Client, settings: CacheSettings) -> Self {
        let table = Table::new(client.common(), settings);
        let cache = Arc::new(Cache { client: client.clone(), table, openers: Openers::default() });
        let watcher: Weak<Cache> = Arc::downgrade(&cache);
        client.common().watchers.add(watcher);
        ImportCache(cache)
    }

    /// The limits that it was made with: entries and bytes that stay open unused.
    pub fn settings(&self) -> &CacheSettings {
        self.0.table.settings()
    }

    /// The memory, if it is open and its allocation lives. No syscall, no wait. Memory opened for
    /// writing serves readers, too. `None` says nothing but that [`ImportCache::import`] must be
    /// asked.
    // Always: out of line, its eight words go through memory, which costs C programs a third of a
    // hit.
    #[inline(always)]
    pub fn hit(&self, handle: &Handle, access: Access) -> Option<CachedImport<'_>> {
        let pinned = self.0.table.hit(handle, access)?;
        Some(CachedImport::inside(&self.0.table, pinned, handle))
    }

    /// The memory, mapped: from the cache, else from the broker.
    ///
    /// # Errors
    /// As [`Client::acquire`] and [`crate::Grant::import`]; STALE too when the allocation ended
    /// meanwhile, NO_QUOTA too when a strict cache is full of memory in use. In every case nothing
    /// is left: no lease, no mapping, no count.
    pub fn import(
        &self,
        handle: &Handle,
        mode: impl Into<ImportMode>,
        deadline: Deadline,
    ) -> Result<CachedImport<'_>, Error> {
        self.import_by(handle, mode.into(), deadline, Opening::<NoOpener>::Map)
    }

    /// Any number, one outcome each, in their order; what is missing comes by 253 per message, each
    /// fd closed before the next reply is asked for.
    ///
    /// # Errors
    /// When nothing was tried: NOT_CONNECTED, or NOT_SUPPORTED in a callback.
    pub fn import_many(
        &self,
        handles: &[Handle],
        mode: impl Into<ImportMode>,
        deadline: Deadline,
    ) -> Result<Imports<'_>, Error> {
        self.importer(mode.into(), deadline, Opening::<NoOpener>::Map).import_many(handles)
    }

    /// Starts to import any number, without waiting for anything: see [`ImportRequest`]. What is in
    /// the cache is in use from now on. May be called in a callback.
    ///
    /// # Errors
    /// When nothing was started: NOT_CONNECTED, unless all is in the cache. All else is said by
    /// [`Request::test`], handle by handle.
    pub fn import_start(
        &self,
        handles: &[Handle],
        mode: impl Into<ImportMode>,
        deadline: Deadline,
    ) -> Result<ImportRequest<'_>, Error> {
        let importer = self.importer(mode.into(), deadline, Opening::Map);
        Importing::start(importer, handles).map(Request::of)
    }

    /// The same as [`ImportCache::import`] for memory that is not the CPU's to map: on a miss
    /// `open` makes it from the grant; the fd is closed after it returns. What is open already is a
    /// hit however it was opened.
    ///
    /// # Errors
    /// As [`ImportCache::import`], and the errors of `open`.
    pub fn import_with(
        &self,
        handle: &Handle,
        mode: impl Into<ImportMode>,
        deadline: Deadline,
        open: impl FnMut(&Grant) -> Result<Box<dyn Opened>, Error>,
    ) -> Result<CachedImport<'_>, Error> {
        self.import_by(handle, mode.into(), deadline, Opening::With(open))
    }

    /// [`ImportCache::import_many`] with an opener.
    ///
    /// # Errors
    /// As [`ImportCache::import_many`].
    pub fn import_many_with(
        &self,
        handles: &[Handle],
        mode: impl Into<ImportMode>,
        deadline: Deadline,
        open: impl FnMut(&Grant) -> Result<Box<dyn Opened>, Error>,
    ) -> Result<Imports<'_>, Error> {
        self.importer(mode.into(), deadline, Opening::With(open)).import_many(handles)
    }

    /// Has `opener` open the memory of a kind from now on; `None`: the library does, if the CPU can
    /// map it. What is open already stays, and is closed by what opened it.
    ///
    /// # Errors
    /// NOT_CONNECTED: in a child of fork(2).
    pub fn set_opener(
        &self,
        kind: MemoryKind,
        opener: Option<Arc<dyn ImportOpener>>,
    ) -> Result<(), Error> {
        // The lock may be held by a thread that a child does not have.
        if self.0.client.is_forked_copy() {
            return Err(Error::forked("set an opener"));
        }
        self.0.openers.set(kind, opener);
        Ok(())
    }

    /// The counters. Looks at every entry for those in use: not for the fast path.
    pub fn stats(&self) -> CacheStats {
        self.0.table.stats()
    }

    /// Closes all that nobody uses; how many.
    pub fn empty(&self) -> usize {
        if self.0.client.common().process.is_current() {
            self.0.table.close_unused(usize::MAX)
        } else {
            0
        }
    }

    /// Before a checkpoint of the process: closes all that nobody uses and gives its leases back.
    /// Until [`ImportCache::resume`] what its last user releases is closed at once, and nothing is
    /// opened: an import of what is not open answers AGAIN. Connection, event socket and page stay
    /// open, and recalls are answered. Waits until the deadline for imports under way in other
    /// threads.
    ///
    /// What is in use: the allocations that this client still has a lease of, here, in another
    /// cache or as a [`crate::Grant`]; none when all is closed. The handles have no hints. Ask
    /// again when it is released.
    ///
    /// # Errors
    /// TIMED_OUT: an import of another thread has not ended; it is suspended all the same.
    /// NOT_CONNECTED in a child of fork(2), NOT_SUPPORTED in a callback.
    pub fn suspend(&self, deadline: Deadline) -> Result<Vec<Handle>, Error> {
        self.0.client.check_may_wait("suspend")?;
        let suspended = self.0.table.suspend(deadline);
        // Releases do not wait for others when the process may be stopped.
        self.0.client.current().send_queued();
        suspended?;
        let in_use = self.0.client.common().holdings.in_use();
        Ok(in_use.into_iter().map(Handle::from).collect())
    }

    /// Ends a suspend, and imports anew what it has closed, so that it is in the cache as before:
    /// all but what [`ImportCache::import_with`] has opened. What could not be imported, and why:
    /// STALE or OWNER_GONE when it has ended meanwhile; another import may get the rest. Nothing
    /// when it was not suspended.
    ///
    /// # Errors
    /// When nothing was tried, and it is still suspended: NOT_CONNECTED, or NOT_SUPPORTED in a
    /// callback.
    pub fn resume(&self, deadline: Deadline) -> Result<Vec<(Handle, Error)>, Error> {
        let Cache { client, table, openers } = &*self.0;
        client.connection("resume", deadline)?;
        let has_opener = |one: &Closed| {
            let kind = MemoryKind::from_number(one.handle.prefix.kind);
            kind.is_some_and(|kind| openers.of(kind).is_some())
        };
        let mut closed = table.resume();
        closed.retain(|one| one.is_host || has_opener(one));
        let mut failed = Vec::new();
        for access in [Access::Read, Access::ReadWrite] {
            let of_access = closed.iter().filter(|one| one.access == access);
            let handles: Vec<Handle> = of_access.map(|one| one.handle).collect();
            match self.import_many(&handles, access, deadline) {
                Ok(imports) => failed.extend(
                    handles.iter().zip(imports).filter_map(|(of, one)| Some((*of, one.err()?))),
                ),
                Err(lost) => failed.extend(handles.iter().map(|of| (*of, lost.clone()))),
            }
        }
        Ok(failed)
    }

    /// Gives back a pin taken apart by [`CachedImport::into_pin`].
    ///
    /// # Errors
    /// BAD_HANDLE: it was given back before, or is no pin; nothing changes then. (One given back
    /// twice while the same thread has the same memory in use once more cannot be told from that:
    /// forget a pin that was given back.)
    #[inline]
    pub fn release(&self, pin: Pin) -> Result<(), Error> {
        if self.0.table.release(pin) { Ok(()) } else { Err(no_such_pin()) }
    }

    /// Whether the memory of a pin is current: its allocation lives, the broker lives, and this
    /// client is connected to it. No syscall.
    pub fn is_current(&self, pin: Pin, id: AllocationId) -> bool {
        self.0.table.is_current(pin, id)
    }

    /// Whether the memory of a pin is final, see [`CachedImport::is_final`]. No lock: also in a
    /// child of fork(2).
    pub fn is_final(&self, pin: Pin) -> bool {
        self.0.table.is_final(pin)
    }

    #[inline]
    fn import_by(
        &self,
        handle: &Handle,
        mode: ImportMode,
        deadline: Deadline,
        opening: Opening<impl Opener>,
    ) -> Result<CachedImport<'_>, Error> {
        match self.0.table.hit(handle, mode.access) {
            Some(pinned) => Ok(CachedImport::inside(&self.0.table, pinned, handle)),
            None => self.importer(mode, deadline, opening).import(handle),
        }
    }

    fn importer<O>(
        &self,
        mode: ImportMode,
        deadline: Deadline,
        opening: Opening<O>,
    ) -> Importer<'_, O> {
        let Cache { client, table, openers } = &*self.0;
        Importer { client, table, openers, mode, deadline, opening }
    }
}

/// On the thread that serves.
impl LeaseWatcher for Cache {
    fn revoked(&self, id: AllocationId) {
        self.table.revoke(id);
    }

    fn reclaim(&self, leases: &[u64]) {
        self.table.reclaim(leases);
    }

    fn declared(&self) {
        self.table.note_declared();
    }
}

#[cold]
fn no_such_pin() -> Error {
    Error::given_back("release: no such pin")
}

impl Drop for Cache {
    fn drop(&mut self) {
        let is_own = self.client.common().process.is_current();
        if is_own && self.table.settings().print_stats {
            let line = format!("fdbroker import cache: {}\n", self.table.stats());
            fdbroker_scm::write_stderr(line.as_bytes());
        }
        let held = self.table.take_all();
        if is_own {
            close_all(held)
        } else {
            // A child of fork(2) gives nothing back and unmaps nothing; what a driver has opened is
            // not there.
            std::mem::forget(held)
        }
    }
}
