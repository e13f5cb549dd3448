//! What threads are to one another: locks that survive a panic of another thread, and which threads
//! are inside a callback of the application, where they must not wait, and not serve either. A lock
//! must never be held over a callback or a wait for the broker.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a panic elsewhere does not spread: every structure here is consistent between statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lower of two numbers in one word, which another thread or a fork always finds whole.
pub(crate) const fn low_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

thread_local! {
    static IS_SERVING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller is inside a callback.
pub(crate) fn is_in_callback() -> bool {
    IS_SERVING.get()
}

/// Marks the thread as one whose callbacks are being called, until dropped.
pub(crate) struct Serving(());

impl Serving {
    pub fn begin() -> Self {
        IS_SERVING.set(true);
        Serving(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        IS_SERVING.set(false);
    }
}
