//! Events and fences: a flag that can be waited for. A wait must never be without end where a program gave one.

use crate::answer::Failure;
use level_zero_sys::ze_result_t;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Set by the device or the host, reset by the host.
#[derive(Debug, Default)]
pub struct Signal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    pub fn new(is_set: bool) -> Self {
        Self { is_set: Mutex::new(is_set), changed: Condvar::new() }
    }

    pub fn set(&self, to: bool) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = to;
        self.changed.notify_all();
    }

    /// Waits until it is set.
    ///
    /// # Errors
    /// `ZE_RESULT_NOT_READY` when it was not in time.
    pub fn wait(&self, timeout: Duration) -> Result<(), Failure> {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        let (is_set, _) = self
            .changed
            .wait_timeout_while(is_set, timeout, |is_set| !*is_set)
            .unwrap_or_else(PoisonError::into_inner);
        match *is_set {
            true => Ok(()),
            false => Err(ze_result_t::ZE_RESULT_NOT_READY.into()),
        }
    }
}
