//! A callback that can be changed while the library thread runs. A change waits until the old
//! callback has returned. Must never hold its lock while a callback runs.

use crate::failure::Failure;
use crate::limits::CALLBACK_TIMEOUT;
use fdbroker_client::ErrorCode;
use fdbroker_client::layer::lock;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

thread_local! {
    /// How many callbacks this thread is running, one inside the other.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is inside a callback, where it must not wait, nor close the context.
pub(crate) fn is_in_callback() -> bool {
    DEPTH.get() > 0
}

/// Runs a function of the program.
pub(crate) fn inside_callback<T>(act: impl FnOnce() -> T) -> T {
    DEPTH.set(DEPTH.get() + 1);
    let result = act();
    DEPTH.set(DEPTH.get() - 1);
    result
}

/// Refuses a call that is not allowed inside a callback.
pub(crate) fn refuse_in_callback(what: &str) -> Result<(), Failure> {
    if is_in_callback() {
        let text = format!("{what}: not inside a callback; do it on another thread");
        Err(Failure::new(ErrorCode::NotSupported, text))
    } else {
        Ok(())
    }
}

/// A C function with its first argument.
#[derive(Clone, Copy)]
pub(crate) struct Callback<F> {
    pub call: F,
    pub user: *mut c_void,
}

// SAFETY: `user` is handed to the function and not touched here; the header says that it is called
// on other threads.
unsafe impl<F: Send> Send for Callback<F> {}
// SAFETY: as above.
unsafe impl<F: Sync> Sync for Callback<F> {}

/// The place of a callback, which may be empty.
pub(crate) struct Slot<F> {
    /// Each thread that runs the callback has a clone.
    current: Mutex<Option<Arc<Callback<F>>>>,
    returned: Condvar,
}

impl<F> Default for Slot<F> {
    fn default() -> Self {
        Slot { current: Mutex::new(None), returned: Condvar::new() }
    }
}

impl<F> Slot<F> {
    /// Whether there is one.
    pub fn is_set(&self) -> bool {
        lock(&self.current).is_some()
    }

    /// Runs the callback; `None` when there is none.
    pub fn run<T>(&self, act: impl FnOnce(&Callback<F>) -> T) -> Option<T> {
        let callback = lock(&self.current).clone()?;
        let result = inside_callback(|| act(&callback));
        {
            // Under the lock, so that a waiting thread does not miss it: it sleeps already, or sees
            // the clone gone.
            let _current = lock(&self.current);
            drop(callback);
        }
        self.returned.notify_all();
        Some(result)
    }

    /// Changes the callback; returns when the old one runs no more.
    pub fn set(&self, callback: Option<Callback<F>>) -> Result<(), Failure> {
        refuse_in_callback("change a callback")?;
        let mut current = lock(&self.current);
        let old = std::mem::replace(&mut *current, callback.map(Arc::new));
        let runs = |_: &mut _| old.as_ref().is_some_and(|old| Arc::strong_count(old) > 1);
        let waited = self.returned.wait_timeout_while(current, CALLBACK_TIMEOUT, runs);
        if waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            let text = format!(
                "change a callback: the old one has not returned in {CALLBACK_TIMEOUT:?}; \
                 it is replaced, but keep what it uses"
            );
            return Err(Failure::new(ErrorCode::TimedOut, text));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    fn callback(number: u32) -> Option<Callback<u32>> {
        Some(Callback { call: number, user: std::ptr::null_mut() })
    }

    #[test]
    fn set_when_the_old_one_runs_then_returns_after_it() {
        let slot = Slot::default();
        slot.set(callback(1)).unwrap();
        let (started, has_started) = channel();
        let (go, may_end) = channel::<()>();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (slot, ended) = (&slot, &ended);
            scope.spawn(move || {
                slot.run(|callback| {
                    started.send(callback.call).unwrap();
                    may_end.recv().unwrap();
                    ended.store(true, Ordering::SeqCst);
                })
            });
            assert_eq!(has_started.recv().unwrap(), 1);
            let setter = scope.spawn(move || {
                slot.set(callback(2)).unwrap();
                assert!(ended.load(Ordering::SeqCst), "set has waited");
            });
            // The new callback runs meanwhile, and `set` does not wait for it.
            while slot.run(|callback| callback.call) != Some(2) {
                std::thread::yield_now();
            }
            go.send(()).unwrap();
            setter.join().unwrap();
        });
    }

    #[test]
    fn set_when_inside_a_callback_then_refused() {
        let slot = Slot::default();
        slot.set(callback(1)).unwrap();
        let refused = slot.run(|_| slot.set(None).unwrap_err().code());
        assert_eq!(refused, Some(crate::errors::FDBROKER_NOT_SUPPORTED));
        assert!(!is_in_callback());
    }
}
