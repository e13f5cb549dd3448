//! What all connections of one client share: page, books, window, wake-up, and the parties to be
//! called. Must never hold a connection but as a `Line`: connections hold this.

use super::holdings::{Ending, Holdings};
use super::one_way::{OneWay, OwnerKey, Unregister};
use super::page::PageRegion;
use super::roles::{Dispatcher, LeaseWatcher, MemoryOwner, ObjectWatcher, Registrant};
use super::wake::Wake;
use super::window::Window;
use crate::deposit::{Deposit, RegistrationRef};
use crate::error::Error;
use crate::fork::Process;
use crate::sync::lock;
use fdbroker_protocol::AllocationId;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Shared by the client, its connections and its library thread.
#[derive(Debug)]
pub(crate) struct Common {
    pub process: Process,
    pub page: PageRegion,
    pub holdings: Holdings,
    pub window: Arc<Window>,
    pub wake: Wake,
    pub owners: Parties<dyn MemoryOwner>,
    pub watchers: Parties<dyn LeaseWatcher>,
    pub registrants: Parties<dyn Registrant>,
    pub watches: Parties<dyn ObjectWatcher>,
    has_recall_callback: bool,
    /// How many fds the broker may hold for this client by its own will; 0: no bound.
    pub max_held_fds: u32,
    /// In dispatch mode: serves for the calls that wait.
    dispatcher: OnceLock<Weak<dyn Dispatcher>>,
    /// Allocations of the application that were drained when their unregister, which nobody waits
    /// for any more, was answered.
    drained: Mutex<Vec<(AllocationId, OwnerKey)>>,
}

/// Parties of one role. They leave by being dropped.
#[derive(Debug)]
pub(crate) struct Parties<T: ?Sized>(Mutex<Vec<Weak<T>>>);

impl<T: ?Sized> Parties<T> {
    pub fn add(&self, one: Weak<T>) {
        let mut all = lock(&self.0);
        all.retain(|known| known.strong_count() > 0);
        all.push(one);
    }

    /// Those that live. Out of the lock, so that dropping the last reference to one is harmless.
    pub fn all(&self) -> Vec<Arc<T>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }
}

impl<T: ?Sized> Default for Parties<T> {
    fn default() -> Self {
        Parties(Mutex::default())
    }
}

impl Common {
    pub fn new(
        window: u32,
        max_held_fds: u32,
        has_recall_callback: bool,
        dispatches: bool,
    ) -> Result<Self, Error> {
        let wake = Wake::new(dispatches)?;
        Ok(Common {
            process: Process::current(),
            page: PageRegion::reserve()?,
            holdings: Holdings::new(wake.clone()),
            window: Arc::new(Window::new(window, wake.clone())),
            wake,
            owners: Parties::default(),
            watchers: Parties::default(),
            registrants: Parties::default(),
            watches: Parties::default(),
            max_held_fds,
            has_recall_callback,
            dispatcher: OnceLock::new(),
            drained: Mutex::default(),
        })
    }

    /// From now on waiting calls serve.
    pub fn set_dispatcher(&self, dispatcher: Weak<dyn Dispatcher>) {
        let first = self.dispatcher.set(dispatcher).is_ok();
        debug_assert!(first, "a client starts once");
    }

    /// Whether waiting calls serve.
    pub fn dispatches(&self) -> bool {
        self.dispatcher.get().is_some()
    }

    /// In dispatch mode, while the client lives: serves for the calls that wait.
    pub fn dispatcher(&self) -> Option<Arc<dyn Dispatcher>> {
        self.dispatcher.get()?.upgrade()
    }

    /// The application is to be told that it was drained: by the thread that serves.
    pub fn note_drained(&self, id: AllocationId, key: OwnerKey) {
        lock(&self.drained).push((id, key));
        self.wake.kick();
    }

    /// What was drained so since this was asked last.
    pub fn take_drained(&self) -> Vec<(AllocationId, OwnerKey)> {
        std::mem::take(&mut lock(&self.drained))
    }

    /// Ends registrations by one message, and waits for no answer. A broker that knows nothing of
    /// one is told nothing. Not in a forked child.
    pub fn retire(&self, what: impl IntoIterator<Item = RegistrationRef>) {
        self.end(what, OneWay::Unregister);
    }

    /// The same, but they may wait a moment for others that end.
    pub fn retire_soon(&self, what: impl IntoIterator<Item = RegistrationRef>) {
        self.end(what, OneWay::UnregisterSoon);
    }

    fn end(
        &self,
        what: impl IntoIterator<Item = RegistrationRef>,
        message: fn(Unregister) -> OneWay,
    ) {
        let mut line = None;
        let mut ended = Vec::new();
        for one in what {
            if let Ending::Tell(of) = self.holdings.end(one, false) {
                // Of the connection of the moment, all of them; one lost meanwhile takes no
                // message.
                line = Some(of);
                ended.push(message(Unregister { id: one.id, key: None }));
            }
        }
        if let Some(line) = line {
            line.post_all(&mut ended.into_iter());
        }
    }

    /// Refuses what is no allocation, and one that is said to be recallable when nothing here could
    /// export it again.
    pub fn check_deposit(&self, deposit: &Deposit) -> Result<(), Error> {
        deposit.check("register")?;
        let can_be = self.has_recall_callback || self.owner_of(deposit.base).is_some();
        if deposit.recallable && !can_be { Err(Error::no_recall_callback()) } else { Ok(()) }
    }

    /// Whether it is registered by a buffer of this library, which ends it by itself.
    pub fn is_a_buffers(&self, id: AllocationId) -> bool {
        let key = self.holdings.key_of(id).filter(|key| key.base != 0);
        key.is_some_and(|key| self.owner_of(key.base).is_some_and(|it| it.keeps(key.base, id)))
    }

    /// Says of an address whether its memory cannot be exported any more.
    pub fn unexportable(&self) -> impl Fn(u64) -> bool {
        let mut owners = self.owners.all();
        owners.retain(|owner| !owner.can_export());
        move |base| base != 0 && owners.iter().any(|owner| owner.covers(base))
    }

    /// The owner of the memory at `base`.
    pub fn owner_of(&self, base: u64) -> Option<Arc<dyn MemoryOwner>> {
        self.owners.all().into_iter().find(|owner| owner.covers(base))
    }
}
