//! What all connections of one client share: page, wake-up of the library thread, owners of memory, window.
//! Must never hold a connection: connections hold this.

use crate::api::client::Shared;
use crate::books::holdings::{Ending, Holdings, LostRegistration};
use crate::books::page::PageRegion;
use crate::deposit::RegistrationRef;
use crate::error::Error;
use crate::fork::Process;
use crate::notice::Recall;
use crate::sync::{lock, wait_until};
use crate::wire::outbox::OneWay;
use fdbroker_protocol::{AllocationId, ErrorCode};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::Instant;

/// Shared by the client, its connections and its library thread.
#[derive(Debug)]
pub(crate) struct Common {
    pub process: Process,
    pub page: PageRegion,
    pub holdings: Holdings,
    pub window: Arc<Window>,
    wake: Arc<EventFd>,
    /// In dispatch mode: of whom waiting calls serve the events. Not held: it holds this.
    dispatcher: OnceLock<Weak<Shared>>,
    owners: Mutex<Vec<Weak<dyn MemoryOwner>>>,
    watchers: Mutex<Vec<Weak<dyn LeaseWatcher>>>,
    registrants: Mutex<Vec<Weak<dyn Registrant>>>,
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
        let wake = Arc::new(wake);
        Ok(Common {
            process: Process::current(),
            page: PageRegion::reserve()?,
            holdings: Holdings::default(),
            window: Arc::new(Window::new(window, Arc::clone(&wake))),
            wake,
            dispatcher: OnceLock::new(),
            owners: Mutex::new(Vec::new()),
            watchers: Mutex::new(Vec::new()),
            registrants: Mutex::new(Vec::new()),
        })
    }

    /// Makes who serves look around.
    pub fn kick(&self) {
        kick(&self.wake);
    }

    /// From now on waiting calls serve.
    pub fn set_dispatcher(&self, shared: &Arc<Shared>) {
        let first = self.dispatcher.set(Arc::downgrade(shared)).is_ok();
        debug_assert!(first, "a client starts once");
    }

    /// Whether waiting calls serve.
    pub fn dispatches(&self) -> bool {
        self.dispatcher.get().is_some()
    }

    /// In dispatch mode, while the client lives: what waiting calls serve.
    pub fn dispatching(&self) -> Option<Arc<Shared>> {
        self.dispatcher.get()?.upgrade()
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

    pub fn add_registrant(&self, registrant: Weak<dyn Registrant>) {
        let mut registrants = lock(&self.registrants);
        registrants.retain(|known| known.strong_count() > 0);
        registrants.push(registrant);
    }

    /// Those who keep registrations here. Out of the lock, as `owners`.
    pub fn registrants(&self) -> Vec<Arc<dyn Registrant>> {
        lock(&self.registrants).iter().filter_map(Weak::upgrade).collect()
    }

    /// Ends registrations by one message, and waits for no answer. A broker that knows nothing of one is told nothing. Not
    /// in a forked child.
    pub fn retire(&self, what: impl IntoIterator<Item = RegistrationRef>) {
        let mut link = None;
        let mut ended = Vec::new();
        for one in what {
            if let Ending::Tell(of) = self.holdings.end(one) {
                // Of the connection of the moment, all of them; one lost meanwhile takes no message.
                link = Some(of);
                ended.push(OneWay::Unregister(Unregister { id: one.id, key: None }));
            }
        }
        if let Some(link) = link {
            link.post_all(ended);
        }
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
    /// All leases have been declared to a new broker: they have new numbers, or were refused. Called before the page of
    /// that broker is shown.
    fn declared(&self);
}

/// Registrations that the library itself keeps: buffers, tables of exports. Never blocks, calls no application code.
pub(crate) trait Registrant: Send + Sync + std::fmt::Debug {
    /// It has ended with its broker. Called before the page of the next broker is shown.
    fn lost(&self, registration: &LostRegistration);
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

fn kick(wake: &EventFd) {
    // EAGAIN means that 2^64 - 2 kicks are pending: it will wake all the same.
    let _ = wake.write(1);
}

/// Places for exports on their way to the broker: as many as were declared in hello. Recalls go before
/// registrations: consumers wait for them.
#[derive(Debug)]
pub(crate) struct Window {
    state: Mutex<WindowState>,
    freed: Condvar,
    wake: Arc<EventFd>,
}

#[derive(Debug)]
struct WindowState {
    free: u32,
    /// A recall has found none free: the next is its, and it is kicked.
    recall_waits: bool,
}

impl Window {
    fn new(size: u32, wake: Arc<EventFd>) -> Self {
        let state = Mutex::new(WindowState { free: size, recall_waits: false });
        Window { state, freed: Condvar::new(), wake }
    }

    /// Takes 1 to `wanted` places, waiting for the first until `until`; `None` when none came free.
    pub fn take(self: &Arc<Self>, wanted: u32, until: Instant) -> Option<Places> {
        let mut state = lock(&self.state);
        while state.free == 0 || state.recall_waits {
            if Instant::now() >= until {
                return None;
            }
            state = wait_until(&self.freed, state, until);
        }
        Some(self.taken(&mut state, wanted))
    }

    /// Takes one for a recall, without waiting. `None`: a kick tells when there is one.
    pub fn take_for_recall(self: &Arc<Self>) -> Option<Places> {
        let mut state = lock(&self.state);
        state.recall_waits = state.free == 0;
        if state.recall_waits {
            return None;
        }
        let places = self.taken(&mut state, 1);
        drop(state);
        self.freed.notify_all();
        Some(places)
    }

    /// No recall waits any more.
    pub fn end_recalls(&self) {
        lock(&self.state).recall_waits = false;
        self.freed.notify_all();
    }

    fn taken(self: &Arc<Self>, state: &mut WindowState, wanted: u32) -> Places {
        let taken = wanted.clamp(1, state.free);
        state.free -= taken;
        Places { window: Arc::clone(self), taken }
    }
}

/// Places taken; given back on drop, after the exports have been closed.
#[derive(Debug)]
pub(crate) struct Places {
    window: Arc<Window>,
    taken: u32,
}

impl Places {
    pub fn count(&self) -> usize {
        self.taken as usize
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let mut state = lock(&self.window.state);
        state.free += self.taken;
        let recall_waits = state.recall_waits;
        drop(state);
        match recall_waits {
            true => kick(&self.window.wake),
            false => self.window.freed.notify_all(),
        }
    }
}
