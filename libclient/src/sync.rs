//! Locks that survive a panic of another thread, and the clock's arithmetic.
//! Must never be held over a callback or a wait for the broker.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Locks; a panic elsewhere does not spread: every structure here is consistent between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits to be notified until `until`; wakes early too, as condition variables do.
pub(crate) fn wait_until<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    until: Instant,
) -> MutexGuard<'a, T> {
    let timeout = until.saturating_duration_since(Instant::now());
    condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
}
