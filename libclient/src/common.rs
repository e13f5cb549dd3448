//! What all connections of one client share: page, wake-up of the library thread, owners of memory, window.
//! Must never hold a connection: connections hold this.

use crate::error::Error;
use crate::fork::Process;
use crate::notice::Recall;
use crate::page::PageRegion;
use crate::sync::{lock, wait_until};
use fdbroker_protocol::{AllocationId, ErrorCode};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Instant;

/// Shared by the client, its connections and its library thread.
#[derive(Debug)]
pub(crate) struct Common {
    pub process: Process,
    pub page: PageRegion,
    pub window: Window,
    wake: EventFd,
    owners: Mutex<Vec<Weak<dyn MemoryOwner>>>,
    watchers: Mutex<Vec<Weak<dyn LeaseWatcher>>>,
}

impl Common {
    pub fn new(window: u32) -> Result<Self, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_value_and_flags(0, flags).map_err(|errno| {
            let code = match errno {
                nix::Error::EMFILE | nix::Error::ENFILE => ErrorCode::LocalFdLimit,
                _ => ErrorCode::Internal,
            };
            Error::os(code, "eventfd", errno)
        })?;
        Ok(Common {
            process: Process::current(),
            page: PageRegion::reserve()?,
            window: Window::new(window),
            wake,
            owners: Mutex::new(Vec::new()),
            watchers: Mutex::new(Vec::new()),
        })
    }

    /// Makes the library thread look around.
    pub fn kick(&self) {
        // EAGAIN means that 2^64 - 2 kicks are pending: it will wake all the same.
        let _ = self.wake.write(1);
    }

    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Takes all kicks.
    pub fn take_kicks(&self) {
        // EAGAIN: there was none.
        let _ = self.wake.read();
    }

    pub fn add_owner(&self, owner: Weak<dyn MemoryOwner>) {
        let mut owners = lock(&self.owners);
        owners.retain(|known| known.strong_count() > 0);
        owners.push(owner);
    }

    /// Those who own memory here. Out of the lock, so that dropping the last of one is harmless.
    pub fn owners(&self) -> Vec<Arc<dyn MemoryOwner>> {
        lock(&self.owners).iter().filter_map(Weak::upgrade).collect()
    }

    pub fn add_watcher(&self, watcher: Weak<dyn LeaseWatcher>) {
        let mut watchers = lock(&self.watchers);
        watchers.retain(|known| known.strong_count() > 0);
        watchers.push(watcher);
    }

    /// Those who keep leases here. Out of the lock, as `owners`.
    pub fn watchers(&self) -> Vec<Arc<dyn LeaseWatcher>> {
        lock(&self.watchers).iter().filter_map(Weak::upgrade).collect()
    }

    /// Who owns the memory at `base`.
    pub fn owner_of(&self, base: u64) -> Option<Arc<dyn MemoryOwner>> {
        self.owners().into_iter().find(|owner| owner.covers(base))
    }
}

/// An fd for a recall, and what it is.
#[derive(Debug)]
pub(crate) struct Supply {
    pub fd: SupplyFd,
    pub fd_offset: u64,
    pub size_bytes: u64,
    /// Read after the export.
    pub owner_allocation_id: u64,
}

/// Whether the fd is one more in this process.
#[derive(Debug)]
pub(crate) enum SupplyFd {
    /// A new export: in the window until closed.
    Fresh(OwnedFd),
    /// An fd the owner holds anyway.
    Shared(Arc<OwnedFd>),
}

/// Memory that the library itself can export again: arenas. Never blocks, calls no application code.
pub(crate) trait MemoryOwner: Send + Sync + std::fmt::Debug {
    /// Whether an allocation at this address is its.
    fn covers(&self, base: u64) -> bool;
    /// Whether an export is a new fd in this process.
    fn exports_are_fresh(&self) -> bool;
    /// Exports again. STALE when the memory is freed or reused.
    fn supply(&self, recall: &Recall) -> Result<Supply, ErrorCode>;
    /// The allocation has ended and its last lease is gone.
    fn drained(&self, key: OwnerKey);
    /// The broker has ended the allocation at the owner's wish; `drained`: no lease was left.
    fn unregistered(&self, key: OwnerKey, drained: bool);
    /// The connection is lost, and with it all knowledge of leases.
    fn disconnected(&self);
}

/// Leases that the library itself keeps beyond their use: caches. Never blocks, calls no application code.
pub(crate) trait LeaseWatcher: Send + Sync + std::fmt::Debug {
    /// The allocation has ended: give its lease back as soon as nobody uses the memory.
    fn revoked(&self, id: AllocationId);
    /// The broker would like these leases back if nobody uses them.
    fn reclaim(&self, leases: &[u64]);
    /// The connection is lost, and with it all leases. Called before the next connection is made.
    fn disconnected(&self);
}

/// An allocation as its owner knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerKey {
    pub base: u64,
    pub owner_allocation_id: u64,
}

/// A freed allocation whose unregister nobody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unregister {
    pub id: AllocationId,
    /// Whom to tell; `None` = nobody.
    pub key: Option<OwnerKey>,
}

/// Places for exports on their way to the broker: as many as were declared in hello.
#[derive(Debug)]
pub(crate) struct Window {
    free: Mutex<u32>,
    freed: Condvar,
}

impl Window {
    fn new(size: u32) -> Self {
        Window { free: Mutex::new(size), freed: Condvar::new() }
    }

    /// Takes 1 to `wanted` places, waiting for the first until `until`; `None` when none came free.
    pub fn take(&self, wanted: u32, until: Instant) -> Option<Places<'_>> {
        let mut free = lock(&self.free);
        while *free == 0 {
            if Instant::now() >= until {
                return None;
            }
            free = wait_until(&self.freed, free, until);
        }
        let taken = wanted.clamp(1, *free);
        *free -= taken;
        Some(Places { window: self, taken })
    }
}

/// Places taken; given back on drop, after the exports have been closed.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    window: &'a Window,
    taken: u32,
}

impl Places<'_> {
    pub fn count(&self) -> usize {
        self.taken as usize
    }
}

impl Drop for Places<'_> {
    fn drop(&mut self) {
        *lock(&self.window.free) += self.taken;
        self.window.freed.notify_all();
    }
}
