//! The service manager while the daemon serves: messages that it must hear, the store of kept
//! allocations, the watchdog. Must never be used but by the loop: the watchdog is to find a loop
//! that is stuck.

use crate::clock;
use crate::fds::table::FdTable;
use crate::limits::KEEP_RETRY;
use crate::manager::keep_store::KeepStore;
use crate::manager::notify::Manager;
use fdbroker_core::Now;
use std::time::Duration;

/// See the module.
pub struct Service {
    manager: Manager,
    keep_store: KeepStore,
    /// When it is to hear that the loop turns.
    next_alive: Option<Now>,
    /// When to try again what it had no room for.
    next_try: Option<Now>,
}

impl Service {
    /// From the start on.
    pub fn new(manager: Manager, keep_store: KeepStore, now: Now) -> Self {
        let next_alive = manager.watchdog_interval().map(|_| now);
        Service { manager, keep_store, next_alive, next_try: Some(now) }
    }

    /// The service manager.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// The service manager, to be told something.
    pub fn manager_mut(&mut self) -> &mut Manager {
        &mut self.manager
    }

    /// The store of kept allocations.
    pub fn keep_store(&mut self) -> &mut KeepStore {
        &mut self.keep_store
    }

    /// When it is to hear something.
    pub fn due(&self) -> Option<Now> {
        self.next_alive.into_iter().chain(self.next_try).min()
    }

    /// Tells it what is left to be told, and that the loop turns.
    pub fn tell(&mut self, fds: &FdTable, now: Now) {
        let is_left = self.manager.say_again() | self.keep_store.flush(fds);
        self.next_try = is_left.then(|| clock::after(now, KEEP_RETRY));
        if clock::is_due(self.next_alive, now) {
            self.manager.say_alive();
            let interval = self.manager.watchdog_interval().unwrap_or(Duration::MAX);
            self.next_alive = Some(clock::after(now, interval));
        }
    }
}
