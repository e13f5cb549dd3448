//! An arena: memory allocated once, given out by pages, registered range by range, recalled by the
//! library. Must never reuse a range before the broker says that its last lease is gone.

use super::host::HostMemory;
use super::memfd::{check_some, closed_here};
use super::pool::{MemoryBackend, Pool, check_window, next_allocation_id};
use super::ranges::{Emptying, Freed, Ranges, key};
use super::registering::{Registers, register_all};
use crate::api::client::Client;
use crate::books::holdings::{Ending, LostRegistration};
use crate::books::one_way::{OneWay, OwnerKey, Unregister};
use crate::books::roles::{MemoryOwner, Registrant, Supply, SupplyFd};
use crate::deadline::Deadline;
use crate::deposit::{Deposit, Export, Registration};
use crate::error::Error;
use crate::map::{check_range, page_size};
use crate::notice::Recall;
use crate::own_fds::OwnFd;
use crate::sync::lock;
use fdbroker_protocol::{AllocationId, ErrorCode, Facts, Handle, MemoryKind, Share};
use std::sync::{Arc, Mutex, Weak};

/// Memory to share, given out in buffers.
///
/// Its buffers are recallable: the broker may close its fd of one and ask for it again, and the
/// library thread exports it without the application. A freed buffer is unregistered, and its range
/// used again only when the last consumer has released it. The arena keeps its client connected.
///
/// A large one costs addresses only: memory is taken when a page is first touched, and what is
/// freed goes back to the system, apart from some MiB kept at hand.
///
/// When the broker is lost, the next one hears of the consumers that have a buffer mapped one by
/// one, until its grace time is over. Buffers held go on under their handles. A range that was
/// freed before the loss and not drained, or is freed between the loss and the end of the grace
/// time, is used again when that time is over and the last consumer has released it. Only when the
/// next broker knows nothing of it is a range not used again by itself ([`Arena::orphaned_bytes`]),
/// until the application, which knows its consumers, calls [`Arena::reclaim_orphans`].
#[derive(Clone, Debug)]
pub struct Arena {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    // Field order is drop order: the memory goes before the connection.
    pool: Box<dyn Pool>,
    client: Client,
    name: &'static str,
    kind: MemoryKind,
    share: Share,
    ranges: Mutex<Ranges>,
    // The memfd itself, for memfd arenas: exported without being made.
    shared_fd: Option<Arc<OwnFd>>,
}

impl Arena {
    /// An arena of `bytes`, rounded up to pages, shared within the uid.
    ///
    /// # Errors
    /// NOT_SUPPORTED: the backend is absent here, or `own_fds` leaves no export window and the
    /// backend needs one. BAD_HANDLE: 0 bytes. INTERNAL: no memory. LOCAL_FD_LIMIT.
    pub fn new(client: &Client, memory: HostMemory, bytes: usize) -> Result<Self, Error> {
        Self::with_backend(client, &memory, bytes, Share::Uid)
    }

    /// The same of any backend, for any circle.
    ///
    /// # Errors
    /// As [`Arena::new`]; NOT_PERMITTED when the backend's exports show their neighbours (memfd)
    /// and `share` is not [`Share::Uid`].
    pub fn with_backend(
        client: &Client,
        backend: &dyn MemoryBackend,
        bytes: usize,
        share: Share,
    ) -> Result<Self, Error> {
        let (name, kind) = (backend.name(), backend.kind());
        if kind.shows_neighbours() && share != Share::Uid {
            let context = format!(
                "arena of {name} for {share}: a consumer could map its neighbours; use udmabuf"
            );
            return Err(Error::new(ErrorCode::NotPermitted, context));
        }
        let pool = backend.allocate(bytes)?;
        if pool.exports_are_fresh() {
            check_window(client, name)?;
        }
        let shared_fd = if pool.exports_are_fresh() {
            None
        } else {
            match pool.export(0, page_size())?.fd {
                SupplyFd::Shared(fd) => Some(fd),
                SupplyFd::Fresh(_) => None,
            }
        };
        let ranges = Mutex::new(Ranges::new(pool.len()));
        let client = client.clone();
        let inner = Arc::new(Inner { pool, client, name, kind, share, ranges, shared_fd });
        let owner: Weak<dyn MemoryOwner> = Arc::<Inner>::downgrade(&inner);
        inner.client.common().owners.add(owner);
        let registrant: Weak<dyn Registrant> = Arc::<Inner>::downgrade(&inner);
        inner.client.common().registrants.add(registrant);
        Ok(Arena { inner })
    }

    /// A buffer of `len` bytes (more than 0), in whole pages. What was written there before may
    /// still be there.
    ///
    /// # Errors
    /// NO_QUOTA: no free range is long enough; says how much is free, and how much waits to be
    /// drained. BAD_HANDLE: 0 bytes.
    pub fn alloc(&self, len: usize) -> Result<HostBuffer, Error> {
        let inner = &self.inner;
        check_some(len)?;
        let span = len.checked_next_multiple_of(page_size());
        let mut ranges = lock(&inner.ranges);
        let id = next_allocation_id();
        let taken = span.and_then(|span| ranges.take(span, id)).ok_or_else(|| {
            let ((largest, free), back) = (ranges.room(), ranges.held_back_bytes());
            let context = format!(
                "arena: no {len} bytes in a row: {free} of {} are free, at most {largest} in a row; {back} are freed \
                 and held back for their consumers",
                inner.pool.len()
            );
            let why = "it is full: free buffers (their consumers must release them, too), or make a larger arena";
            Error::new(ErrorCode::NoQuota, context).because(why)
        })?;
        drop(ranges);
        Ok(HostBuffer {
            arena: Arc::clone(inner),
            offset: taken.offset,
            len,
            owner_allocation_id: taken.owner_allocation_id,
        })
    }

    /// Registers buffers of this arena; one handle each, in their order. A buffer registered
    /// already keeps its handle.
    ///
    /// # Errors
    /// When nothing was tried: NOT_CONNECTED, or NOT_SUPPORTED in a callback.
    ///
    /// # Panics
    /// When a buffer is of another arena.
    pub fn register<'a>(
        &self,
        buffers: impl IntoIterator<Item = &'a HostBuffer>,
        deadline: Deadline,
    ) -> Result<Vec<Result<Handle, Error>>, Error> {
        self.inner.register(&buffers.into_iter().collect::<Vec<_>>(), deadline)
    }

    /// Bytes of address space, in use or not.
    pub fn len(&self) -> usize {
        self.inner.pool.len()
    }

    /// Whether it has no bytes; never so.
    pub fn is_empty(&self) -> bool {
        self.inner.pool.is_empty()
    }

    /// Bytes that can be given out now.
    pub fn free_bytes(&self) -> usize {
        lock(&self.inner.ranges).room().1
    }

    /// Freed bytes that are not used again yet: a consumer still has them, or nobody knows
    /// ([`Arena::orphaned_bytes`]).
    pub fn held_back_bytes(&self) -> usize {
        lock(&self.inner.ranges).held_back_bytes()
    }

    /// Freed bytes of which no broker knows now, because the one that knew their leases is gone.
    /// What the next one does not take over stays unused.
    pub fn orphaned_bytes(&self) -> usize {
        lock(&self.inner.ranges).orphaned_bytes()
    }

    /// Uses the orphaned ranges again; how many bytes. Only when no consumer of before the
    /// reconnect still has a buffer of this arena mapped: it would see other data.
    pub fn reclaim_orphans(&self) -> usize {
        let (bytes, emptying) = lock(&self.inner.ranges).reclaim_orphans();
        emptying.into_iter().for_each(|range| self.inner.empty(range));
        bytes
    }

    /// Whether its buffers can be shared: not any more once this program has closed the arena's fd.
    /// Those that are registered have been lost then; their memory stays.
    pub fn can_be_shared(&self) -> bool {
        self.inner.can_export()
    }

    /// As in error messages: `memfd`, `udmabuf` and so on.
    pub fn backend(&self) -> &'static str {
        self.inner.name
    }
}

impl Inner {
    fn base(&self) -> u64 {
        self.pool.base().addr() as u64
    }

    fn offset_of(&self, base: u64) -> Option<usize> {
        let offset = usize::try_from(base.checked_sub(self.base())?).ok()?;
        (offset < self.pool.len()).then_some(offset)
    }

    fn register(
        self: &Arc<Self>,
        buffers: &[&HostBuffer],
        deadline: Deadline,
    ) -> Result<Vec<Result<Handle, Error>>, Error> {
        assert!(buffers.iter().all(|buffer| Arc::ptr_eq(&buffer.arena, self)), "of this arena");
        register_all(&self.client, buffers, self.shared_fd.is_none(), deadline)
    }

    fn free(&self, offset: usize, owner_allocation_id: u64) {
        let mut told = None;
        let end = |registration: &Registration| {
            match self.client.common().holdings.end(registration.into(), true) {
                Ending::Tell(link) => told = Some(link),
                // Retired before: the broker has been told.
                Ending::Draining => return true,
                _ => {}
            }
            told.is_some()
        };
        let freed = lock(&self.ranges).free(offset, end);
        match freed {
            Freed::Unregister(id) => {
                let key = Some(key(self.base(), offset, owner_allocation_id));
                if let Some(link) = told {
                    link.post(OneWay::Unregister(Unregister { id, key }));
                }
            }
            Freed::Empty(range) => self.empty(range),
            Freed::Done => {}
        }
    }

    /// Under no lock: it takes as long as the range is large.
    fn empty(&self, range: Emptying) {
        self.pool.discard(range.offset, range.span);
        lock(&self.ranges).note_emptied(range);
    }
}

impl MemoryOwner for Inner {
    fn covers(&self, base: u64) -> bool {
        self.offset_of(base).is_some()
    }

    fn keeps(&self, base: u64, id: AllocationId) -> bool {
        let ranges = lock(&self.ranges);
        let known = self.offset_of(base).and_then(|offset| ranges.registration(offset));
        known.is_some_and(|registration| registration.id() == id)
    }

    fn exports_are_fresh(&self) -> bool {
        self.shared_fd.is_none()
    }

    fn can_export(&self) -> bool {
        self.shared_fd.as_ref().is_none_or(|fd| fd.proved().is_some())
    }

    fn supply(&self, recall: &Recall) -> Result<Supply, ErrorCode> {
        let offset = self.offset_of(recall.base).ok_or(ErrorCode::Stale)?;
        let id = recall.facts.owner_allocation_id;
        let span = {
            let ranges = lock(&self.ranges);
            let span = ranges.span(offset).filter(|_| ranges.is_held(offset, id));
            span.ok_or(ErrorCode::Stale)?
        };
        if !self.can_export() {
            return Err(ErrorCode::Stale);
        }
        let export = self.pool.export(offset, span).map_err(|error| {
            log::warn!("recall of {}: {error}", recall.id);
            error.code
        })?;
        // Read again after the export: it may have been freed meanwhile.
        if !lock(&self.ranges).is_held(offset, id) {
            return Err(ErrorCode::Stale);
        }
        Ok(Supply::of(recall, export.fd, export.fd_offset, span as u64))
    }

    fn drained(&self, key: OwnerKey) {
        if let Some(offset) = self.offset_of(key.base) {
            let emptying = lock(&self.ranges).note_drained(offset, key.owner_allocation_id);
            emptying.into_iter().for_each(|range| self.empty(range));
        }
    }

    fn disconnected(&self) {
        lock(&self.ranges).note_disconnected();
    }

    fn adopted(&self, key: OwnerKey) {
        if let Some(offset) = self.offset_of(key.base) {
            lock(&self.ranges).note_adopted(offset, key.owner_allocation_id);
        }
    }
}

impl Registrant for Inner {
    fn lost(&self, registration: &LostRegistration) {
        if let Some(offset) = self.offset_of(registration.base) {
            lock(&self.ranges).note_lost(offset, registration.id);
        }
    }
}

/// Memory of an arena, in whole pages, writable here. Dropping it frees it: it is unregistered,
/// every holder is told, and the range is used again when the last of them has released it.
#[derive(Debug)]
#[must_use = "dropping a buffer frees it"]
pub struct HostBuffer {
    arena: Arc<Inner>,
    offset: usize,
    len: usize,
    owner_allocation_id: u64,
}

// A buffer never is empty.
#[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
impl HostBuffer {
    /// First byte; mapped as long as the buffer lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.as_mut_ptr()
    }

    /// First byte, to write. Consumers see what is written at once.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.arena.pool.base().wrapping_add(self.offset)
    }

    /// Bytes asked for; the memory has whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes registered: `len` in whole pages.
    pub fn span(&self) -> usize {
        self.len.next_multiple_of(page_size())
    }

    /// Where it begins in the arena, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Its id as the owner counts: another one for each buffer, whatever its address.
    pub fn owner_allocation_id(&self) -> u64 {
        self.owner_allocation_id
    }

    /// Copies `bytes` in at `offset`, each word written once.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        check_range(offset, bytes.len(), self.len)?;
        self.arena.pool.write_at(self.offset + offset, bytes)
    }

    /// Copies out `into.len()` bytes from `offset`, each word read once.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        check_range(offset, into.len(), self.len)?;
        self.arena.pool.read_at(self.offset + offset, into)
    }

    /// The bytes as a slice.
    ///
    /// # Safety
    /// Nobody, in any process, reads or writes the memory while the slice is in use: so before it
    /// is registered, or when the consumers are known to wait.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: mapped for `len` bytes as long as the buffer lives, and no other buffer of the
        // arena overlaps; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }

    /// Registers it; the same handle as before when it is registered already.
    ///
    /// # Errors
    /// As [`Client::register`].
    pub fn register(&self, deadline: Deadline) -> Result<Handle, Error> {
        let handles = self.arena.register(&[self], deadline)?;
        handles.into_iter().next().expect("one outcome per buffer")
    }

    /// Its handle, while it is registered.
    pub fn handle(&self) -> Option<Handle> {
        lock(&self.arena.ranges).registration(self.offset).map(|known| known.handle)
    }

    /// Its allocation, while it is registered.
    pub fn id(&self) -> Option<AllocationId> {
        self.handle().map(|handle| handle.id())
    }

    /// Frees it, like drop.
    pub fn free(self) {}
}

impl Registers for HostBuffer {
    fn base(&self) -> u64 {
        self.arena.base() + self.offset as u64
    }

    fn begin(&self) -> bool {
        let mut ranges = lock(&self.arena.ranges);
        let is_new = ranges.registration(self.offset).is_none();
        if is_new {
            ranges.note_sending(self.offset);
        }
        is_new
    }

    fn deposit(&self) -> Deposit {
        let fd_offset = if self.arena.shared_fd.is_some() { self.offset as u64 } else { 0 };
        let facts = Facts::new(self.arena.kind, self.span() as u64)
            .fd_offset(fd_offset)
            .owner_allocation_id(self.owner_allocation_id);
        let (base, share) = (self.base(), self.arena.share);
        Deposit { base, recallable: true, share, ..facts.into() }
    }

    fn export(&self) -> Result<Export<'_>, Error> {
        if let Some(fd) = &self.arena.shared_fd {
            return fd.proved().map(Export::Shared).ok_or_else(closed_here);
        }
        match self.arena.pool.export(self.offset, self.span())?.fd {
            SupplyFd::Fresh(fd) => Export::fresh(fd),
            SupplyFd::Shared(_) => unreachable!("a pool's exports are all fresh or all shared"),
        }
    }

    fn note(&self, registration: &Registration, lasts: &dyn Fn() -> bool) -> bool {
        let mut ranges = lock(&self.arena.ranges);
        !lasts() || ranges.note_registered(self.offset, registration.clone())
    }

    fn handle(&self) -> Option<Handle> {
        self.handle()
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // A forked child's arena is a copy: its parent's ranges are not its to free.
        if self.arena.client.common().process.is_current() {
            self.arena.free(self.offset, self.owner_allocation_id);
        }
    }
}
