//! Whether others have given back what this process has ended. Must never wait for more than one of
//! them, nor longer than it is told.

use fdbroker_client::layer::lock;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How many allocations have been drained.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Drains {
    pub(crate) fn count(&self) -> u64 {
        *lock(&self.count)
    }

    pub(crate) fn note(&self) {
        *lock(&self.count) += 1;
        self.changed.notify_all();
    }

    /// Waits until there are more than `count`.
    pub(crate) fn wait(&self, count: u64, most: Duration) {
        let waited = self.changed.wait_timeout_while(lock(&self.count), most, |now| *now == count);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
